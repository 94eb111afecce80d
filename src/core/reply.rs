//! The replies of operations.

use std::sync::Arc;

use super::Ms;
use super::agent_queue::AgentQueue;
use super::api_key::ApiKey;
use super::control_plane::{self, Agent, Job, Role};
use super::file::File;
use super::ids::{LeaseId, TaskId};
use super::project::Project;
use super::question::Answer;
use super::rejection::Rejection;
use super::run_result::RunResult;
use super::task::{TaskSpec, TaskState};
use super::worker::Worker;

macro_rules! replies {
    ($($name:ident($type:ty)),+ $(,)?) => {
        /// Any reply.
        // A reply is moved a few times; boxing it would cost every command an allocation.
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
    Asked(Asked),
    Worker(ChangedWorker),
    Queue(AgentQueue),
    Due(Due),
    Reevaluated(Reevaluated),
    Key(ApiKey),
    Project(Project),
    Agent(Agent),
    Role(Role),
    ChangedProject(ChangedProject),
    Memory(StoredMemory),
    Job(Job),
    File(AddedFile),
    Done(()),
}

#[derive(Clone, Debug)]
pub struct CreatedTask {
    pub spec: Arc<TaskSpec>,
    pub state: TaskState,
    /// The task existed already; it was found by its idempotency key.
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
    /// The task is blocked, and was parked.
    Parked(TaskState),
}

#[derive(Clone, Debug)]
pub struct Claimed {
    pub worker: Worker,
    pub leased: Vec<TaskState>,
    /// The number of candidates that could not be leased because they were taken or blocked. There may be more tasks behind them.
    pub missed: usize,
    /// The missed candidates that another program keeps locked.
    pub locked: Vec<TaskId>,
    /// The agents of candidates that were not leased because their queues are closed. There may be tasks of other agents behind them.
    pub closed: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct RenewedLeases {
    pub renewed: Vec<LeaseId>,
    pub lost: Vec<LeaseId>,
    /// Tasks of the renewed leases whose cancellation was requested.
    pub cancel: Vec<TaskId>,
    /// Those of the renewed leases.
    pub cancel_leases: Vec<LeaseId>,
    /// Tasks of the renewed leases with an answer that their agent has not taken yet.
    pub answered: Vec<TaskId>,
}

#[derive(Clone, Debug)]
pub struct Completed {
    pub task: TaskState,
    pub result: StoredResult,
}

#[derive(Clone, Debug)]
pub enum StoredResult {
    Now(Arc<RunResult>),
    /// The completion is a repeat: the result is the one that this lease's first completion stored.
    Before(LeaseId),
    /// The lease had expired, and another one has the task, or it has ended: the completion is refused, but its usage was added.
    UsageOnly(Rejection),
}

#[derive(Clone, Debug)]
pub struct Recorded {
    /// The number of the task's newest event.
    pub newest: i64,
}

#[derive(Clone, Debug)]
pub struct Asked {
    /// What a person has answered.
    pub answer: Option<Answer>,
    /// The question was over before this call, and is not asked again.
    pub is_over: bool,
}

#[derive(Clone, Debug)]
pub struct ChangedWorker {
    pub worker: Worker,
    pub created: bool,
    pub active_leases: i64,
}

/// A project of the control plane, and how many nodes it has.
#[derive(Clone, Debug)]
pub struct ChangedProject {
    pub project: control_plane::Project,
    pub node_count: i64,
}

#[derive(Clone, Debug)]
pub struct StoredMemory {
    /// The newest version.
    pub version: i64,
    /// `false`: that version has the same content, and nothing was stored.
    pub is_new: bool,
    pub job: Job,
}

#[derive(Clone, Debug)]
pub struct AddedFile {
    pub file: File,
    /// `false`: the same lease had uploaded it before, and nothing was added.
    pub is_new: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Reevaluated {
    /// `false` if another program keeps some of the tasks locked; then the wake-up stays in the database.
    pub is_whole: bool,
}

/// The reply of commands that act only once something is due.
#[derive(Clone, Copy, Debug)]
pub enum Due {
    Done,
    /// Nothing is due before this time.
    Later(Ms),
}
