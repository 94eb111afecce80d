//! A simulation of the control plane: the whole engine and the reconcilers of several replicas run in one thread over a database in
//! memory, on a virtual clock. One seed decides everything: what is asked for, how long each statement takes, what gets lost, which
//! replica freezes or dies, when the database goes away and when its clock steps. The same seed gives the same run again.
//!
//! First there is trouble, then peace. All the while the rules of the state model must hold; in peace every promise of liveness must:
//! nothing ready waits beside a claim that could have it, nothing due is left, order is kept; and at the end every replica's cache
//! equals the database.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod actors;
pub mod chaos;
pub mod database;
pub mod judge;
pub mod mirror;
pub mod plan;
pub mod run;
pub mod seeds;
pub mod shared;
pub mod writer;

pub use plan::Plan;
pub use run::{Outcome, run, run_beside};
pub use seeds::run_seeds;
