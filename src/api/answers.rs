//! Bodies of answers, except for tasks.
//!
//! In the server, these types borrow from the rows that they show; in clients, they own their data (`Lease<'static>`). A client ignores
//! unknown fields and keeps unknown enum values as text, so that it works with a newer server. A new field must have a default or be an
//! `Option`, because an older server does not send it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::directives::Directives;
use super::error::AnyCode;
use super::git_names::default_prefix;
use super::json::readable;
use super::results::{Artifact, TaskResult};
use super::tasks::Task;
use super::usage::Usage;
use super::words::{AnyAction, AnyEntityType, AnyEventKind, AnyLeaseOutcome, AnyLeaseStatus, AnyReason, Word};
use super::workers::Worker;
use bloom_core::Ms;
use bloom_core::audit::AuditEntry;
use bloom_core::event::TaskEvent;
use bloom_core::project::{Project, TaskProject};
use bloom_core::task::{LeaseStatus, TaskState};
use bloom_core::trace_context::TraceContext;

/// The right of a worker to run a task until a time. Heartbeats renew it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Lease<'a> {
    /// The id of the lease, the fencing token of the run.
    pub id: Uuid,
    /// The task.
    pub task_id: Uuid,
    /// The worker that runs the task.
    pub worker_id: Cow<'a, str>,
    /// When the lease was made.
    pub started_at: Ms,
    /// When the lease ends without a heartbeat.
    pub expires_at: Ms,
    /// Seconds by which a heartbeat extends the lease.
    pub ttl_seconds: i64,
    /// Whether the lease is active, or how it ended.
    pub status: AnyLeaseStatus,
    /// When it was last renewed.
    pub last_heartbeat: Ms,
    /// The conversation of the task.
    pub context_id: Cow<'a, str>,
    /// When it ended; only of an ended lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub ended_at: Option<Ms>,
    /// How it ended for its run; only of an ended lease. `interrupted`: the run did not come to its own end, because it was cancelled or handed
    /// back, or its worker was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub outcome: Option<AnyLeaseOutcome>,
    /// Why its run failed or was interrupted; absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<AnyReason>,
    /// The text of the worker or the server about the failure or the interruption: its first 500 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub message: Option<Cow<'a, str>>,
    /// The model that its run used, according to its completion; only if the completion named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub model: Option<Cow<'a, str>>,
    /// What the run used; only if its completion reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub usage: Option<Usage>,
    /// The parent of the spans of its run, as the header `traceparent` of W3C Trace Context: only in answers for the worker that is to run
    /// the task, and only if the task belongs to a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>)]
    pub traceparent: Option<TraceContext>,
    /// US dollars that the run may cost: what earlier attempts have left of the task's budget. Only in answers for the worker that is to
    /// run the task, and only if the task has a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub budget_left: Option<f64>,
    /// The repository of the task's project. Only in answers for the worker that is to run the task, and only if the task has a project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub repository: Option<Repository<'a>>,
    /// When the task's context was last reset: the run must not continue a session that began under another value of this field. Only in
    /// answers for the worker that is to run the task, and only if the context was reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub context_reset_at: Option<Ms>,
    /// The session of the newest run that has answered in the task's context since its last reset: a worker that does not have this session
    /// can't continue the conversation. Only in answers for the worker that is to run the task, and only if the task continues the
    /// conversation and there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub conversation: Option<Cow<'a, str>>,
    /// The longest time limit, in seconds, that the agent's profile may set in place of `timeout_sec`. Only in answers for the worker that is to
    /// run the task, and only if `timeout_is_default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub profile_timeout_max: Option<i64>,
}

/// The repository of a task's project, for the worker that is to run the task.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Repository<'a> {
    /// The id of the project.
    pub project_id: Uuid,
    /// The name of the project.
    pub project: Cow<'a, str>,
    /// The URL of the repository.
    pub url: Cow<'a, str>,
    /// What the branch of the context begins with, before a `/`, unless it was pushed under a former prefix.
    pub branch_prefix: Cow<'a, str>,
    /// The prefixes that the project had before, newest first.
    pub former_branch_prefixes: Vec<Cow<'a, str>>,
}

