//! The rows that commands need.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::ids::{LeaseId, TaskId, WorkerId};

/// The rows that a batch needs. Each set names what the store looks up for it before it locks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Keys {
    pub tasks: BTreeSet<TaskId>,
    /// Locked, for placement and settings.
    pub workers: BTreeSet<WorkerId>,
    /// Read without a lock: how they stand is a hint.
    pub observed_workers: BTreeSet<WorkerId>,
    /// Every worker is loaded and locked: the last look before "no worker".
    pub all_workers: bool,
    /// The true places in use of these workers, read after locking.
    pub exact_slots: BTreeSet<WorkerId>,
    /// The tasks that these workers hold.
    pub worker_tasks: BTreeSet<WorkerId>,
    /// The tasks that these active leases hold.
    pub leases: BTreeSet<LeaseId>,
    pub past_leases: BTreeSet<LeaseId>,
    pub idempotency: BTreeSet<String>,
    /// Contexts: who runs in them and where they ran last.
    pub contexts: BTreeSet<String>,
    /// Of these tasks: the newest unfinished session task that stands before it in its context. `Uuid::max` = any.
    pub predecessors: BTreeSet<(String, TaskId)>,
    /// Who holds these exclusive keys.
    pub exclusive: BTreeSet<String>,
    /// What these tasks wait for.
    pub dependencies: BTreeSet<TaskId>,
}

impl Keys {
    pub fn merge(&mut self, other: &Keys) {
        self.tasks.extend(other.tasks.iter().copied());
        self.workers.extend(other.workers.iter().cloned());
        self.observed_workers.extend(other.observed_workers.iter().cloned());
        self.all_workers |= other.all_workers;
        self.exact_slots.extend(other.exact_slots.iter().cloned());
        self.worker_tasks.extend(other.worker_tasks.iter().cloned());
        self.leases.extend(other.leases.iter().copied());
        self.past_leases.extend(other.past_leases.iter().copied());
        self.idempotency.extend(other.idempotency.iter().cloned());
        self.contexts.extend(other.contexts.iter().cloned());
        self.predecessors.extend(other.predecessors.iter().cloned());
        self.exclusive.extend(other.exclusive.iter().cloned());
        self.dependencies.extend(other.dependencies.iter().copied());
    }
}

/// Any task id sorts before it: "the newest of all".
pub const AFTER_ALL: TaskId = Uuid::max();
