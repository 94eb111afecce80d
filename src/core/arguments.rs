//! What operations are told.

use super::Ms;
use super::ids::{LeaseId, TaskId, WorkerId};
use super::task::{EventKind, Outcome, Reason, Usage};
use super::worker::{DispatchMode, WorkerStatus};

/// No lease ends before this, though its own time may be over: for a while nobody could renew it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grace {
    /// When service began again, by the database's clock.
    pub resumed_at: Ms,
    /// How long after that leases last at least, or their TTL where that is shorter.
    pub grace_ms: i64,
    /// When the lease was found to be due. Should the clock have moved far from there, it has stepped, or the command waited for long:
    /// then nobody knows whether the lease could be renewed meanwhile.
    pub found_due_at: Option<Ms>,
}

/// Which worker a lease call wants.
#[derive(Clone, Debug)]
pub enum Choice {
    Named(WorkerId),
    /// The best of these; `context` is the task's, where it is known beforehand.
    Among {
        workers: Vec<WorkerId>,
        context: Option<String>,
    },
}

#[derive(Clone, Debug)]
pub struct Claim {
    pub worker: WorkerId,
    /// Tasks that looked ready for it, best first; more than `max` where some of them may be blocked.
    pub candidates: Vec<TaskId>,
    /// How many new leases it is to get.
    pub max: usize,
    /// Leases that the worker knows; its other claimed ones are delivered again. `None`: it did not say.
    pub held: Option<Vec<LeaseId>>,
    pub ttl_ms: i64,
}

/// Who acts on a lease: nobody named, the lease's id, or the worker that should hold it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holder {
    pub lease: Option<LeaseId>,
    pub worker: Option<WorkerId>,
}

#[derive(Clone, Debug)]
pub struct Completion {
    pub task: TaskId,
    pub holder: Holder,
    pub status: Outcome,
    pub output: Option<String>,
    pub error_message: Option<String>,
    pub duration_ms: i64,
    pub tokens_used: Option<i64>,
    pub artifact_type: String,
    pub artifact_tags: Vec<String>,
    pub reason: Option<Reason>,
    pub retryable: bool,
    pub retry_at: Option<Ms>,
    pub keep_attempt: bool,
    pub usage: Option<Usage>,
    pub session_id: Option<String>,
    pub model: Option<String>,
}

#[derive(Clone, Debug)]
pub struct NewEvent {
    pub seq: i64,
    pub kind: EventKind,
    pub at: Ms,
    pub data: String,
}

/// How a push failed.
#[derive(Clone, Debug)]
pub enum PushEnd {
    /// The agent said no: so does the task.
    Refused { message: String },
    /// The task is not with the agent, as far as anybody knows, and goes back to the queue unharmed.
    /// `unless_running`: the agent may have begun, and signs of life tell that it has.
    Undelivered { message: String, unless_running: bool },
}

/// Why a worker counts as lost.
#[derive(Clone, Debug)]
pub enum Loss {
    /// If it was not seen for so long, though somebody served since this time.
    Silent { for_ms: i64, served_since: Ms },
    /// Its agent does not answer; the text says why.
    Unreachable(String),
    /// Its agent was removed from the machine.
    Uninstalled,
}

/// A registration, or what the control plane lists. `None` keeps what is there.
#[derive(Clone, Debug, Default)]
pub struct WorkerChange {
    pub id: WorkerId,
    pub url: Option<String>,
    pub status: Option<WorkerStatus>,
    pub claude_cli: Option<bool>,
    pub max_concurrency: Option<i64>,
    pub labels: Option<Vec<String>>,
    pub agents: Option<Vec<String>>,
    pub ip_addrs: Option<Vec<String>>,
    pub agent_version: Option<String>,
    pub os_info: Option<String>,
    pub install_method: Option<String>,
    pub dispatch: Option<DispatchMode>,
    pub obs_count: Option<i64>,
    pub db_sha: Option<String>,
    /// `api`, `admin`, or `reconciler` for the control plane's listing.
    pub actor: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CordonWish {
    Cordon,
    Uncordon,
    Drain,
}
