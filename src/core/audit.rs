//! The actions, entity types and actors of the audit trail. An entry commits with the change that it describes.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use super::Ms;
use super::ids::{TaskId, WorkerId};
use super::origin::Origin;
use super::words::words;

/// The longest time between an entry's timestamp and the end of its commit. The store aborts a transaction that takes longer. Readers that
/// follow the trail therefore find late entries by reading this much of it again.
pub const COMMIT_WITHIN_MS: Ms = 20_000;

words! {
    /// What happened.
    Action {
        ConfigUpdated = "config_updated", ConnectionTest = "connection_test",
        WorkerRegistered = "worker_registered", WorkerUpdated = "worker_updated", WorkerRemoved = "worker_removed",
        WorkerOffline = "worker_offline", WorkerOnline = "worker_online", WorkerCordoned = "worker_cordoned",
        WorkerUncordoned = "worker_uncordoned", WorkerDraining = "worker_draining",
        TaskCreated = "task_created", TaskLeased = "task_leased", TaskCompleted = "task_completed",
        TaskDispatched = "task_dispatched", DispatchFailed = "dispatch_failed",
        TaskReleased = "task_released", TaskRetried = "task_retried", TaskRequeued = "task_requeued",
        TaskCancelled = "task_cancelled", TaskEdited = "task_edited", TaskDeleted = "task_deleted",
        TaskSuspended = "task_suspended", TaskResumed = "task_resumed",
        TaskAsked = "task_asked", TaskAnswered = "task_answered",
        TaskDead = "task_dead", LeaseExpired = "lease_expired",
        LeadershipPromote = "leadership_promote",
        AgentUpdated = "agent_updated", AgentRestarted = "agent_restarted", AgentUninstalled = "agent_uninstalled",
        KeyCreated = "key_created", KeyRotated = "key_rotated", KeyRevoked = "key_revoked", QuotaChanged = "quota_changed", WorkerEnrolled = "worker_enrolled",
        ProjectCreated = "project_created", ProjectEdited = "project_edited", ProjectDeleted = "project_deleted", ProjectCloned = "project_cloned",
        ProjectPropagated = "project_propagated", MemorySyncPush = "memory_sync_push", MemorySyncPull = "memory_sync_pull",
        AccountResumed = "account_resumed", ContextReset = "context_reset",
        QueuePaused = "queue_paused", QueueResumed = "queue_resumed", QueueLimited = "queue_limited",
    }
}
words! {
    /// The kind of object that an audit entry is about.
    EntityType {
        Task = "llm_task", Lease = "lease", Worker = "worker", Queue = "queue", Config = "config", Project = "project", Key = "key",
        Context = "context",
    }
}

impl Action {
    /// The actions that people decide, or programs on their behalf. Runs, workers and reconcilers cause many more entries by themselves.
    pub const OF_PEOPLE: &'static [Self] = &[
        Self::ConfigUpdated,
        Self::ConnectionTest,
        Self::WorkerRemoved,
        Self::WorkerCordoned,
        Self::WorkerUncordoned,
        Self::WorkerDraining,
        Self::TaskCreated,
        Self::TaskRequeued,
        Self::TaskCancelled,
        Self::TaskEdited,
        Self::TaskDeleted,
        Self::TaskSuspended,
        Self::TaskResumed,
        Self::TaskAnswered,
        Self::LeadershipPromote,
        Self::AgentUpdated,
        Self::AgentRestarted,
        Self::AgentUninstalled,
        Self::KeyCreated,
        Self::KeyRotated,
        Self::KeyRevoked,
        Self::QuotaChanged,
        Self::ProjectCreated,
        Self::ProjectEdited,
        Self::ProjectDeleted,
        Self::ProjectCloned,
        Self::ProjectPropagated,
        Self::MemorySyncPush,
        Self::MemorySyncPull,
        Self::AccountResumed,
        Self::ContextReset,
        Self::QueuePaused,
        Self::QueueResumed,
        Self::QueueLimited,
    ];
}

/// Who caused a change. A client that used a named key is shown as `key:NAME`, whatever the call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Actor {
    /// A client, in a call that the submit and worker keys allow too.
    #[default]
    Api,
    /// A client, in a call that needs the admin key.
    Admin,
    /// The server, while it handles a lease or dispatch call.
    Router,
    /// A reconciler.
    Reconciler,
    /// A reconciler, or the server in a call that has this consequence although its client did not decide it: a task is cancelled because
    /// another one did not complete. It is shown as a reconciler, also if the call used a named key.
    Consequence,
    /// A worker, for its own runs, and when it comes back online.
    Worker(WorkerId),
}

