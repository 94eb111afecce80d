//! `bloom-runtime`: LLM tasks on a fleet of worker machines. ARCHITECTURE.md tells how the crates fit together.

mod cli;

use std::process::ExitCode;

/// Faster than the platform's own with the many small pieces that requests are made of.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
