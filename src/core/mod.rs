//! The state model and its rules: pure, synchronous, without a clock, randomness or I/O.
//!
//! Everything that changes a task, a lease or a worker is an operation ([`op`]); [`decide`](decide::decide) applies one to a
//! [`WorkingSet`](working_set::WorkingSet) of rows loaded for it and either answers, rejects, or names rows that it needs as well.
//! The engine runs it over real rows, the tests and the model checker over invented ones.

pub mod audit;
pub mod backoff;
pub mod cache;
pub mod command;
pub mod decide;
pub mod ids;
mod keys;
pub mod limits;
pub mod op;
pub mod placement;
pub mod reply;
pub mod task;
pub mod wakeup;
pub mod worker;
pub mod working_set;

/// Milliseconds since the Unix epoch, as the whole API speaks of time.
pub type Ms = i64;
