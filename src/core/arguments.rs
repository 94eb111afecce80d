//! The arguments of operations, as far as other crates build them too.

use std::collections::BTreeMap;

use super::Ms;
use super::audit::Actor;
use super::event::EventKind;
use super::ids::{InstanceId, LeaseId, TaskId, WorkerId};
use super::pause::Pause;
use super::run_result::StoredObject;
use super::task::{Outcome, Reason};
use super::usage::Usage;
use super::worker::{DispatchMode, WorkerStatus};

/// A period after an outage in which no lease ends, even if it has expired: nobody could renew leases during the outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grace {
    /// When service resumed, by the database's clock.
    pub resumed_at: Ms,
    /// For this long after `resumed_at`, or for their TTL if that is shorter, leases do not end.
    pub grace_ms: i64,
    /// When the lease was found to be due. If the current time is far from it, the clock has stepped or the command has waited long, and it
    /// is unknown whether the lease could be renewed in between.
    pub found_due_at: Option<Ms>,
}

/// The workers among which a lease call chooses.
#[derive(Clone, Debug)]
pub enum Choice {
    Named(WorkerId),
    /// The best of these workers; `context` is the task's context, if the caller knows it.
    Among {
        workers: Vec<WorkerId>,
        context: Option<String>,
    },
}

#[derive(Clone, Debug)]
pub struct Claim {
    pub worker: WorkerId,
    /// Tasks that looked ready for this worker, best first. There are more than `max` if some of them may be blocked.
    pub candidates: Vec<TaskId>,
    /// The maximum number of new leases.
    pub max: usize,
    /// Leases that the worker knows. Its other leases made by claims are delivered again. `None` if the request did not list any.
    pub held: Option<Vec<LeaseId>>,
    /// The agent that claims; `None` if it does not tell.
    pub instance: Option<InstanceId>,
    pub ttl_ms: i64,
}

/// Who acts on a lease, as named in the request: the lease's id, the worker that holds it, both, or neither.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holder {
    pub lease: Option<LeaseId>,
    pub worker: Option<WorkerId>,
}

/// An output that was written to the object store, and the id of the artifact under which it was written.
#[derive(Clone, Debug)]
pub struct ArtifactObject {
    pub artifact_id: uuid::Uuid,
    pub stored: StoredObject,
    /// The completion must be decided before this time. Objects without an artifact are removed later than this, so none is that an artifact
    /// will refer to.
    pub until: Ms,
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
    pub warnings: Vec<String>,
    /// The output, if it was written to the object store before; `output` is `None` then.
    pub object: Option<ArtifactObject>,
    pub reason: Option<Reason>,
    pub retryable: bool,
    pub retry_at: Option<Ms>,
    pub keep_attempt: bool,
    pub usage: Option<Usage>,
    pub session_id: Option<String>,
    pub model: Option<String>,
    pub last_event_seq: Option<i64>,
    /// The branch and the commit in the task's project that the run has made.
    pub branch: Option<String>,
    pub commit: Option<String>,
}

impl Completion {
    /// Why the run failed; `None`: it succeeded.
    pub fn failed_for(&self) -> Option<Reason> {
        (self.status == Outcome::Error).then(|| self.reason.unwrap_or(Reason::AgentError))
    }
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
    /// The agent refused the task, so the task fails.
    Refused { message: String },
    /// As far as is known, the agent does not have the task, so it goes back to the queue and the attempt does not count. With
    /// `unless_running`, the agent may have started the run; if a heartbeat has arrived, the lease goes on.
    Undelivered { message: String, unless_running: bool },
}

/// Why a worker is marked offline.
#[derive(Clone, Debug)]
pub enum Loss {
    /// It was not seen for `for_ms`. Service resumed at `served_since`: only the time since then counts, unless it resumed because this
    /// replica started (`has_started`), and the worker had not been seen for that long by then.
    Silent { for_ms: i64, served_since: Ms, has_started: bool },
    /// Its agent does not answer; the text is the error.
    Unreachable(String),
    /// Its agent was removed from the machine.
    Uninstalled,
    /// The pod in which it ran has ended.
    PodEnded,
}

/// A registration, or an entry of the control plane's list. A field that is `None` stays unchanged.
#[derive(Clone, Debug, Default)]
pub struct WorkerChange {
    pub id: WorkerId,
    pub url: Option<String>,
    pub status: Option<WorkerStatus>,
    pub claude_cli: Option<bool>,
    pub max_concurrency: Option<i64>,
    pub labels: Option<Vec<String>>,
    /// `Some(None)` for all.
    pub agents: Option<Option<Vec<String>>>,
    pub namespaces: Option<Vec<String>>,
    pub git: Option<bool>,
    /// `Some(None)` for all that `git` allows.
    pub projects: Option<Option<Vec<String>>>,
    /// What else the worker can do.
    pub other_capabilities: Option<BTreeMap<String, String>>,
    pub ip_addrs: Option<Vec<String>>,
    pub agent_version: Option<String>,
    pub os_info: Option<String>,
    pub install_method: Option<String>,
    pub dispatch: Option<DispatchMode>,
    pub obs_count: Option<i64>,
    pub db_sha: Option<String>,
    pub pauses: Option<Vec<Pause>>,
    /// The agent that registers. If another one has the name and is not offline, the change is refused.
    pub instance: Option<InstanceId>,
    pub actor: Actor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChange {
    Pause,
    Resume,
    /// The most active leases; `None` removes the limit.
    Limit(Option<i64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CordonChange {
    Cordon,
    Uncordon,
    Drain,
}
