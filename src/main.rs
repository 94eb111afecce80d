//! `bloom-runtime`: see [`bloom_runtime::cli`].

use std::process::ExitCode;

/// Faster than the platform's own with the many small pieces that requests are made of.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    bloom_runtime::cli::run()
}
