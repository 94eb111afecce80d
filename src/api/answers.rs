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

use super::json::readable;
use super::tasks::{Task, Usage};
use super::words::{AnyAction, AnyDispatchMode, AnyEntityType, AnyEventKind, AnyLeaseStatus, AnyOutcome, AnyWorkerStatus};
use bloom_core::Ms;
use bloom_core::audit::AuditEntry;
use bloom_core::task::{LeaseStatus, Outcome, RunResult, TaskEvent, TaskState};

/// The right of a worker to run a task until a time. Heartbeats renew it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Lease<'a> {
    pub id: Uuid,
    pub task_id: Uuid,
    pub worker_id: Cow<'a, str>,
    pub started_at: Ms,
    pub expires_at: Ms,
    pub ttl_seconds: i64,
    pub status: AnyLeaseStatus,
    pub last_heartbeat: Ms,
    pub context_id: Cow<'a, str>,
    /// Only of an ended lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub ended_at: Option<Ms>,
    /// Only if the completion of its run reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub model: Option<Cow<'a, str>>,
    /// Only if the completion of its run reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub usage: Option<Usage>,
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
            model: None,
            usage: None,
        })
    }
}

/// A machine that runs tasks.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Worker<'a> {
    pub id: Cow<'a, str>,
    /// The same as `id`.
    pub node_id: Cow<'a, str>,
    pub url: Cow<'a, str>,
    pub status: AnyWorkerStatus,
    pub capabilities: Capabilities<'a>,
    pub last_heartbeat: Ms,
    pub ip_addrs: Cow<'a, [String]>,
    pub obs_count: i64,
    pub db_sha: Cow<'a, str>,
    pub registered_at: Ms,
    pub active_leases: i64,
    pub agent_version: Cow<'a, str>,
    pub os_info: Cow<'a, str>,
    pub install_method: Cow<'a, str>,
    pub dispatch: AnyDispatchMode,
    #[serde(default)]
    #[schema(required)]
    pub cordoned: bool,
    pub draining: bool,
}

/// What a worker can do.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Capabilities<'a> {
    pub claude_cli: bool,
    pub max_concurrency: i64,
    pub labels: Cow<'a, [String]>,
    /// The agents (slugs) that it serves; absent = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub agents: Option<Cow<'a, [String]>>,
}

impl<'a> Worker<'a> {
    pub fn new(worker: &'a bloom_core::worker::Worker, active_leases: i64) -> Self {
        let capabilities = &worker.capabilities;
        Self {
            id: (&worker.id).into(),
            node_id: (&worker.id).into(),
            url: (&worker.url).into(),
            status: worker.shown_status().into(),
            capabilities: Capabilities {
                claude_cli: capabilities.claude_cli,
                max_concurrency: capabilities.max_concurrency,
                labels: (&capabilities.labels).into(),
                agents: capabilities.agents.as_deref().map(Cow::from),
            },
            last_heartbeat: worker.last_seen,
            ip_addrs: (&worker.ip_addrs).into(),
            obs_count: worker.obs_count,
            db_sha: (&worker.db_sha).into(),
            registered_at: worker.registered_at,
            active_leases,
            agent_version: (&worker.agent_version).into(),
            os_info: (&worker.os_info).into(),
            install_method: (&worker.install_method).into(),
            dispatch: worker.dispatch.into(),
            cordoned: worker.cordoned,
            draining: worker.draining,
        }
    }
}

/// A worker and its active leases.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct WorkerWithLeases<'a> {
    #[serde(flatten)]
    pub worker: Worker<'a>,
    pub leases: Vec<Lease<'a>>,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Removed<'a> {
    /// Always true.
    pub removed: bool,
    pub id: Cow<'a, str>,
}

/// A removed task or worker, as watch streams report it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Gone<'a> {
    /// `task` or `worker`.
    pub kind: Cow<'static, str>,
    pub id: Cow<'a, str>,
}

