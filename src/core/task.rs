//! Tasks: the request ([`TaskSpec`], which never changes) and the progress ([`TaskState`], which the system writes).

use std::collections::BTreeMap;

use super::Ms;
use super::file::Input;
use super::ids::{InstanceId, LeaseId, TaskId, WorkerId, created_at, time_of};
use super::namespace::KubernetesObject;
use super::origin::Origin;
use super::project::TaskProject;
use super::question::Question;
use super::trace_context::TraceContext;
use super::usage::Usage;
use super::words::words;

words! {
    /// The state of a task.
    Status {
        Queued = "queued", Leased = "leased", Running = "running",
        Completed = "completed", Failed = "failed", Dead = "dead", Cancelled = "cancelled",
    }
}

impl Status {
    /// Whether the task has ended. Only a requeue, or the late completion of a dead task, changes that.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Leased | Self::Running)
    }

    /// Whether a lease holds the task.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Leased | Self::Running)
    }
}

words! {
    /// Why a queued task is not running yet, or a running one does not go on: `needs_human`, `worker_silent`.
    WaitingReason {
        NoWorker = "no_worker", NoCapacity = "no_capacity", NotBefore = "not_before", DependsOn = "depends_on",
        ExclusiveKey = "exclusive_key", SessionWorker = "session_worker", SessionOrder = "session_order", Cordoned = "cordoned",
        Paused = "paused", Limit = "limit", Suspended = "suspended", WorkerPaused = "worker_paused",
        NeedsHuman = "needs_human", Project = "project", WorkerSilent = "worker_silent",
    }
}
words! {
    /// The form of a task's output.
    Format { Json = "json", Text = "text" }
}
words! {
    /// Whether a task continues the conversation of its context, or runs on its own.
    Session { Context = "context", None = "none" }
}
/// The text by which a failure for [`Reason::Project`] shows that only the push failed. If it is found, users are advised to push by hand.
pub const NOT_PUSHED: &str = "can't be pushed";
/// The text by which a failure for [`Reason::Project`] shows that the worker could not get the repository. Other failures for this reason
/// are about the task, such as a `ref` that does not exist.
pub const NOT_FETCHED: &str = "the project's repository can't be fetched";

words! {
    /// Why a run, or a task, did not succeed.
    Reason {
        AgentError = "agent_error", Timeout = "timeout", Stalled = "stalled", Cancelled = "cancelled", RateLimited = "rate_limited",
        Overloaded = "overloaded", Auth = "auth", Billing = "billing", ModelUnavailable = "model_unavailable",
        BudgetExceeded = "budget_exceeded", BadOutput = "bad_output", WorkerLost = "worker_lost", SpawnFailed = "spawn_failed",
        DependencyFailed = "dependency_failed", OutOfMemory = "out_of_memory", WorkerDisk = "worker_disk",
        /// The prompt, or the conversation of its context, is longer than the model can read.
        ContextFull = "context_full",
        /// The API refuses the request as it is: another attempt would meet the same.
        InvalidRequest = "invalid_request",
        /// The model refuses to answer.
        Refused = "refused",
        /// The run filled the disk, or took more of it than it may.
        DiskLimit = "disk_limit",
        /// The repository, the ref or the worktree could not be used, or the branch could not be pushed.
        Project = "project",
        /// A file that the task is to have could not be put where it belongs.
        BadInput = "bad_input",
    }
}
words! {
    /// Why a queued task is not ready. Except for `Session` and `Reserved`, the word is the API's waiting reason.
    Parked {
        DependsOn = "depends_on",
        /// A client has suspended it.
        Suspended = "suspended",
        NotBefore = "not_before",
        /// An earlier task of its context has not finished.
        Session = "session",
        ExclusiveKey = "exclusive_key",
        /// Reserved for the worker that has its session: until `wake_at`, only that worker may claim it.
        Reserved = "reserved",
    }
}
words! {
    /// Whether a lease is active, or how it ended: `released` after a completion or a release.
    LeaseStatus { Active = "active", Expired = "expired", Released = "released", Failed = "failed" }
}

