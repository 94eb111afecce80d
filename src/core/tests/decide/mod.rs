//! What each command does to a task or a worker in each state, as tables.
//!
//! A row contains the new state, the leases that ended, and the new audit entries with their actors; `✗` is a rejection. Every halt and
//! every rejection is checked to leave the working set and the database unchanged.

mod api_keys;
mod budgets;
mod cancel_and_requeue;
mod cases;
mod completions;
mod contexts;
mod control_plane;
mod editing;
mod files;
mod instances;
mod lease_calls;
mod namespaces;
mod projects;
mod pushes;
mod questions;
mod queues;
mod quotas;
mod readiness;
mod signs_of_life;
mod suspension;
mod table;
mod task_projects;
mod waking;
mod workers;
