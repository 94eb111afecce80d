//! `bloom-runtime`: LLM tasks on a fleet of worker machines. ARCHITECTURE.md describes the crates.

mod cli;

use std::process::ExitCode;

/// Faster than the platform's own with the many small pieces that requests are made of.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