/// What the client asked for. It is written once. The fields that a client may change later (the priority, `not_before`, the labels and
/// `suspend`) have their current values in [`TaskState`] and their initial values here.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSpec {
    /// The id, assigned when the task is created. Ids sort in the order of creation.
    pub id: TaskId,
    /// The conversation that the task belongs to. Tasks with the same context share a directory on the worker, and prefer the same worker.
    pub context_id: String,
    /// The kind of agent that the task is for. It names the task's queue, which only workers that serve this agent receive tasks from.
    pub agent_slug: String,
    /// What the agent is asked to do.
    pub prompt: String,
    /// Files in the directory of the context, by path or glob, that the agent inserts into the prompt. Other texts are references.
    pub context_hints: Vec<String>,
    /// The time limit of each run, in seconds.
    pub timeout_sec: i64,
    /// The longest time limit, in seconds, that its profile may set instead of the default `timeout_sec`; `None` if the client set the
    /// limit itself.
    pub profile_timeout_max: Option<i64>,
    /// The US dollars that all attempts together may cost; 0 = no limit.
    pub budget: f64,
    /// The form of the output. With `json`, a run fails if its output is not JSON.
    pub desired_format: Format,
    /// The maximum number of attempts. An attempt that was given back does not count.
    pub max_attempts: i64,
    /// The priority, 0..=9; 9 is the most urgent.
    pub priority: i64,
    /// The earliest time at which it runs; `None`: it may run at once.
    pub not_before: Option<Ms>,
    /// Tasks that must be completed first. If one of them ends in any other way, this task is cancelled.
    pub depends_on: Vec<TaskId>,
    /// At most one task with this key is leased or running at a time; `None`: no other task excludes it.
    pub exclusive_key: Option<String>,
    /// A repeated creation with this key finds this task; `None`: each creation makes another task.
    pub idempotency_key: Option<String>,
    /// The names and values by which clients find the task.
    pub labels: BTreeMap<String, String>,
    /// Whether it continues the conversation of its context. The system runs such tasks of one context one after the other.
    pub session: Session,
    /// The model that the agent uses; `None` = the model of the agent's profile.
    pub model: Option<String>,
    /// How long after its end it is removed, in seconds; `None` = after the server's retention period.
    pub ttl_after_finished_sec: Option<i64>,
    /// The submit or member key that created it; `None` if another key did.
    pub owner: Option<String>,
    /// The team of this key when it created the task.
    pub team: Option<String>,
    /// Whether it was created suspended.
    pub suspend: bool,
    /// The Kubernetes object that it was created for.
    pub object: Option<KubernetesObject>,
    /// The trace that it belongs to.
    pub traceparent: Option<TraceContext>,
    /// The project in whose repository it runs.
    pub project: Option<TaskProject>,
    /// Files that its runs get.
    pub inputs: Vec<Input>,
    /// Globs that select the files to keep from its runs.
    pub outputs: Vec<String>,
}

/// The approximate size of a task in a database besides its texts: its rows, and their entries in indexes.
pub const TASK_BYTES: i64 = 2 << 10;

impl TaskSpec {
    /// The size of what the client wrote, plus [`TASK_BYTES`].
    pub fn bytes(&self) -> i64 {
        let labels = self.labels.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let lists = self.context_hints.iter().chain(&self.outputs).chain(self.inputs.iter().map(|input| &input.path));
        let texts = self.prompt.len() + labels + lists.map(String::len).sum::<usize>() + self.depends_on.len() * size_of::<TaskId>();
        TASK_BYTES.saturating_add(i64::try_from(texts).unwrap_or(i64::MAX))
    }
}

/// The lease that holds a task now. Ended leases are kept as [`PastLease`].
#[derive(Clone, Debug, PartialEq)]
pub struct ActiveLease {
    /// The fencing token. Heartbeats, completions and events carry it, and are refused if they carry the id of another lease.
    pub id: LeaseId,
    /// The worker that runs the task.
    pub worker_id: WorkerId,
    /// Which slot of the worker it takes; unique per worker.
    pub slot: i64,
    /// How the lease was made: by a call, a claim or a push.
    pub origin: Origin,
    /// When the lease was made.
    pub started_at: Ms,
    /// How long the lease lasts without a heartbeat, in ms.
    pub ttl_ms: i64,
    /// When the lease ends unless a heartbeat renews it.
    pub expires_at: Ms,
    /// When the expiry reconciler checks the lease, which is never later than its end. Only the reconciler moves this time, because
    /// heartbeats must not update an index.
    pub check_at: Ms,
    /// The latest time at which a lease from a claim or push ends, regardless of its heartbeats.
    pub hard_end_at: Option<Ms>,
    /// When the lease was last renewed; initially, when it was made.
    pub last_heartbeat: Ms,
    /// Whether the lease holds the task's context. At most one active lease per context does.
    pub holds_context: bool,
    /// The agent that claimed the lease. The lease is delivered again only to this agent. `None` if the agent is unknown.
    pub instance: Option<InstanceId>,
    /// When the task's context was last reset before this lease. The run continues no session that began before that.
    pub context_reset_at: Option<Ms>,
}

