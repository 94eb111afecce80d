//! Why an operation is refused.

use std::fmt;

use super::ids::{TaskId, WorkerId};
use super::limits::TASK_LABELS;
use super::task::{Parked, Status};

/// Why a command was rejected. It then changed nothing. The texts are part of the API.
#[derive(Clone, Debug, PartialEq)]
pub enum Rejection {
    TaskNotFound,
    TaskOrLeaseNotFound,
    LeaseNotFound,
    WorkerNotFound,
    NotTheActiveLease(String),
    WrongStatus {
        status: Status,
        expected: &'static str,
    },
    CannotRequeue(Status),
    CannotCancel(Status),
    CannotEdit(Status),
    CannotDelete(Status),
    /// The task would have more labels than it may have.
    TooManyLabels(usize),
    NotReady(Parked),
    NoWorker,
    /// The worker has no URL to push to.
    NoUrl(WorkerId),
    UnknownDependencies(Vec<TaskId>),
    IdempotencyConflict,
    /// The leadership under which the command was sent is over.
    NotLeader,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TaskNotFound => f.write_str("Task not found"),
            Self::TaskOrLeaseNotFound => f.write_str("Task or lease not found"),
            Self::LeaseNotFound => f.write_str("Lease not found or already expired"),
            Self::WorkerNotFound => f.write_str("Worker not found"),
            Self::NotTheActiveLease(named) => write!(f, "Lease '{named}' is not the task's active lease"),
            Self::WrongStatus { status, expected } => write!(f, "Task status is '{status}', expected {expected}"),
            Self::CannotRequeue(status) => write!(f, "Cannot requeue task with status '{status}'"),
            Self::CannotCancel(status) => write!(f, "Cannot cancel task with status '{status}'"),
            Self::CannotEdit(status) => write!(f, "Cannot edit task with status '{status}': only a queued task can be edited"),
            Self::CannotDelete(status) => write!(f, "Cannot delete task with status '{status}': cancel it first"),
            Self::TooManyLabels(count) => write!(f, "The task would have {count} labels; at most {TASK_LABELS} are allowed"),
            Self::NotReady(parked) => write!(f, "Task is not ready: {parked}"),
            Self::NoWorker => f.write_str("No available worker with free capacity"),
            Self::NoUrl(worker) => write!(f, "Worker \"{worker}\" has no URL configured"),
            Self::UnknownDependencies(ids) => {
                f.write_str("unknown task")?;
                ids.iter().try_for_each(|id| write!(f, " {id}"))
            }
            Self::IdempotencyConflict => f.write_str("Idempotency key was used for another task: context_id, agent_slug or prompt differ"),
            Self::NotLeader => f.write_str("Leadership is over"),
        }
    }
}
