//! Bodies of answers, except for tasks.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::tasks::Task;
use bloom_core::Ms;
use bloom_core::audit::{Action, AuditEntry, EntityType};
use bloom_core::task::{self, EventKind, LeaseStatus, Outcome, RunResult, TaskEvent, TaskState};
use bloom_core::worker::{DispatchMode, WorkerStatus};

/// Tokens and US dollars that runs used.
#[derive(Clone, Copy, Serialize, ToSchema)]
pub struct Usage {
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// US dollars.
    pub cost_usd: f64,
}

impl From<task::Usage> for Usage {
    fn from(usage: task::Usage) -> Self {
        Self { input_tokens: usage.input_tokens, output_tokens: usage.output_tokens, cost_usd: usage.cost_usd }
    }
}

/// The right of a worker to run a task until a time. Heartbeats renew it.
#[derive(Serialize, ToSchema)]
pub struct Lease<'a> {
    pub id: Uuid,
    pub task_id: Uuid,
    pub worker_id: &'a str,
    pub started_at: Ms,
    pub expires_at: Ms,
    pub ttl_seconds: i64,
    pub status: LeaseStatus,
    pub last_heartbeat: Ms,
    pub context_id: &'a str,
}

impl<'a> Lease<'a> {
    /// The lease that holds this task.
    pub fn active(task: &'a TaskState) -> Option<Self> {
        task.lease.as_ref().map(|lease| Self {
            id: lease.id,
            task_id: task.id,
            worker_id: &lease.worker_id,
            started_at: lease.started_at,
            expires_at: lease.expires_at,
            ttl_seconds: lease.ttl_ms / 1000,
            status: LeaseStatus::Active,
            last_heartbeat: lease.last_heartbeat,
            context_id: &task.context_id,
        })
    }
}

/// A machine that runs tasks.
#[derive(Serialize, ToSchema)]
pub struct Worker<'a> {
    pub id: &'a str,
    /// The same as `id`.
    pub node_id: &'a str,
    pub url: &'a str,
    pub status: WorkerStatus,
    pub capabilities: Capabilities<'a>,
    pub last_heartbeat: Ms,
    pub ip_addrs: &'a [String],
    pub obs_count: i64,
    pub db_sha: &'a str,
    pub registered_at: Ms,
    pub active_leases: i64,
    pub agent_version: &'a str,
    pub os_info: &'a str,
    pub install_method: &'a str,
    pub dispatch: DispatchMode,
    pub cordoned: bool,
    pub draining: bool,
}

/// What a worker can do.
#[derive(Serialize, ToSchema)]
pub struct Capabilities<'a> {
    pub claude_cli: bool,
    pub max_concurrency: i64,
    pub labels: &'a [String],
    /// The agents (slugs) that it serves; absent = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub agents: Option<&'a [String]>,
}

impl<'a> Worker<'a> {
    pub fn new(worker: &'a bloom_core::worker::Worker, active_leases: i64) -> Self {
        let capabilities = &worker.capabilities;
        Self {
            id: &worker.id,
            node_id: &worker.id,
            url: &worker.url,
            status: worker.shown_status(),
            capabilities: Capabilities {
                claude_cli: capabilities.claude_cli,
                max_concurrency: capabilities.max_concurrency,
                labels: &capabilities.labels,
                agents: capabilities.agents.as_deref(),
            },
            last_heartbeat: worker.last_seen,
            ip_addrs: &worker.ip_addrs,
            obs_count: worker.obs_count,
            db_sha: &worker.db_sha,
            registered_at: worker.registered_at,
            active_leases,
            agent_version: &worker.agent_version,
            os_info: &worker.os_info,
            install_method: &worker.install_method,
            dispatch: worker.dispatch,
            cordoned: worker.cordoned,
            draining: worker.draining,
        }
    }
}

/// A worker and its active leases.
#[derive(Serialize, ToSchema)]
pub struct WorkerWithLeases<'a> {
    #[serde(flatten)]
    pub worker: Worker<'a>,
    pub leases: Vec<Lease<'a>>,
}

#[derive(Serialize, ToSchema)]
pub struct Removed<'a> {
    /// Always true.
    pub removed: bool,
    pub id: &'a str,
}

/// The stored output of a run.
#[derive(Serialize, ToSchema)]
pub struct Artifact<'a> {
    pub id: Uuid,
    pub task_id: Uuid,
    pub job_id: Option<Uuid>,
    pub r#type: &'a str,
    pub created_at: Ms,
    pub finalized: bool,
    pub url: Option<&'a str>,
    pub entity_refs: &'a [String],
    pub tags: &'a [String],
    /// The output, if the run succeeded.
    pub content: Option<&'a str>,
}