/// How a run failed, or why a task ended without success.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The kind of the failure.
    pub reason: Reason,
    /// What happened, for people.
    pub message: String,
    /// When it happened, or when it was reported.
    pub at: Ms,
}

impl Failure {
    /// The failure of a task that ends because its cancellation was requested. The message keeps how its last run ended.
    #[must_use]
    pub fn of_cancelled(self, at: Ms) -> Self {
        Self { reason: Reason::Cancelled, message: format!("cancelled on request; {}", self.message), at }
    }
}

/// How the last lease of a task ended. It decides whether a late completion is accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct LastLease {
    /// The lease's id, which a late completion names.
    pub id: LeaseId,
    /// The worker that had the lease.
    pub worker_id: WorkerId,
    /// How the lease ended; never `active`.
    pub status: LeaseStatus,
}

/// The progress of a task: the narrow row that every step rewrites, with the few fields of the spec that decisions need or that may be
/// edited.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskState {
    /// The task whose state this is.
    pub id: TaskId,
    /// Rises with every change of this row, so that an older copy of it never replaces a newer one.
    pub revision: i64,
    /// The context of the task, as in its [`TaskSpec`].
    pub context_id: String,
    /// The kind of agent that the task is for, as in its [`TaskSpec`].
    pub agent_slug: String,
    /// The priority, 0..=9; 9 is the most urgent. An edit may change it.
    pub priority: i64,
    /// Whether the task continues the conversation of its context, as in its [`TaskSpec`].
    pub session: Session,
    /// The maximum number of attempts, as in its [`TaskSpec`].
    pub max_attempts: i64,
    /// The time limit of each run, in seconds. An edit or a requeue may change it.
    pub timeout_sec: i64,
    /// The longest time limit that its profile may set, as in its [`TaskSpec`]; also `None` once an edit or a requeue has set
    /// `timeout_sec`.
    pub profile_timeout_max: Option<i64>,
    /// US dollars that all attempts together may cost; 0 = no limit. An edit or a requeue may change it.
    pub budget: f64,
    /// The exclusive key of the task, as in its [`TaskSpec`].
    pub exclusive_key: Option<String>,
    /// How long after its end the task is removed, in seconds, as in its [`TaskSpec`]; `None` = after the server's retention period.
    pub ttl_after_finished_sec: Option<i64>,
    /// Whether its [`TaskSpec`] names tasks that must be completed first.
    pub has_dependencies: bool,
    /// Whether its agent moves files before and after the run: a repository, inputs or outputs.
    pub moves_files: bool,
    /// The namespace of its Kubernetes object; `None` for all other tasks.
    pub namespace: Option<String>,
    /// The submit or member key that created it; `None` if another key did.
    pub owner: Option<String>,
    /// The team of this key when it created the task.
    pub team: Option<String>,
    /// The name of its project.
    pub project: Option<String>,

    /// The status of the task.
    pub status: Status,
    /// The stamp of its last change. Events and renewals of its lease do not count as changes.
    pub updated_at: Ms,
    /// The number of leases that count towards `max_attempts`, which are all except those that were given back. A requeue sets it to 0.
    pub attempts: i64,
    /// How many attempts were given back; bounded by [`GIVE_BACKS`](super::limits::GIVE_BACKS).
    pub infra_retries: i64,
    /// How many leases were ever made for the task.
    pub lease_count: i64,
    /// Whether a client has requested the cancellation of the task.
    pub cancel_requested: bool,
    /// The earliest time at which it runs: either as a client requested it, or the end of the backoff after a failed attempt.
    pub not_before: Option<Ms>,
    /// Why the task is not ready; `None` if it is ready, or is not queued.
    pub parked: Option<Parked>,
    /// When the task is evaluated again even without another event: its `not_before`, or the end of its reservation.
    pub wake_at: Option<Ms>,
    /// Since when the task could run.
    pub ready_at: Option<Ms>,
    /// The worker that has its context's session.
    pub session_worker: Option<WorkerId>,
    /// The newest unfinished session task of its context when this task was created, or the nil id. `None` if the task has finished or was
    /// requeued. A unique index covers it: if two replicas create tasks in one context at once, one of the writes is refused and decided
    /// again.
    pub created_after: Option<TaskId>,
    /// Whether other tasks wait for this one: dependents, successors in its context, or waiters for its exclusive key.
    pub has_dependents: bool,
    /// The lease that holds the task; `None` while it is queued, and after its end.
    pub lease: Option<ActiveLease>,
    /// How its newest ended lease ended; `None` if no lease has ended, or none since a requeue.
    pub last_lease: Option<LastLease>,
    /// The session that its last run reported. Before its first run, the session of the last completed run of its context. `None` =
    /// unknown.
    pub session_id: Option<String>,
    /// The session that holds the conversation of its context, as far as the server knows. The task's runs continue it.
    pub conversation: Option<String>,
    /// Why its last run failed, or why the task ended without success. `None` after a success or a requeue, and if no run has failed.
    pub failure: Option<Failure>,
    /// What its attempts have used together; `None` if no completion has reported any usage.
    pub usage: Option<Usage>,
    /// What its attempts had cost when a client requeued it. The budget starts again from this cost.
    pub cost_before_requeue: f64,
    /// When the task ended; `None` if it has not ended.
    pub finished_at: Option<Ms>,
    /// When the task must be removed, according to its `ttl_after_finished_sec`.
    pub remove_at: Option<Ms>,
    /// How many events were ever recorded for the task. This is also the number of its newest event.
    pub event_count: i64,
    /// The highest `seq` that its newest lease has sent; −1 before the first event.
    pub event_seq: i64,
    /// The size of the events of its newest lease, in bytes. Once it exceeds [`RUN_EVENTS_BYTES`](super::limits::RUN_EVENTS_BYTES), no more
    /// events are kept.
    pub event_bytes: i64,
    /// The `seq` of the last event of its newest run, as reported by the run's completion. The events may arrive later.
    pub last_event_seq: Option<i64>,
    /// Its labels, if they were edited; otherwise those of the spec apply.
    pub labels: Option<BTreeMap<String, String>>,
    /// Whether a client has suspended the task. While a suspended task is queued, no worker gets it.
    pub suspend: bool,
    /// When it was created, if its id does not contain the time, as for a task that was imported with the id of another program.
    pub made_at: Option<Ms>,
    /// The question that its run asks a person, or the last one that it asked.
    pub question: Option<Question>,
}

