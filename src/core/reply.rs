//! What operations answer.

use std::sync::Arc;

use super::Ms;
use super::ids::{LeaseId, TaskId};
use super::task::{RunResult, TaskSpec, TaskState};
use super::worker::Worker;

macro_rules! replies {
    ($($name:ident($type:ty)),+ $(,)?) => {
        /// Any of them.
        // It is moved a few times; a box would cost every command an allocation.
        #[allow(clippy::large_enum_variant)]
        #[derive(Clone, Debug)]
        pub enum Reply {
            $($name($type),)+
        }

        $(impl From<$type> for Reply {
            fn from(reply: $type) -> Self {
                Self::$name(reply)
            }
        }

        impl TryFrom<Reply> for $type {
            type Error = Reply;

            fn try_from(reply: Reply) -> Result<Self, Reply> {
                match reply {
                    Reply::$name(reply) => Ok(reply),
                    other => Err(other),
                }
            }
        })+
    };
}

replies! {
    Created(Vec<CreatedTask>),
    Leased(Leased),
    Pushed(Pushed),
    Claimed(Claimed),
    Task(TaskState),
    RenewedLeases(RenewedLeases),
    Completed(Completed),
    Recorded(Recorded),
    Worker(ChangedWorker),
    Due(Due),
    Reevaluated(Reevaluated),
    Done(()),
}

#[derive(Clone, Debug)]
pub struct CreatedTask {
    pub spec: Arc<TaskSpec>,
    pub state: TaskState,
    /// It was there already, by its idempotency key.
    pub existed: bool,
}

#[derive(Clone, Debug)]
pub struct Leased {
    pub task: TaskState,
    pub worker: Worker,
    pub active_leases: i64,
}

#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Pushed {
    Leased(Leased),
    /// Something blocks the task.
    Parked(TaskState),
}

#[derive(Clone, Debug)]
pub struct Claimed {
    pub worker: Worker,
    pub leased: Vec<TaskState>,
    /// Candidates that could not be had: others took them, or something blocks them. There may be tasks behind them.
    pub missed: usize,
    /// Of those, the ones that another program keeps locked.
    pub locked: Vec<TaskId>,
}

#[derive(Clone, Debug)]
pub struct RenewedLeases {
    pub renewed: Vec<LeaseId>,
    pub lost: Vec<LeaseId>,
    /// Tasks of the renewed leases that are to be cancelled.
    pub cancel: Vec<TaskId>,
}

#[derive(Clone, Debug)]
pub struct Completed {
    pub task: TaskState,
    pub result: StoredResult,
}

#[derive(Clone, Debug)]
pub enum StoredResult {
    Now(Arc<RunResult>),
    /// A repeat: what this lease's first completion stored.
    Before(LeaseId),
}

#[derive(Clone, Debug)]
pub struct Recorded {
    /// The number of the task's newest event.
    pub newest: i64,
}

#[derive(Clone, Debug)]
pub struct ChangedWorker {
    pub worker: Worker,
    pub created: bool,
    pub active_leases: i64,
}

#[derive(Clone, Copy, Debug)]
pub struct Reevaluated {
    /// `false`: another program keeps some of the tasks locked, and the wake-up stays where it is.
    pub is_whole: bool,
}

/// Of what is done when its time has come.
#[derive(Clone, Copy, Debug)]
pub enum Due {
    Done,
    /// There is nothing to do before this time.
    Later(Ms),
}
