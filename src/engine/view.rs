//! Looks at this replica's picture, for answers and metrics.

use std::collections::HashMap;
use std::sync::Arc;

use super::board::Stats;
use super::changes::Changes;
use super::{Engine, lock};
use crate::core::Ms;
use crate::core::audit::Action;
use crate::core::command::Choice;
use crate::core::fleet::{Fleet, Shortage};
use crate::core::ids::{LeaseId, TaskId, WorkerId};
use crate::core::task::{Parked, Status, TaskState};
use crate::core::worker::Worker;
use crate::core::working_set::{Counts, WorkingSet};
use crate::store;

/// Why a queued task does not run yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    pub reason: &'static str,
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
const PAGE: i64 = 1_000;

impl Engine {
    pub fn stats(&self) -> Stats {
        lock(&self.0.board).stats()
    }

    /// Tasks by agent, priority and status.
    pub fn counts(&self) -> Counts {
        lock(&self.0.board).counts.clone()
    }

    /// Each worker with its free places.
    pub fn workers_with_room(&self) -> Vec<(Worker, i64)> {
        let board = lock(&self.0.board);
        board.fleet.workers().map(|worker| (worker.clone(), board.fleet.free(&worker.id).max(0))).collect()
    }

    pub fn active_leases(&self, worker: &str) -> i64 {
        i64::from(lock(&self.0.board).fleet.used(worker).count_ones())
    }

    pub fn directives(&self, worker: &str) -> Directives {
        let board = lock(&self.0.board);
        Directives { cancel: board.cancels(worker), drain: board.fleet.worker(worker).is_some_and(|worker| worker.draining) }
    }

    pub fn waiting(&self, task: &TaskState) -> Option<Waiting> {
        if task.status != Status::Queued {
            return None;
        }
        let waiting = |reason, message: String| Some(Waiting { reason, message });
        match task.parked {
            Some(Parked::DependsOn) => return waiting("depends_on", "waits for tasks that it depends on to complete".into()),
            Some(Parked::NotBefore) => {
                let at = task.not_before.unwrap_or_default();
                return waiting("not_before", format!("does not run before {at} (ms since the epoch)"));
            }
            Some(Parked::Session) => return waiting("session_worker", "an earlier task of its context is not done".into()),
            Some(Parked::ExclusiveKey) => return waiting("exclusive_key", "another task holds its exclusive key".into()),
            None => {}
        }
        let board = lock(&self.0.board);
        match board.fleet.shortage(&task.agent_slug) {
            Some(Shortage::NoWorker) => waiting("no_worker", format!("no online worker serves agent '{}'", task.agent_slug)),
            Some(Shortage::Cordoned) => {
                waiting("cordoned", format!("every online worker that serves agent '{}' is cordoned", task.agent_slug))
            }
            Some(Shortage::NoCapacity) => waiting("no_capacity", format!("every worker that serves agent '{}' is full", task.agent_slug)),
            None => {
                let (worker, until) = board.ready(task).reserved_for?;
                let kept = until > self.now() && board.fleet.worker(&worker).is_some_and(Worker::is_online);
                if kept { waiting("session_worker", format!("kept for worker '{worker}', which has its session")) } else { None }
            }
        }
    }

    /// Where the worker's agent is; `None`: there is no such worker, or it has not said.
    pub fn worker_url(&self, worker: &str) -> Option<String> {
        lock(&self.0.board).fleet.worker(worker).map(|worker| worker.url.clone()).filter(|url| !url.is_empty())
    }

    /// Whether this lease holds the task, as far as this replica knows.
    pub fn holds(&self, task: TaskId, lease: LeaseId) -> bool {
        lock(&self.0.board).fleet.holds(task, lease)
    }

    pub(super) fn shortlist(&self, task: TaskId, needs_url: bool) -> Choice {
        let spec = self.0.specs.get(task);
        let board = lock(&self.0.board);
        let workers = match &spec {
            Some(spec) => board.fleet.shortlist(&spec.agent_slug, &spec.context_id, SHORTLIST, needs_url),
            None => Vec::new(),
        };
        Choice::Among { workers, context: spec.map(|spec| spec.context_id.clone()) }
    }