impl TaskState {
    /// The state of a task that is being created: queued, and not parked because it has not been evaluated yet.
    pub fn new(spec: &TaskSpec) -> Self {
        Self {
            id: spec.id,
            revision: 0,
            context_id: spec.context_id.clone(),
            agent_slug: spec.agent_slug.clone(),
            priority: spec.priority,
            session: spec.session,
            max_attempts: spec.max_attempts,
            timeout_sec: spec.timeout_sec,
            profile_timeout_max: spec.profile_timeout_max,
            budget: spec.budget,
            exclusive_key: spec.exclusive_key.clone(),
            ttl_after_finished_sec: spec.ttl_after_finished_sec,
            has_dependencies: !spec.depends_on.is_empty(),
            moves_files: spec.project.is_some() || !spec.inputs.is_empty() || !spec.outputs.is_empty(),
            namespace: spec.object.as_ref().map(|object| object.namespace.clone()),
            owner: spec.owner.clone(),
            team: spec.team.clone(),
            project: spec.project.as_ref().map(|project| project.name.clone()),
            status: Status::Queued,
            updated_at: created_at(spec.id),
            attempts: 0,
            infra_retries: 0,
            lease_count: 0,
            cancel_requested: false,
            not_before: spec.not_before,
            parked: None,
            wake_at: None,
            ready_at: None,
            session_worker: None,
            created_after: None,
            has_dependents: false,
            lease: None,
            last_lease: None,
            session_id: None,
            conversation: None,
            failure: None,
            usage: None,
            cost_before_requeue: 0.0,
            finished_at: None,
            remove_at: None,
            event_count: 0,
            event_seq: -1,
            event_bytes: 0,
            last_event_seq: None,
            labels: None,
            suspend: spec.suspend,
            made_at: None,
            question: None,
        }
    }

    /// When the task was created.
    pub fn created_at(&self) -> Ms {
        self.made_at.unwrap_or_else(|| created_at(self.id))
    }

    /// The current labels: the edited ones, or those of its spec.
    pub fn labels<'a>(&'a self, spec: &'a TaskSpec) -> &'a BTreeMap<String, String> {
        self.labels.as_ref().unwrap_or(&spec.labels)
    }

