//! Runs many seeds, on all cores.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::{Outcome, Plan};

/// The number of failed seeds after which no more are started.
const ENOUGH: usize = 5;

/// Runs the plans of the first `count` seeds, or of those that `SIMULATION_SEEDS` names: a range `from..to`, or a single seed such as `17`.
/// If any run has complaints, prints them and panics.
pub fn run_seeds(count: u64, plan_of: impl Fn(u64) -> Plan + Sync, run: impl Fn(&Plan) -> Outcome + Sync) {
    let seeds = seeds(count);
    let started = Instant::now();
    let (next, commits, runs) = (AtomicU64::new(seeds.start), AtomicU64::new(0), AtomicU64::new(0));
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || failed.lock().unwrap().len() >= ENOUGH {
                        return;
                    }
                    let plan = plan_of(seed);
                    let outcome = run(&plan);
                    commits.fetch_add(outcome.commits, Ordering::Relaxed);
                    runs.fetch_add(outcome.runs as u64, Ordering::Relaxed);
                    if !outcome.violations.is_empty() {
                        failed.lock().unwrap().push((plan, outcome));
                    }
                }
            });
        }
    });
    let (commits, runs) = (commits.into_inner(), runs.into_inner());
    println!("{} seeds, {commits} commits, {runs} runs, {:?}", seeds.end - seeds.start, started.elapsed());
    let failed = failed.into_inner().unwrap();
    for (plan, outcome) in &failed {
        println!("\nSIMULATION_SEEDS={} fails: {plan:?}\n", plan.seed);
        outcome.violations.iter().for_each(|complaint| println!("{complaint}\n"));
    }
    assert!(failed.is_empty(), "{} seeds fail; SIMULATION_SEEDS=… runs one again", failed.len());
}

fn seeds(count: u64) -> Range<u64> {
    let Ok(text) = std::env::var("SIMULATION_SEEDS") else { return 0..count };
    let number = |text: &str| text.parse().expect("SIMULATION_SEEDS is a number or a range such as 0..1000");
    match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&text)..number(&text) + 1,
    }
}
