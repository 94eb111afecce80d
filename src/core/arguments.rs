//! The arguments of those operations that other crates build, too.

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

/// A period after an outage in which no lease ends, even if it has expired, because nobody could renew leases during the outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grace {
    /// When service resumed, by the database's clock.
    pub resumed_at: Ms,
    /// Leases do not end for this long after `resumed_at`, or for their TTL if that is shorter.
    pub grace_ms: i64,
    /// When the lease was found to be due. If the current time is far from it, the clock has stepped or the command has waited long, so it
    /// is unknown whether the lease could have been renewed in between.
    pub found_due_at: Option<Ms>,
}

/// The workers that a lease call may choose from.
#[derive(Clone, Debug)]
pub enum Choice {
    /// This worker alone, if it may run the task and has a free slot.
    Named(WorkerId),
    /// The best of these workers. `context` is the task's context, if the caller knows it.
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
    /// Tasks that seemed ready for this worker, best first. There are more than `max` if some of them may be blocked.
    pub candidates: Vec<TaskId>,
    /// The maximum number of new leases.
    pub max: usize,
    /// Leases that the worker already has. Its other leases from earlier claims are delivered again. `None` if the request did not list
    /// any.
    pub held: Option<Vec<LeaseId>>,
    /// The agent that claims; `None` if it did not send its instance.
    pub instance: Option<InstanceId>,
    /// The TTL of the new leases, in ms.
    pub ttl_ms: i64,
}

/// Who acts on a lease, as the request names it: by the lease's id, by the worker that holds it, by both, or by neither.
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
    /// The location of the output, and its beginning.
    pub stored: StoredObject,
    /// The completion must be decided before this time. Cleanup of objects without an artifact starts only later, so it never removes an
    /// object that an artifact will refer to.
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
    /// How many tokens the run used in total; `None` if the agent did not report it.
    pub tokens_used: Option<i64>,
    /// The artifact type of the output, as the client names it; `LLM_RESULT` by default.
    pub artifact_type: String,
    /// Tags of the artifact, as the client names them.
    pub artifact_tags: Vec<String>,
    /// What went wrong without making the run fail, for people.
    pub warnings: Vec<String>,
    /// The output, if it was already written to the object store. `output` is `None` then.
    pub object: Option<ArtifactObject>,
    /// Why the run failed. `None` counts as `agent_error` if the run failed.
    pub reason: Option<Reason>,
    /// Whether the task is queued again after an error, as long as attempts and budget remain.
    pub retryable: bool,
    /// The earliest time of the next attempt, if the task is queued again; `None`: after a backoff.
    pub retry_at: Option<Ms>,
    /// Whether the attempt is given back if the task is queued again, so that it does not count towards `max_attempts`. The number of
    /// give-backs is limited.
    pub keep_attempt: bool,
    /// What the run used; `None` if the agent did not report it.
    pub usage: Option<Usage>,
    /// The conversation of the agent, which later tasks of the context continue; `None` if the run reported none.
    pub session_id: Option<String>,
    /// The model that the run used.
    pub model: Option<String>,
    /// The `seq` of the run's last event; `None` if no event will follow.
    pub last_event_seq: Option<i64>,
    /// The branch that the run has made in the task's project.
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
    /// Its position among the events of the lease, numbered by the sender. Events that were sent before are skipped.
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
    /// As far as the server can tell, the agent does not have the task. The task goes back to the queue, and the attempt does not count.
    /// With `unless_running`, the agent may have started the run: if a heartbeat has arrived, the lease stays.
    Undelivered {
        /// Why it could not be delivered, for people.
        message: String,
        /// Whether the agent may have received the task. If so, a task that is running by now stays with it.
        unless_running: bool,
    },
}

/// Why a worker is marked offline.
#[derive(Clone, Debug)]
pub enum Loss {
    /// It was not seen for `for_ms`. Service resumed at `served_since`, and only the time since then counts. The exception: service resumed
    /// because this replica started (`has_started`), and the worker had already been silent for `for_ms` by then.
    Silent {
        /// The silence, in ms, after which a worker is considered lost.
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
    /// The pod that it ran in has ended.
    PodEnded,
}

/// A registration, or an entry of the control plane's list. A field that is `None` stays unchanged.
#[derive(Clone, Debug, Default)]
pub struct WorkerChange {
    /// The name of the worker that is registered or listed.
    pub id: WorkerId,
    /// The URL of its agent; empty removes the URL.
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
    /// The agents for which it has profiles; `Some(None)` if it does not report them.
    pub profiles: Option<Option<Vec<String>>>,
    /// The Kubernetes namespaces whose tasks it serves. A later change can't lift this limit.
    pub namespaces: Option<Vec<String>>,
    /// Whether it can clone any project.
    pub git: Option<bool>,
    /// `Some(None)` for all that `git` allows.
    pub projects: Option<Option<Vec<String>>>,
    /// Further capabilities of the worker.
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
    /// How many observations its memory database has. Only the control plane's list reports it.
    pub obs_count: Option<i64>,
    /// The digest of its memory database. Only the control plane's list reports it.
    pub db_sha: Option<String>,
    /// Why it takes no tasks, or no tasks of some agents. An empty list ends its pauses.
    pub pauses: Option<Vec<Pause>>,
    /// The agent that registers. The change is refused if another agent has the name and is not offline.
    pub instance: Option<InstanceId>,
    /// Who makes the change, for the audit trail.
    pub actor: Actor,
}

/// A change of a queue's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChange {
    /// The queue grants no more leases.
    Pause,
    /// The queue grants leases again.
    Resume,
    /// The maximum number of active leases; `None` removes the limit.
    Limit(Option<i64>),
}

/// A change by which an administrator takes a worker out of service, or back into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CordonChange {
    /// It gets no new tasks. Its current runs go on.
    Cordon,
    /// It gets tasks again, and draining ends.
    Uncordon,
    /// It gets no new tasks. Its agent hands back the runs that are still going on after its grace period.
    Drain,
}
