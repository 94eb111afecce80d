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
    /// This worker alone, if it may run the task and has a free slot.
    Named(WorkerId),
    /// The best of these workers; `context` is the task's context, if the caller knows it.
    Among {
        /// The names of the workers to look at first; if none of them fits, all workers are loaded.
        workers: Vec<WorkerId>,
        /// The context whose last worker is preferred.
        context: Option<String>,
    },
}

/// The request of a worker for tasks.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The worker that claims, and gets the leases.
    pub worker: WorkerId,
    /// Tasks that looked ready for this worker, best first. There are more than `max` if some of them may be blocked.
    pub candidates: Vec<TaskId>,
    /// The maximum number of new leases.
    pub max: usize,
    /// Leases that the worker knows. Its other leases made by claims are delivered again. `None` if the request did not list any.
    pub held: Option<Vec<LeaseId>>,
    /// The agent that claims; `None` if it does not tell.
    pub instance: Option<InstanceId>,
    /// The TTL of the new leases, in ms.
    pub ttl_ms: i64,
}

/// Who acts on a lease, as named in the request: the lease's id, the worker that holds it, both, or neither.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holder {
    /// The id of the lease; `None`: whichever is active.
    pub lease: Option<LeaseId>,
    /// The worker that must have the lease; `None`: any.
    pub worker: Option<WorkerId>,
}

/// An output that was written to the object store, and the id of the artifact under which it was written.
#[derive(Clone, Debug)]
pub struct ArtifactObject {
    /// The artifact that will refer to the object.
    pub artifact_id: uuid::Uuid,
    /// Where the output is, and how it begins.
    pub stored: StoredObject,
    /// The completion must be decided before this time. Objects without an artifact are removed later than this, so none is that an artifact
    /// will refer to.
    pub until: Ms,
}

/// The end of a run, as its worker reports it.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The task that was run.
    pub task: TaskId,
    /// Who reports it: the lease, the worker, or both.
    pub holder: Holder,
    /// Whether the run succeeded.
    pub status: Outcome,
    /// What the run answered; `None`: nothing, or it is in `object`.
    pub output: Option<String>,
    /// What went wrong, for people.
    pub error_message: Option<String>,
    /// How long the run took, in ms.
    pub duration_ms: i64,
    /// How many tokens the run used in all; `None`: not told.
    pub tokens_used: Option<i64>,
    /// What kind of artifact the output is, as the client names it; `LLM_RESULT` by default.
    pub artifact_type: String,
    /// Tags of the artifact, as the client names them.
    pub artifact_tags: Vec<String>,
    /// What went wrong without making the run fail, for people.
    pub warnings: Vec<String>,
    /// The output, if it was written to the object store before; `output` is `None` then.
    pub object: Option<ArtifactObject>,
    /// Why the run failed; `None` in an error counts as `agent_error`.
    pub reason: Option<Reason>,
    /// Whether the task is queued again after an error, as long as attempts and budget remain.
    pub retryable: bool,
    /// If the task is queued again: not before this time; `None`: after a backoff.
    pub retry_at: Option<Ms>,
    /// If the task is queued again: the attempt does not count towards `max_attempts`, as long as it may be given back.
    pub keep_attempt: bool,
    /// What the run used; `None`: not known.
    pub usage: Option<Usage>,
    /// The conversation of the agent, which later tasks of the context continue; `None`: the run told of none.
    pub session_id: Option<String>,
    /// The model that the run used.
    pub model: Option<String>,
    /// The `seq` of the run's last event; `None`: no event is to come.
    pub last_event_seq: Option<i64>,
    /// The branch and the commit in the task's project that the run has made.
    pub branch: Option<String>,
    /// The last commit on this branch after the run.
    pub commit: Option<String>,
}

impl Completion {
    /// Why the run failed; `None`: it succeeded.
    pub fn failed_for(&self) -> Option<Reason> {
        (self.status == Outcome::Error).then(|| self.reason.unwrap_or(Reason::AgentError))
    }
}