impl<'a> Repository<'a> {
    /// `now` is the project as it is by now, unless it was deleted.
    pub fn new(of_task: &'a TaskProject, now: Option<&'a Project>) -> Self {
        Self {
            project_id: of_task.id,
            project: (&of_task.name).into(),
            url: (&of_task.repo_url).into(),
            branch_prefix: now.map(|project| Cow::from(&project.branch_prefix)).unwrap_or_else(default_prefix),
            former_branch_prefixes: now.map(|project| project.former_branch_prefixes.iter().map(Cow::from).collect()).unwrap_or_default(),
        }
    }
}

impl<'a> Lease<'a> {
    /// The active lease of this task.
    pub fn active(task: &'a TaskState) -> Option<Self> {
        task.lease.as_ref().map(|lease| Self {
            id: lease.id,
            task_id: task.id,
            worker_id: (&lease.worker_id).into(),
            started_at: lease.started_at,
            expires_at: lease.expires_at,
            ttl_seconds: lease.ttl_ms / 1000,
            status: LeaseStatus::Active.into(),
            last_heartbeat: lease.last_heartbeat,
            context_id: (&task.context_id).into(),
            ended_at: None,
            outcome: None,
            reason: None,
            message: None,
            model: None,
            usage: None,
            traceparent: None,
            budget_left: None,
            repository: None,
            context_reset_at: None,
            conversation: None,
            profile_timeout_max: None,
        })
    }
}

/// A worker and its active leases.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct WorkerWithLeases<'a> {
    /// The worker.
    #[serde(flatten)]
    pub worker: Worker<'a>,
    /// Its active leases.
    pub leases: Vec<Lease<'a>>,
}

/// What was removed.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Removed<'a> {
    /// Always true.
    pub removed: bool,
    /// The id or name of what was removed.
    pub id: Cow<'a, str>,
}

/// A removed task or worker, as watch streams report it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Gone<'a> {
    /// `task` or `worker`.
    pub kind: Cow<'static, str>,
    /// The id of the task, or the name of the worker.
    pub id: Cow<'a, str>,
}

/// A task that was leased.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Leased<'a> {
    /// The new lease.
    pub lease: Lease<'a>,
    /// The worker that holds it.
    pub worker: Worker<'a>,
}

/// A lease that was renewed.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Renewed<'a> {
    /// The lease, renewed.
    pub lease: Lease<'a>,
    /// When the lease ends without another heartbeat.
    pub expires_at: Ms,
    /// Only if the request set `with_task`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub task: Option<Task<'a>>,
}

/// A completion that was stored.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Completed<'a> {
    /// The task, finished or back in the queue.
    pub task: Task<'a>,
    /// The stored artifact.
    pub artifact: Artifact<'a>,
    /// The stored result.
    pub result: TaskResult<'a>,
}

/// What a claim got.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Claimed<'a> {
    /// The new leases and their tasks; empty if there was no work.
    pub leases: Vec<ClaimedLease<'a>>,
    /// What the server asks the worker to do.
    pub directives: Directives,
}

/// A claimed task and its lease.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ClaimedLease<'a> {
    /// The lease.
    pub lease: Lease<'a>,
    /// Its task.
    pub task: Task<'a>,
}

/// What a heartbeat of a worker renewed.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RenewedLeases {
    /// Ids of the leases that were renewed.
    pub renewed: Vec<Uuid>,
    /// Leases that the worker no longer holds; it must end their runs.
    pub lost: Vec<Uuid>,
    /// What the server asks the worker to do.
    pub directives: Directives,
}

/// Contexts that are gone.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct GoneContexts {
    /// The contexts of the request that no longer have tasks.
    pub gone: Vec<String>,
}

/// The outcome of a call about many runs.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RunResults {
    /// One result per run of the request, in the same order.
    pub results: Vec<RunResult>,
}

/// The outcome for one of many runs.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RunResult {
    /// The `task_id` of the request.
    pub task_id: Option<String>,
    /// The status that a call about this run alone would answer: 200, 400, 404 or 409; for events also 500 or more.
    #[schema(minimum = 200, maximum = 599)]
    pub status: u16,
    /// What went wrong; absent if what was sent is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// The kind of error; absent if what was sent is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub code: Option<AnyCode>,
}

