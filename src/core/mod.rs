//! The state model and its rules: pure, synchronous, without a clock, randomness or I/O.
//!
//! Everything that changes a task, a lease or a worker is an operation ([`op`]). [`decide`](decide::decide) applies one to a
//! [`WorkingSet`](working_set::WorkingSet) of loaded rows. It answers the operation, rejects it, or asks for more rows. The engine runs it
//! on rows of the database; tests and the model checker run it on rows that they make up.

#![warn(missing_docs, unreachable_pub)]

pub mod agent_queue;
pub mod api_key;
mod arguments;
pub mod audit;
pub mod backoff;
pub mod cache;
pub mod command;
pub mod control_plane;
pub mod decide;
pub mod event;
pub mod file;
pub mod ids;
pub mod limits;
pub mod masked_urls;
pub mod namespace;
pub mod op;
mod operation;
pub mod origin;
pub mod pause;
pub mod placement;
mod preconditions;
pub mod project;
pub mod question;
pub mod reconciler;
mod rejection;
pub mod reply;
pub mod requirement;
mod row_keys;
pub mod run_result;
pub mod similar;
pub mod task;
pub mod task_limits;
pub mod trace_context;
pub mod usage;
pub mod wakeup;
mod words;
pub mod worker;
pub mod working_set;

/// Milliseconds since the Unix epoch, which is the unit of all times in the API.
pub type Ms = i64;
/// The length of a day.
pub const DAY_MS: Ms = 86_400_000;
