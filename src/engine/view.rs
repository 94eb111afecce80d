//! What this replica knows, for answers and metrics.

use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::audit::Action;
use bloom_core::cache::Shortage;
use bloom_core::command::Choice;
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::task::{Parked, Status, TaskState, WaitingReason};
use bloom_core::worker::Worker;
use bloom_core::working_set::{Counts, WorkingSet};

use super::Engine;
use super::changes::Changes;
use super::replica::Stats;

/// Why a queued task does not run yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    pub reason: WaitingReason,
    pub message: String,
}

/// What a worker is asked to do besides its tasks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directives {
    pub cancel: Vec<TaskId>,
    pub drain: bool,
}

/// How many workers a lease call proposes; more are looked at when none of them will do.
const SHORTLIST: usize = 4;

impl Engine {
    pub fn stats(&self) -> Stats {
        self.0.replica.lock().stats()
    }

    /// Tasks by agent, priority and status.
    pub fn counts(&self) -> Counts {
        self.0.replica.lock().counts.tasks.clone()
    }

    /// Each worker with its free places.
    pub fn workers_with_room(&self) -> Vec<(Worker, i64)> {
        let remembered = self.0.replica.lock();
        let fleet = &remembered.cache.fleet;
        fleet.workers().map(|worker| (worker.clone(), fleet.free(&worker.id).max(0))).collect()
    }

    pub fn active_leases(&self, worker: &str) -> i64 {
        i64::from(self.0.replica.lock().cache.fleet.used(worker).count_ones())
    }

    pub fn directives(&self, worker: &str) -> Directives {
        let remembered = self.0.replica.lock();
        Directives {
            cancel: remembered.cancels(worker),
            drain: remembered.cache.fleet.worker(worker).is_some_and(|worker| worker.draining),
        }
    }

    pub fn waiting(&self, task: &TaskState) -> Option<Waiting> {
        if task.status != Status::Queued {
            return None;
        }
        let waiting = |reason, message: String| Some(Waiting { reason, message });
        match task.parked {
            Some(Parked::DependsOn) => {
                return waiting(WaitingReason::DependsOn, "waits until the tasks that it depends on are completed".into());
            }
            Some(Parked::NotBefore) => {
                let at = task.not_before.unwrap_or_default();
                return waiting(WaitingReason::NotBefore, format!("does not run before {at} (ms since the epoch)"));
            }
            Some(Parked::Session) => return waiting(WaitingReason::SessionWorker, "an earlier task of its context is not finished".into()),
            Some(Parked::Reserved) => {
                let worker = task.session_worker.as_deref().unwrap_or_default();
                return waiting(WaitingReason::SessionWorker, format!("reserved for worker '{worker}', which has its session"));
            }
            Some(Parked::ExclusiveKey) => return waiting(WaitingReason::ExclusiveKey, "another task holds its exclusive key".into()),
            None => {}
        }
        match self.0.replica.lock().cache.fleet.shortage(&task.agent_slug) {
            Some(Shortage::NoWorker) => waiting(WaitingReason::NoWorker, format!("no online worker serves agent '{}'", task.agent_slug)),
            Some(Shortage::Cordoned) => {
                waiting(WaitingReason::Cordoned, format!("every online worker that serves agent '{}' is cordoned", task.agent_slug))
            }
            Some(Shortage::NoCapacity) => {
                waiting(WaitingReason::NoCapacity, format!("every worker that serves agent '{}' is full", task.agent_slug))
            }
            None => None,
        }
    }

    /// Where the worker's agent is; `None`: there is no such worker, or it has not said.
    pub fn worker_url(&self, worker: &str) -> Option<String> {
        self.0.replica.lock().cache.fleet.worker(worker).map(|worker| worker.url.clone()).filter(|url| !url.is_empty())
    }

    /// Whether this lease holds the task, as far as this replica knows.
    pub fn holds(&self, task: TaskId, lease: LeaseId) -> bool {
        self.0.replica.lock().cache.held(task).is_some_and(|held| held.lease == lease)
    }

    pub(super) fn shortlist(&self, task: TaskId, needs_url: bool) -> Choice {
        let spec = self.0.specs.get(task);
        let workers = match &spec {
            Some(spec) => self.0.replica.lock().cache.fleet.shortlist(&spec.agent_slug, &spec.context_id, SHORTLIST, needs_url),
            None => Vec::new(),
        };
        Choice::Among { workers, context: spec.map(|spec| spec.context_id.clone()) }
    }

    pub fn seen(&self, worker: &str, at: Ms) {
        self.0.replica.lock().cache.fleet.seen(worker, at);
    }

    pub(super) fn announce(&self, changes: Changes) {
        for id in &changes.removed_tasks {
            self.0.specs.remove(*id);
        }
        let alarms = &self.0.alarms;
        for task in &changes.tasks {
            if let Some(lease) = &task.lease {
                alarms.lease_due.ring_before(lease.check_at);
            }
            if let Some(at) = task.wake_at {
                alarms.task_due.ring_before(at);
            }
        }
        if !changes.workers.is_empty() {
            alarms.worker_silent.ring();
        }
        // Something may be ready, or somebody free.
        let may_push = !changes.workers.is_empty() || changes.tasks.iter().any(|task| task.lease.is_none());
        if may_push && self.0.replica.lock().cache.fleet.is_anybody_pushed_to() {
            alarms.push_due.ring();
        }
        if changes.reset {
            alarms.ring_all();
        }
        // Nobody may be listening.
        let _ = self.0.changes.send(Arc::new(changes));
    }

    /// Feeds the metrics with what a commit tells.
    pub(super) fn measure(&self, set: &WorkingSet) {
        for id in &set.dirty.tasks {
            if let Some(Some(task)) = set.loaded.tasks.get(id)
                && let Some(lease) = &task.lease
                && lease.started_at == set.now()
                && task.status == Status::Leased
            {
                self.0.metrics.assigned((lease.started_at - task.ready_at.unwrap_or_else(|| task.created_at())) as f64 / 1000.0);
            }
        }
        for result in &set.dirty.results {
            self.0.metrics.run(result.status.as_str(), result.duration_ms as f64 / 1000.0);
        }
        for entry in &set.dirty.audit {
            match entry.action {
                Action::LeaseExpired => self.0.metrics.lease_expired(),
                Action::TaskRetried | Action::TaskReleased => self.0.metrics.retried(),
                _ => {}
            }
        }
        for record in set.dirty.past_leases.iter().filter(|record| record.completed) {
            if let Some(usage) = record.usage {
                self.0.metrics.used(&record.agent_slug, record.model.as_deref(), &usage);
            }
        }
    }
}