/// The stored output of a run.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Artifact<'a> {
    pub id: Uuid,
    pub task_id: Uuid,
    pub job_id: Option<Uuid>,
    pub r#type: Cow<'a, str>,
    pub created_at: Ms,
    pub finalized: bool,
    pub url: Option<Cow<'a, str>>,
    pub entity_refs: Cow<'a, [String]>,
    pub tags: Cow<'a, [String]>,
    /// The output, if the run succeeded.
    pub content: Option<Cow<'a, str>>,
}

impl<'a> From<&'a RunResult> for Artifact<'a> {
    fn from(result: &'a RunResult) -> Self {
        Self {
            id: result.artifact_id,
            task_id: result.task_id,
            job_id: None,
            r#type: (&result.artifact_type).into(),
            created_at: result.completed_at,
            finalized: true,
            url: None,
            entity_refs: Cow::Borrowed(&[]),
            tags: (&result.artifact_tags).into(),
            content: result.output.as_deref().filter(|_| result.status == Outcome::Success).map(Cow::from),
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct TaskResult<'a> {
    pub id: Uuid,
    pub task_id: Uuid,
    pub worker_id: Cow<'a, str>,
    pub artifact_id: Uuid,
    pub status: AnyOutcome,
    pub output: Option<Cow<'a, str>>,
    pub error_message: Option<Cow<'a, str>>,
    pub metrics: Metrics,
    pub completed_at: Ms,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = ResultMetrics)]
pub struct Metrics {
    pub duration_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tokens_used: Option<i64>,
}

impl<'a> From<&'a RunResult> for TaskResult<'a> {
    fn from(result: &'a RunResult) -> Self {
        Self {
            id: result.id,
            task_id: result.task_id,
            worker_id: (&result.worker_id).into(),
            artifact_id: result.artifact_id,
            status: result.status.into(),
            output: result.output.as_deref().map(Cow::from),
            error_message: result.error_message.as_deref().map(Cow::from),
            metrics: Metrics { duration_ms: result.duration_ms, tokens_used: result.tokens_used },
            completed_at: result.completed_at,
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Leased<'a> {
    pub lease: Lease<'a>,
    pub worker: Worker<'a>,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Renewed<'a> {
    pub lease: Lease<'a>,
    pub expires_at: Ms,
    /// Only if the request set `with_task`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub task: Option<Task<'a>>,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Completed<'a> {
    pub task: Task<'a>,
    pub artifact: Artifact<'a>,
    pub result: TaskResult<'a>,
}

/// What the server asks a worker to do.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Directives {
    /// Tasks whose runs the worker must end.
    pub cancel: Vec<Uuid>,
    /// The worker must take no new tasks, and finish or hand back those that it has.
    pub drain: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Claimed<'a> {
    pub leases: Vec<ClaimedLease<'a>>,
    pub directives: Directives,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ClaimedLease<'a> {
    pub lease: Lease<'a>,
    pub task: Task<'a>,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RenewedLeases {
    pub renewed: Vec<Uuid>,
    /// Leases that the worker no longer holds; it must end their runs.
    pub lost: Vec<Uuid>,
    pub directives: Directives,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Completions {
    /// One result per completion, in the same order.
    pub results: Vec<CompletionResult>,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct CompletionResult {
    /// The `task_id` of the request.
    pub task_id: Option<String>,
    #[schema(minimum = 200, maximum = 599)]
    pub status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

/// The outcome of a bulk call.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct BulkResult {
    /// Number of tasks, named by ids or filter, to which the call applies.
    pub matched: i64,
    pub changed: i64,
    /// More tasks match the filter than one call can change: call again.
    pub more: bool,
}

/// An event of a run.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Event<'a> {
    pub task_id: Uuid,
    /// Number of the event within the task, from 1, across leases.
    pub number: i64,
    pub lease_id: Uuid,
    /// Number of the event within its lease, given by the sender.
    pub seq: i64,
    pub kind: AnyEventKind,
    pub at: Ms,
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

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Recorded {
    /// Number of the task's newest event.
    pub newest: i64,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Audit<'a> {
    pub id: Uuid,
    pub timestamp: Ms,
    pub action: AnyAction,
    pub entity_type: AnyEntityType,
    pub entity_id: Cow<'a, str>,
    /// `admin`, `api`, `router`, `reconciler`, or a worker's id.
    pub actor: Cow<'a, str>,
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