    /// Active leases that are due, and when the next one is.
    pub fn due_leases(&self, limit: usize) -> (Vec<(TaskId, LeaseId)>, Option<Ms>) {
        lock(&self.0.board).fleet.due_leases(self.now(), limit)
    }

    pub fn defer_expiry(&self, task: TaskId, until: Ms) {
        lock(&self.0.board).fleet.defer(task, until);
    }

    pub fn silent_workers(&self, silent_for_ms: i64) -> (Vec<WorkerId>, Option<Ms>) {
        lock(&self.0.board).fleet.silent_workers(self.now(), silent_for_ms)
    }

    pub fn seen(&self, worker: &str, at: Ms) {
        lock(&self.0.board).fleet.seen(worker, at);
    }

    /// Takes a commit into the picture: number `n` of a lane, and what it counted.
    pub(super) fn take_over(&self, changes: &Changes, (lane, n): (i64, i64), counts: &Counts, leases_granted: i64) {
        let mut board = lock(&self.0.board);
        board.apply(changes);
        let mut positions = lock(&self.0.positions);
        let known = positions.entry(lane).or_default();
        if *known < n {
            *known = n;
            board.count(counts, leases_granted);
        }
    }

    pub(super) fn announce(&self, changes: Changes) {
        for id in &changes.removed_tasks {
            self.0.specs.remove(*id);
        }
        let alarms = &self.0.alarms;
        for task in &changes.tasks {
            if let Some(lease) = &task.lease {
                alarms.lease_due.ring_before(lease.expires_at);
            }
            if task.parked == Some(Parked::NotBefore) {
                alarms.task_due.ring_before(task.not_before.unwrap_or_default());
            }
        }
        if !changes.workers.is_empty() {
            alarms.worker_silent.ring();
        }
        // Something may be ready, or somebody free.
        let may_push = !changes.workers.is_empty() || changes.tasks.iter().any(|task| task.lease.is_none());
        if may_push && lock(&self.0.board).fleet.is_anybody_pushed_to() {
            alarms.push_due.ring();
        }
        if changes.reset {
            alarms.ring_all();
        }
        // Nobody may be listening.
        let _ = self.0.changes.send(Arc::new(changes));
    }

    /// Reads queue and fleet anew: at the start, and after a gap in the feed.
    pub(super) async fn read_picture(&self) -> Result<(), store::Error> {
        loop {
            let (counts, leases_total, positions) = self.0.store.counts().await?;
            let workers = self.0.store.workers().await?;
            let mut held: Vec<TaskState> = Vec::new();
            loop {
                let page = self.0.store.active_tasks(held.last().map(|task| task.id), PAGE).await?;
                let last = i64::try_from(page.len()).is_ok_and(|rows| rows < PAGE);
                held.extend(page);
                if last {
                    break;
                }
            }
            let positions: HashMap<i64, i64> = positions.into_iter().collect();
            let mut board = lock(&self.0.board);
            let mut known = lock(&self.0.positions);
            // A lane of this process has committed meanwhile, and its word would be lost: once more. (Of a lane that was removed, since
            // nobody heard of this process for long, all is in the counts.)
            let is_behind = |lane: &i64| positions.get(lane).is_some_and(|read| known.get(lane).is_some_and(|told| told > read));
            if lock(&self.0.own_lanes).iter().any(is_behind) {
                continue;
            }
            *known = positions;
            board.queue.reset();
            board.fleet = Fleet::default();
            board.counts = counts;
            board.leases_total = leases_total;
            let changes = Changes {
                workers: workers.into_iter().map(Arc::new).collect(),
                tasks: held.into_iter().map(Arc::new).collect(),
                ..Changes::default()
            };
            board.apply(&changes);
            return Ok(());
        }
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
