//! What each command does to a task or a worker in each state, as tables.
//!
//! A row says what the state became, which leases ended, what the audit trail tells and by whom; `✗` is a rejection. Every halt and
//! every rejection is checked to leave the working set and the database as they were.

mod cases;
mod completions;
mod lease_calls;
mod pushes;
mod readiness;
mod signs_of_life;
mod table;
mod task_ops;
mod waking;
mod workers;
