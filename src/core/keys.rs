//! The rows that commands need.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::command::{Choice, Op};
use super::ids::{LeaseId, TaskId, WorkerId};
use super::task::Session;

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

impl Op {
    /// The rows it surely needs. What it turns out to need besides, [`decide`](super::decide::decide) asks for.
    pub fn keys(&self) -> Keys {
        let mut keys = Keys::default();
        match self {
            Op::Create { tasks } => {
                for task in tasks {
                    keys.tasks.extend(task.depends_on.iter().copied());
                    keys.idempotency.extend(task.idempotency_key.iter().cloned());
                    keys.exclusive.extend(task.exclusive_key.iter().cloned());
                    if task.session == Session::Context {
                        keys.contexts.insert(task.context_id.clone());
                        keys.predecessors.insert((task.context_id.clone(), AFTER_ALL));
                    }
                }
            }
            Op::Lease { task, choice, .. } => {
                keys.tasks.insert(*task);
                match choice {
                    Choice::Named(worker) => {
                        keys.workers.insert(worker.clone());
                    }
                    Choice::Among { workers, context } => {
                        keys.workers.extend(workers.iter().cloned());
                        keys.contexts.extend(context.iter().cloned());
                    }
                }
            }
            Op::Push { task, worker, .. } => {
                keys.tasks.insert(*task);
                keys.workers.insert(worker.clone());
            }
            Op::Claim(claim) => {
                keys.workers.insert(claim.worker.clone());
                keys.tasks.extend(claim.candidates.iter().copied());
                if claim.held.is_some() {
                    keys.worker_tasks.insert(claim.worker.clone());
                }
            }
            Op::Heartbeat { task, .. }
            | Op::Cancel { task }
            | Op::Requeue { task }
            | Op::ExpireLease { task, .. }
            | Op::EndPush { task, .. }
            | Op::Release { task, .. }
            | Op::AppendEvents { task, .. } => {
                keys.tasks.insert(*task);
            }
            Op::Complete(completion) => {
                keys.tasks.insert(completion.task);
            }
            Op::RenewLeases { leases, .. } => keys.leases.extend(leases.iter().copied()),
            Op::ClockStepped { task, .. } => {
                keys.tasks.insert(*task);
            }
            Op::Reevaluate { tasks, .. } => keys.tasks.extend(tasks.iter().copied()),
            // Their answers tell how many leases the worker has.
            Op::RegisterWorker(change) => {
                keys.workers.insert(change.id.clone());
                keys.exact_slots.insert(change.id.clone());
            }
            Op::Cordon { worker, .. } => {
                keys.workers.insert(worker.clone());
                keys.exact_slots.insert(worker.clone());
            }
            Op::RemoveWorker { worker } => {
                keys.workers.insert(worker.clone());
                keys.worker_tasks.insert(worker.clone());
                keys.exact_slots.insert(worker.clone());
            }
            Op::MarkOffline { worker, .. } => {
                keys.workers.insert(worker.clone());
            }
            Op::RecordLastSeen { last_seen } => keys.workers.extend(last_seen.iter().map(|(worker, _)| worker.clone())),
            Op::Configure { .. } | Op::RecordAudit { .. } => {}
        }
        keys
    }
}