impl<'a> From<&'a RunResult> for Artifact<'a> {
    fn from(result: &'a RunResult) -> Self {
        Self {
            id: result.artifact_id,
            task_id: result.task_id,
            job_id: None,
            r#type: &result.artifact_type,
            created_at: result.completed_at,
            finalized: true,
            url: None,
            entity_refs: &[],
            tags: &result.artifact_tags,
            content: result.output.as_deref().filter(|_| result.status == Outcome::Success),
        }
    }
}

/// How a run ended.
#[derive(Serialize, ToSchema)]
pub struct TaskResult<'a> {
    pub id: Uuid,
    pub task_id: Uuid,
    pub worker_id: &'a str,
    pub artifact_id: Uuid,
    pub status: Outcome,
    pub output: Option<&'a str>,
    pub error_message: Option<&'a str>,
    pub metrics: Metrics,
    pub completed_at: Ms,
}

#[derive(Serialize, ToSchema)]
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
            worker_id: &result.worker_id,
            artifact_id: result.artifact_id,
            status: result.status,
            output: result.output.as_deref(),
            error_message: result.error_message.as_deref(),
            metrics: Metrics { duration_ms: result.duration_ms, tokens_used: result.tokens_used },
            completed_at: result.completed_at,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub struct Leased<'a> {
    pub lease: Lease<'a>,
    pub worker: Worker<'a>,
}

#[derive(Serialize, ToSchema)]
pub struct Renewed<'a> {
    pub lease: Lease<'a>,
    pub expires_at: Ms,
}

#[derive(Serialize, ToSchema)]
pub struct Completed<'a> {
    pub task: Task<'a>,
    pub artifact: Artifact<'a>,
    pub result: TaskResult<'a>,
}

/// What the server asks a worker to do.
#[derive(Serialize, ToSchema)]
pub struct Directives {
    /// Tasks whose runs the worker must end.
    pub cancel: Vec<Uuid>,
    /// The worker must take no new tasks, and finish or hand back those that it has.
    pub drain: bool,
}

#[derive(Serialize, ToSchema)]
pub struct Claimed<'a> {
    pub leases: Vec<ClaimedLease<'a>>,
    pub directives: Directives,
}

#[derive(Serialize, ToSchema)]
pub struct ClaimedLease<'a> {
    pub lease: Lease<'a>,
    pub task: Task<'a>,
}

#[derive(Serialize, ToSchema)]
pub struct RenewedLeases {
    pub renewed: Vec<Uuid>,
    /// Leases that the worker no longer holds; it must end their runs.
    pub lost: Vec<Uuid>,
    pub directives: Directives,
}

#[derive(Serialize, ToSchema)]
pub struct Completions {
    /// One result per completion, in the same order.
    pub results: Vec<CompletionResult>,
}

#[derive(Serialize, ToSchema)]
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
#[derive(Serialize, ToSchema)]
pub struct BulkResult {
    /// Number of tasks, named by ids or filter, to which the call applies.
    pub matched: i64,
    pub changed: i64,
    /// More tasks match the filter than one call can change: call again.
    pub more: bool,
}

/// An event of a run.
#[derive(Serialize, ToSchema)]
pub struct Event<'a> {
    pub task_id: Uuid,
    /// Number of the event within the task, from 1, across leases.
    pub number: i64,
    pub lease_id: Uuid,
    /// Number of the event within its lease, given by the sender.
    pub seq: i64,
    pub kind: EventKind,
    pub at: Ms,
    #[schema(value_type = serde_json::Value)]
    pub data: &'a RawValue,
}

impl<'a> Event<'a> {
    /// # Errors
    /// The stored data is no JSON.
    pub fn new(event: &'a TaskEvent) -> Result<Self, serde_json::Error> {
        let TaskEvent { task_id, number, lease_id, seq, kind, at, ref data } = *event;
        Ok(Self { task_id, number, lease_id, seq, kind, at, data: serde_json::from_str(data)? })
    }
}

#[derive(Serialize, ToSchema)]
pub struct Recorded {
    /// Number of the task's newest event.
    pub newest: i64,
}

#[derive(Serialize, ToSchema)]
pub struct Audit<'a> {
    pub id: Uuid,
    pub timestamp: Ms,
    pub action: Action,
    pub entity_type: EntityType,
    pub entity_id: &'a str,
    /// `admin`, `api`, `router`, `reconciler`, or a worker's id.
    pub actor: &'a str,
    pub detail: &'a str,
    /// The id of the request that caused it, from the header X-Request-Id of its answer.
    pub request_id: Option<&'a str>,
}

impl<'a> From<&'a AuditEntry> for Audit<'a> {
    fn from(entry: &'a AuditEntry) -> Self {
        Self {
            id: entry.id,
            timestamp: entry.timestamp,
            action: entry.action,
            entity_type: entry.entity_type,
            entity_id: &entry.entity_id,
            actor: &entry.actor,
            detail: &entry.detail,
            request_id: entry.request_id.as_deref(),
        }
    }
}
