//! The program, once more under a name of its own: `tests/run` links it statically, from what is compiled for the tests.

#[path = "../src/cli/mod.rs"]
mod cli;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