/// The outcome of a bulk call.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct BulkResult {
    /// Number of tasks, named by ids or a filter, that the call can change: at most 1,000, in a dry run at most 100,000. If a requeue by a
    /// filter finds only tasks that have to wait for others, it searches further, up to 10,000 tasks.
    pub matched: i64,
    /// How many of the matched tasks depend on the others, of a requeue `with_dependents`. Absent if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub dependents: i64,
    /// Number of tasks that were changed. One that another call cancels at the same moment counts in both answers.
    pub changed: i64,
    /// Whether more tasks match the filter than one call can change, or a dry run can count: if so, call again. False if all tasks that the
    /// call found have to wait for something.
    pub more: bool,
    /// When the dry run began to count, in milliseconds since the epoch. If the call that changes the tasks sends it, that call skips tasks
    /// that match only since then. Absent if this was no dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub as_of: Option<Ms>,
    /// Tasks that were not changed because something else has to be done first, each with the reason: at most 20. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub not_changed: Vec<NotChanged>,
}

fn is_zero(count: &i64) -> bool {
    *count == 0
}

/// Why a bulk call has not changed a task.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct NotChanged {
    /// The id of the task.
    pub id: Uuid,
    /// What has to be done first, as a word.
    pub reason: AnyNotChangedReason,
    /// What the call for this task alone would answer, for people.
    pub message: String,
}

/// What has to be done before a bulk call can change a task.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotChangedReason {
    /// A task on which it depends did not complete: it has to be queued again first. Or it was removed.
    Dependency,
    /// A quota of the key that created it is used up.
    Quota,
}

/// Not [`NotChangedReason`], so that clients accept the words of newer servers.
pub type AnyNotChangedReason = Word<NotChangedReason>;

/// An event of a run.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Event<'a> {
    /// The task.
    pub task_id: Uuid,
    /// Number of the event within the task, from 1, across leases.
    pub number: i64,
    /// The lease under which it was sent.
    pub lease_id: Uuid,
    /// Number of the event within its lease, given by the sender.
    pub seq: i64,
    /// The kind of event.
    pub kind: AnyEventKind,
    /// When it happened, by the sender's clock.
    pub at: Ms,
    /// What the sender reported: any JSON.
    #[schema(value_type = serde_json::Value)]
    pub data: Cow<'a, RawValue>,
}

impl<'a> Event<'a> {
    /// # Errors
    /// The stored data is not JSON.
    pub fn new(event: &'a TaskEvent) -> Result<Self, serde_json::Error> {
        let TaskEvent { task_id, number, lease_id, seq, kind, at, ref data } = *event;
        Ok(Self { task_id, number, lease_id, seq, kind: kind.into(), at, data: readable(data)? })
    }
}

/// Events were recorded.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Recorded {
    /// Number of the task's newest event.
    pub newest: i64,
}

/// An entry of the audit trail: one change, and who caused it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Audit<'a> {
    /// The id of the entry.
    pub id: Uuid,
    /// When it happened.
    pub timestamp: Ms,
    /// What happened.
    pub action: AnyAction,
    /// The kind of object that changed.
    pub entity_type: AnyEntityType,
    /// The id or name of that object.
    pub entity_id: Cow<'a, str>,
    /// `admin`, `api`, `router`, `reconciler`, a worker's id, or `key:` and the name of the key that the client used.
    pub actor: Cow<'a, str>,
    /// More about it, for people.
    pub detail: Cow<'a, str>,
    /// The id of the request that caused the entry, as in the header X-Request-Id of its answer.
    pub request_id: Option<Cow<'a, str>>,
    /// The task that the entry is about, also if its entity is a lease.
    pub task_id: Option<Uuid>,
    /// The worker that the entry is about, that acted, or that had the lease.
    pub worker_id: Option<Cow<'a, str>>,
}

impl<'a> From<&'a AuditEntry> for Audit<'a> {
    fn from(entry: &'a AuditEntry) -> Self {
        Self {
            id: entry.id,
            timestamp: entry.timestamp,
            action: entry.action.into(),
            entity_type: entry.entity_type.into(),
            entity_id: (&entry.entity_id).into(),
            actor: (&entry.actor).into(),
            detail: (&entry.detail).into(),
            request_id: entry.request_id.as_deref().map(Cow::from),
            task_id: entry.task_id,
            worker_id: entry.worker_id.as_deref().map(Cow::from),
        }
    }
}
