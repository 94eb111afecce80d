//! The rules: what each command does to the rows it names.
//!
//! Every function here first finds out whether it may act and has all the rows it needs, and only then changes something: a command
//! that is rejected, or halts for more rows, has left the working set as it was.

pub(super) mod complete;
pub(super) mod create;
pub(super) mod expire;
mod finish;
pub(super) mod lease;
pub(super) mod lease_end;
pub(super) mod push;
mod readiness;
pub(super) mod reevaluate;
pub(super) mod running;
pub(super) mod task_ops;
pub(super) mod workers;

pub use task_ops::{MEMBRIDGE_ADMIN_KEY, MEMBRIDGE_SERVER_URL};

use super::command::{Command, Operation};
use super::working_set::{Halt, WorkingSet};

/// Applies one command. `Ok` may have changed the working set, `Err` has not.
///
/// # Errors
/// The operation's.
pub fn decide<O: Operation>(set: &mut WorkingSet, command: &Command<O>) -> Result<O::Reply, Halt> {
    set.request_id.clone_from(&command.request_id);
    command.op.decide(set)
}