    /// Whether any worker that serves the task may get it now: it is queued, and nothing parks it.
    pub fn is_ready(&self) -> bool {
        self.status == Status::Queued && self.parked.is_none()
    }

    /// Whether this worker may claim the task: it is ready, or reserved for this worker.
    pub fn is_open_to(&self, worker: &str) -> bool {
        self.is_ready()
            || (self.status == Status::Queued && self.parked == Some(Parked::Reserved) && self.session_worker.as_deref() == Some(worker))
    }

    /// `lease_id` and `worker_id` in the API: those of the active lease, or, if the task has finished, those of its last lease.
    pub fn shown_lease(&self) -> Option<(LeaseId, &WorkerId)> {
        let last = self.last_lease.as_ref().filter(|_| self.status.is_final()).map(|last| (last.id, &last.worker_id));
        self.lease.as_ref().map(|lease| (lease.id, &lease.worker_id)).or(last)
    }

    /// When the shown lease began. An ended lease's id contains the time, except for imported leases of another program.
    pub fn started_at(&self) -> Option<Ms> {
        self.lease.as_ref().map(|lease| lease.started_at).or_else(|| time_of(self.shown_lease()?.0))
    }

    /// The question of its run, including its answer while the agent has not fetched it yet.
    pub fn open_question(&self) -> Option<&Question> {
        self.question.as_ref().filter(|question| !question.is_over)
    }

    /// The question of its run, if nobody has answered it yet.
    pub fn asks(&self) -> Option<&Question> {
        self.open_question().filter(|question| question.answer.is_none())
    }

    /// Whether there is an answer that the agent has not fetched yet.
    pub fn is_answered(&self) -> bool {
        self.open_question().is_some_and(|question| question.answer.is_some())
    }
}

/// An ended lease: the record of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct PastLease {
    /// The lease's id, which its completion carried.
    pub id: LeaseId,
    /// The task that it held.
    pub task_id: TaskId,
    /// The context of the task.
    pub context_id: String,
    /// The kind of agent that the task is for.
    pub agent_slug: String,
    /// The worker that had the lease.
    pub worker_id: WorkerId,
    /// When the lease was made.
    pub started_at: Ms,
    /// How long the lease lasted without a heartbeat, in ms.
    pub ttl_ms: i64,
    /// When it would have ended without another heartbeat.
    pub expires_at: Ms,
    /// When it was last renewed; equal to `started_at` if no heartbeat had arrived.
    pub last_heartbeat: Ms,
    /// How the lease ended.
    pub status: LeaseStatus,
    /// When the lease ended. After a late completion, when the completion arrived.
    pub ended_at: Ms,
    /// Whether a completion was stored for it. A repeat is answered with the stored result.
    pub completed: bool,
    /// Why the run failed or was interrupted; `None` if it succeeded.
    pub reason: Option<Reason>,
    /// The text that came with the reason, cut at [`MAX_LEASE_MESSAGE`]; `None` if the run succeeded.
    pub message: Option<String>,
    /// The model that the run used, as reported by its completion.
    pub model: Option<String>,
    /// What the run used, as reported by its completion; `None` if it reported nothing, or if there was no completion.
    pub usage: Option<Usage>,
}

/// The length in characters of [`PastLease::message`]. Lists show it for each lease.
pub const MAX_LEASE_MESSAGE: usize = 500;

impl PastLease {
    /// Keeps why the run failed or was interrupted.
    pub(crate) fn set_failure(&mut self, reason: Reason, message: &str) {
        self.reason = Some(reason);
        self.message = Some(message.chars().take(MAX_LEASE_MESSAGE).collect());
    }
}

words! {
    /// Whether a run succeeded.
    Outcome { Success = "success", Error = "error" }
}

words! {
    /// How a lease ended for its run.
    LeaseOutcome {
        Success = "success", Error = "error",
        /// The run did not come to its own end: it was cancelled or handed back, or its worker was lost.
        Interrupted = "interrupted",
    }
}

impl LeaseOutcome {
    /// `completed`: whether the worker reported the end of the run. `reason`: why it failed or was interrupted.
    pub fn of(completed: bool, reason: Option<Reason>) -> Self {
        match reason {
            None if completed => Self::Success,
            Some(Reason::Cancelled) => Self::Interrupted,
            Some(_) if completed => Self::Error,
            _ => Self::Interrupted,
        }
    }
}
