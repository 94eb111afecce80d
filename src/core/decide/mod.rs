//! The rules: what each command does to its rows.
//!
//! Every function first checks whether it may act and has all rows that it needs, and only then changes something. A command that is
//! rejected, or that halts for more rows, therefore leaves the working set unchanged.

pub(super) mod accounts;
pub(super) mod api_keys;
pub(super) mod append_events;
pub(super) mod cancel;
pub(super) mod change_worker;
pub(super) mod complete;
pub(super) mod configure;
pub(super) mod contexts;
pub(super) mod control_plane;
pub(super) mod cordon;
pub(super) mod create;
pub(super) mod delete;
pub(super) mod edit;
pub(super) mod expire;
pub(super) mod files;
mod finish;
pub(super) mod lease;
pub(super) mod lease_end;
pub(super) mod presence;
pub(super) mod projects;
pub(super) mod push;
pub(super) mod questions;
pub(super) mod queues;
pub(super) mod quotas;
mod readiness;
pub(super) mod record_audit;
pub(super) mod reevaluate;
pub(super) mod remove_worker;
pub(super) mod renew;
pub(super) mod requeue;
pub(super) mod suspend;

pub use configure::{MEMBRIDGE_ADMIN_KEY, MEMBRIDGE_SERVER_URL};

use super::command::{Command, Operation, Requester};
use super::working_set::{Halt, WorkingSet};

/// Applies one command. `Ok` may have changed the working set; `Err` has not.
///
/// # Errors
/// The errors of the operation.
pub fn decide<O: Operation>(set: &mut WorkingSet, command: &Command<O>) -> Result<O::Reply, Halt> {
    set.by.clone_from(&command.by);
    let answer = command.op.decide(set);
    set.by = Requester::default();
    answer
}
