//! A simulation of the control plane: the whole engine and the reconcilers of several replicas run in one thread over a database in
//! memory, on a virtual clock. One seed decides everything: the requests, how long each statement takes, what gets lost, which
//! replica freezes or dies, when the database is unreachable and when its clock steps. The same seed reproduces the same run.
//!
//! A run begins with a phase of faults, and a quiet phase follows. The rules of the state model must always hold. In the quiet phase, the
//! promises of liveness must hold too: no ready task waits next to a claim that could take it, nothing that is due is left, and order is
//! kept. A watcher is never told an older state of an object after a newer one. At the end, the cache of every replica must equal the database,
//! and so must what its watchers keep.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod actors;
pub mod chaos;
pub mod database;
pub mod invariants;
pub mod mirror;
pub mod plan;
pub mod run;
pub mod seeds;
pub mod shared;
pub mod watcher;
pub mod writer;

pub use plan::Plan;
pub use run::{Outcome, run, run_beside};
pub use seeds::run_seeds;