impl Actor {
    /// The actor that makes and ends leases of this origin.
    pub(super) fn of(origin: Origin) -> Self {
        if origin.is_in_order() { Self::Reconciler } else { Self::Router }
    }
}

impl Actor {
    /// The actor as text. The prefix of a key distinguishes it from the other actors, for example from a worker that has the same name as
    /// the key.
    pub(super) fn named(&self, by: &Requester) -> String {
        match &by.key {
            Some(key) if *self != Self::Consequence => format!("{KEY}{key}"),
            _ => self.to_string(),
        }
    }
}

/// The request from which a command comes; empty for a command of the server itself.
#[derive(Clone, Debug, Default)]
pub struct Requester {
    /// The request id in the header of the answer; `None` for a command of the server itself.
    pub request_id: Option<String>,
    /// The name of the key that the request used; `None` for a key from the environment, and if no keys are used.
    pub key: Option<Arc<str>>,
    /// Whether that key has a quota.
    pub has_quota: bool,
    /// Whether that key is a submit or member key.
    pub owns_tasks: bool,
}

impl Requester {
    /// The requester for the objects of a Kubernetes namespace. No client can impersonate it, because no key has a colon in its name.
    pub fn of_namespace(namespace: &str) -> Self {
        Self { key: Some(format!("{NAMESPACE}{namespace}").into()), ..Self::default() }
    }

    /// The Kubernetes namespace on whose behalf the command is given.
    pub fn namespace(&self) -> Option<&str> {
        self.key.as_deref()?.strip_prefix(NAMESPACE)
    }
}

/// The text of the actor for [`Requester::of_namespace`]. The text for the empty name is a prefix of the texts for all namespaces.
pub fn actor_of_namespace(namespace: &str) -> String {
    format!("{KEY}{NAMESPACE}{namespace}")
}

/// The Kubernetes namespace that an actor's text names.
pub fn namespace_of_actor(actor: &str) -> Option<&str> {
    actor.strip_prefix(KEY)?.strip_prefix(NAMESPACE)
}

/// The task and the worker that an entry concerns, in addition to its entity: those of a lease, or the worker that acted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Concerns<'a> {
    /// The task that the entry concerns, if it is not the entity.
    pub task: Option<TaskId>,
    /// The worker that the entry concerns, if it is not the entity.
    pub worker: Option<&'a str>,
}

impl<'a> Concerns<'a> {
    /// The entry concerns only this worker, in addition to its entity.
    pub fn worker(worker: &'a str) -> Self {
        Self { worker: Some(worker), ..Self::default() }
    }
}

/// The prefix of an actor that is a named key.
const KEY: &str = "key:";
/// The prefix of a requester that is a Kubernetes namespace.
const NAMESPACE: &str = "kubernetes:";

/// Whether a worker must not have this name, because the audit trail uses it for another actor. Case and surrounding spaces are ignored.
pub fn is_name_of_another_actor(worker: &str) -> bool {
    let name = worker.trim().to_lowercase();
    name.starts_with(KEY) || [Actor::Api, Actor::Admin, Actor::Router, Actor::Reconciler].iter().any(|actor| actor.to_string() == name)
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Api => "api",
            Self::Admin => "admin",
            Self::Router => "router",
            Self::Reconciler | Self::Consequence => "reconciler",
            Self::Worker(id) => id,
        })
    }
}

/// An entry of the audit trail.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// The entry's id. Entries are sorted by it, which is the order of the changes.
    pub id: Uuid,
    /// When the change was made.
    pub timestamp: Ms,
    /// What happened.
    pub action: Action,
    /// The kind of object that was changed.
    pub entity_type: EntityType,
    /// What was changed: the id of a task or a lease, the name of a worker or a key, or another identifier.
    pub entity_id: String,
    /// An [`Actor`] as text, or `key:` and the name of the key that was used.
    pub actor: String,
    /// Further details for people; may be empty.
    pub detail: String,
    /// The request that caused the change: the request id in the header of its answer.
    pub request_id: Option<String>,
    /// The task that the entry is about, even if its entity is a lease.
    pub task_id: Option<TaskId>,
    /// The worker that the entry is about, that acted, or that had the lease.
    pub worker_id: Option<WorkerId>,
}
