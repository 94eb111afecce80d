//! The audit trail's vocabulary. An entry commits with the change that it tells of.

use uuid::Uuid;

use super::Ms;
use super::task::words;

words! {
    Action {
        ConfigUpdated = "config_updated", ConnectionTest = "connection_test",
        WorkerRegistered = "worker_registered", WorkerUpdated = "worker_updated", WorkerRemoved = "worker_removed",
        WorkerOffline = "worker_offline", WorkerOnline = "worker_online", WorkerCordoned = "worker_cordoned",
        WorkerUncordoned = "worker_uncordoned", WorkerDraining = "worker_draining",
        TaskCreated = "task_created", TaskLeased = "task_leased", TaskCompleted = "task_completed",
        TaskDispatched = "task_dispatched", DispatchFailed = "dispatch_failed",
        TaskReleased = "task_released", TaskRetried = "task_retried", TaskRequeued = "task_requeued",
        TaskCancelled = "task_cancelled", TaskDead = "task_dead", LeaseExpired = "lease_expired",
        LeadershipPromote = "leadership_promote",
        AgentUpdated = "agent_updated", AgentRestarted = "agent_restarted", AgentUninstalled = "agent_uninstalled",
    }
}
words! { EntityType { Task = "llm_task", Lease = "lease", Worker = "worker", Config = "config", Project = "project" } }

#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    pub id: Uuid,
    pub timestamp: Ms,
    pub action: Action,
    pub entity_type: EntityType,
    pub entity_id: String,
    /// `admin`, `api`, `router`, `reconciler`, or a worker's id.
    pub actor: String,
    pub detail: String,
    /// The request that caused it, as its answer's header names it.
    pub request_id: Option<String>,
}