/// An event of a run, as its agent sends it.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// Its position in the events of the lease, numbered by the sender. What has been sent before is skipped.
    pub seq: i64,
    /// What the event is about.
    pub kind: EventKind,
    /// When it happened, by the sender's clock.
    pub at: Ms,
    /// JSON text, kept as it was received.
    pub data: String,
}

/// How a push failed.
#[derive(Clone, Debug)]
pub enum PushEnd {
    /// The agent refused the task, so the task fails.
    Refused {
        /// What the agent answered, for people.
        message: String,
    },
    /// As far as is known, the agent does not have the task, so it goes back to the queue and the attempt does not count. With
    /// `unless_running`, the agent may have started the run; if a heartbeat has arrived, the lease goes on.
    Undelivered {
        /// Why it could not be delivered, for people.
        message: String,
        /// Whether the agent may have got the task: then a task that runs by now stays with it.
        unless_running: bool,
    },
}

/// Why a worker is marked offline.
#[derive(Clone, Debug)]
pub enum Loss {
    /// It was not seen for `for_ms`. Service resumed at `served_since`: only the time since then counts, unless it resumed because this
    /// replica started (`has_started`), and the worker had not been seen for that long by then.
    Silent {
        /// The silence, in ms, after which a worker is lost.
        for_ms: i64,
        /// When service resumed, by the database's clock.
        served_since: Ms,
        /// Whether service resumed then because this replica started.
        has_started: bool,
    },
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
    /// The name of the worker that is registered or listed.
    pub id: WorkerId,
    /// Where the server reaches its agent; empty removes the URL.
    pub url: Option<String>,
    /// Whether it is there and takes tasks.
    pub status: Option<WorkerStatus>,
    /// Whether it can run the Claude CLI.
    pub claude_cli: Option<bool>,
    /// How many tasks it runs at a time.
    pub max_concurrency: Option<i64>,
    /// Its labels, for people.
    pub labels: Option<Vec<String>>,
    /// `Some(None)` for all.
    pub agents: Option<Option<Vec<String>>>,
    /// The agents for which it has profiles; `Some(None)` if it does not tell.
    pub profiles: Option<Option<Vec<String>>>,
    /// The Kubernetes namespaces whose tasks it serves. A change can't lift this limit again.
    pub namespaces: Option<Vec<String>>,
    /// Whether it can clone any project.
    pub git: Option<bool>,
    /// `Some(None)` for all that `git` allows.
    pub projects: Option<Option<Vec<String>>>,
    /// What else the worker can do.
    pub other_capabilities: Option<BTreeMap<String, String>>,
    /// Its addresses, for people.
    pub ip_addrs: Option<Vec<String>>,
    /// The version of its agent.
    pub agent_version: Option<String>,
    /// Its operating system, for people.
    pub os_info: Option<String>,
    /// How its agent was installed, for people.
    pub install_method: Option<String>,
    /// Whether the server pushes tasks to it by itself.
    pub dispatch: Option<DispatchMode>,
    /// How many observations its memory database has; only the control plane's list tells.
    pub obs_count: Option<i64>,
    /// The digest of its memory database; only the control plane's list tells.
    pub db_sha: Option<String>,
    /// Why it takes no tasks, or none of some agents; an empty list ends its pauses.
    pub pauses: Option<Vec<Pause>>,
    /// The agent that registers. If another one has the name and is not offline, the change is refused.
    pub instance: Option<InstanceId>,
    /// Who makes the change, for the audit trail.
    pub actor: Actor,
}

/// What is changed of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChange {
    /// No more leases of the queue are made.
    Pause,
    /// Leases of the queue are made again.
    Resume,
    /// The most active leases; `None` removes the limit.
    Limit(Option<i64>),
}

/// What is changed of a worker that an administrator takes out of service, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CordonChange {
    /// It gets no new tasks; what it runs goes on.
    Cordon,
    /// It gets tasks again, and is not drained any more.
    Uncordon,
    /// It gets no new tasks, and its agent hands back the runs that are still going on after its grace.
    Drain,
}
