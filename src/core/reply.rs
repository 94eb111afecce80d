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
            $(
                /// The reply of the operations that return this type.
                $name($type),
            )+
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

/// A task that [`Create`](crate::op::Create) was asked for. It was either created by the call, or existed already.
#[derive(Clone, Debug)]
pub struct CreatedTask {
    /// The specification. For a task that existed already, it is the one of its creation.
    pub spec: Arc<TaskSpec>,
    /// The state of the task after the command.
    pub state: TaskState,
    /// Whether the task existed already; it was found by its idempotency key.
    pub existed: bool,
}

/// The reply of [`Lease`](crate::op::Lease): the task has the lease.
#[derive(Clone, Debug)]
pub struct Leased {
    /// The task with its lease.
    pub task: TaskState,
    /// The worker that has the lease.
    pub worker: Worker,
    /// How many slots of the worker are used, including that of this lease.
    pub active_leases: i64,
}

/// The reply of [`Push`](crate::op::Push).
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Pushed {
    /// The task has a lease, and must now be sent to the worker's agent.
    Leased(Leased),
    /// The task was blocked, so it was parked.
    Parked(TaskState),
}

/// The reply of [`Claim`](crate::op::Claim).
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The worker that claims. If it was lost, it is no longer.
    pub worker: Worker,
    /// The tasks that it gets: first leases of earlier claims whose delivery was lost, then leases that were made for this claim.
    pub leased: Vec<TaskState>,
    /// The number of candidates that could not be leased because they were taken or blocked. There may be more tasks behind them.
    pub missed: usize,
    /// The missed candidates that another program keeps locked.
    pub locked: Vec<TaskId>,
    /// The agents of candidates that were not leased because their queues are closed. There may be tasks of other agents behind them.
    pub closed: Vec<String>,
}

/// The reply of [`RenewLeases`](crate::op::RenewLeases). A lease that is in neither list is locked, and the worker asks again.
#[derive(Clone, Debug)]
pub struct RenewedLeases {
    /// Leases that were renewed.
    pub renewed: Vec<LeaseId>,
    /// Leases that have ended, or that the worker does not hold.
    pub lost: Vec<LeaseId>,
    /// Tasks of the renewed leases whose cancellation was requested.
    pub cancel: Vec<TaskId>,
    /// The leases of the tasks in `cancel`.
    pub cancel_leases: Vec<LeaseId>,
    /// Tasks of the renewed leases with an answer that their agent has not fetched yet.
    pub answered: Vec<TaskId>,
}

/// The reply of [`Completion`](crate::op::Completion).
#[derive(Clone, Debug)]
pub struct Completed {
    /// The task after the completion.
    pub task: TaskState,
    /// The result of the run.
    pub result: StoredResult,
}

/// What was done with a reported result.
#[derive(Clone, Debug)]
pub enum StoredResult {
    /// The call has stored this result.
    Now(Arc<RunResult>),
    /// The completion is a repeat. The result is the one that the first completion of this lease stored.
    Before(LeaseId),
    /// The lease had expired, and the task has another lease or has ended. The completion is refused, but its usage was added.
    UsageOnly(Rejection),
}

/// The reply of [`AppendEvents`](crate::op::AppendEvents).
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The number of the task's newest event.
    pub newest: i64,
}

/// The reply of [`AskPerson`](crate::op::AskPerson).
#[derive(Clone, Debug)]
pub struct Asked {
    /// The answer of a person; `None` if there is none yet.
    pub answer: Option<Answer>,
    /// Whether the question was already over before this call; it is not asked again.
    pub is_over: bool,
}

/// The reply of [`WorkerChange`](crate::op::WorkerChange) and [`Cordon`](crate::op::Cordon).
#[derive(Clone, Debug)]
pub struct ChangedWorker {
    /// The worker after the change.
    pub worker: Worker,
    /// Whether this call registered the worker, which did not exist before.
    pub created: bool,
    /// How many slots of the worker are used.
    pub active_leases: i64,
}

/// A project of the control plane, and how many nodes it has.
#[derive(Clone, Debug)]
pub struct ChangedProject {
    /// The project after the change.
    pub project: control_plane::Project,
    /// How many nodes the project has.
    pub node_count: i64,
}

/// The reply of [`StoreMemory`](crate::op::StoreMemory).
#[derive(Clone, Debug)]
pub struct StoredMemory {
    /// The newest version.
    pub version: i64,
    /// Whether the content is new. If not, the newest version already has it, and nothing was stored.
    pub is_new: bool,
    /// The record of the push, which is kept even if nothing was stored.
    pub job: Job,
}

/// The reply of [`AddFile`](crate::op::AddFile).
#[derive(Clone, Debug)]
pub struct AddedFile {
    /// The file that was added, or the first one with the same content.
    pub file: File,
    /// Whether the file is new. If not, the same lease had uploaded it before, and nothing was added.
    pub is_new: bool,
}

/// The reply of [`Reevaluate`](crate::op::Reevaluate).
#[derive(Clone, Copy, Debug)]
pub struct Reevaluated {
    /// Whether all tasks were re-evaluated. If not, another program keeps some of them locked, and the wake-up stays in the database.
    pub is_whole: bool,
}

/// The reply of commands that act only when something is due.
#[derive(Clone, Copy, Debug)]
pub enum Due {
    /// The command has acted, or nothing is left to do.
    Done,
    /// Nothing is due before this time.
    Later(Ms),
}
