//! Runs the simulation. `SIMULATION_SEEDS=from..to` runs these seeds instead of the usual ones, `SIMULATION_SEEDS=17` a single one.
// A test may panic, because that is how it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bloom_simulation::{Plan, run, run_seeds};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of seeds in a usual test run.
const SEEDS: u64 = 2_000;

#[test]
fn every_promise_holds_in_every_run() {
    run_seeds(SEEDS, Plan::of, run);
}

#[test]
fn a_seed_runs_the_same_again() {
    for seed in [1, 2, 3, 5, 8] {
        let (one, two) = (run(&Plan::of(seed)), run(&Plan::of(seed)));
        assert_eq!((one.trace, one.commits, one.runs), (two.trace, two.commits, two.runs), "seed {seed}");
    }
}
