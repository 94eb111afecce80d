//! This replica's picture of the queue and the fleet, and the claims that wait on it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::Notify;

use super::changes::Changes;
use crate::core::Ms;
use crate::core::fleet::Fleet;
use crate::core::ids::{TaskId, WorkerId};
use crate::core::queue::{Queue, Ready, Scope};
use crate::core::task::{Status, TaskState};
use crate::core::worker::Worker;
use crate::core::working_set::Counts;

/// Tasks, leases and workers, counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub tasks_by_status: BTreeMap<Status, i64>,
    pub leases_total: i64,
    pub leases_active: i64,
    pub workers_total: i64,
    pub workers_online: i64,
}

#[derive(Default)]
pub(super) struct Board {
    pub queue: Queue,
    pub fleet: Fleet,
    /// Open claims by worker; each is woken when there may be something for it.
    pub pollers: HashMap<WorkerId, Vec<Arc<Notify>>>,
    pub counts: Counts,
    pub leases_total: i64,
    pub session_wait_ms: i64,
}

impl Board {
    pub fn ready(&self, task: &TaskState) -> Ready {
        let until = task.ready_at.unwrap_or(task.updated_at) + self.session_wait_ms;
        Ready {
            key: (9 - task.priority, task.id),
            agent_slug: task.agent_slug.clone(),
            reserved_for: task.session_worker.clone().map(|worker| (worker, until)),
        }
    }

    /// Takes over a commit and wakes the claims that it may concern.
    pub fn apply(&mut self, changes: &Changes) {
        let mut woken: Vec<WorkerId> = Vec::new();
        for worker in &changes.workers {
            let before = self.fleet.free(&worker.id);
            let took = self.fleet.takes_tasks(&worker.id);
            self.fleet.put_worker(Worker::clone(worker));
            if self.fleet.free(&worker.id) != before || self.fleet.takes_tasks(&worker.id) != took || worker.draining {
                woken.push(worker.id.clone());
            }
        }
        for id in &changes.removed_workers {
            self.fleet.remove_worker(id);
            woken.push(id.clone());
        }
        let mut ready: BTreeMap<&str, i64> = BTreeMap::new();
        for task in &changes.tasks {
            woken.extend(self.fleet.put_task(task));
            if task.is_ready() {
                let entry = self.ready(task);
                woken.extend(entry.reserved_for.as_ref().map(|(worker, _)| worker.clone()));
                self.queue.put(&entry);
                *ready.entry(&task.agent_slug).or_default() += 1;
            } else {
                self.queue.remove((9 - task.priority, task.id), &task.agent_slug);
            }
            if let Some(lease) = task.lease.as_ref().filter(|_| task.cancel_requested) {
                woken.push(lease.worker_id.clone());
            }
        }
        if !changes.removed_tasks.is_empty() {
            for id in &changes.removed_tasks {
                self.fleet.remove_task(*id);
            }
            self.queue.forget(&changes.removed_tasks);
        }
        for worker in woken {
            self.wake(&worker);
        }
        for (agent_slug, tasks) in ready {
            self.wake_for(agent_slug, tasks);
        }
    }

    pub fn count(&mut self, deltas: &Counts, leases_granted: i64) {
        for (key, delta) in deltas {
            let count = self.counts.entry(key.clone()).or_default();
            *count += delta;
            if *count == 0 {
                self.counts.remove(key);
            }
        }
        self.leases_total += leases_granted;
    }

    fn wake(&self, worker: &str) {
        for poller in self.pollers.get(worker).into_iter().flatten() {
            poller.notify_one();
        }
    }

    /// Wakes as many waiting workers as it takes to run so many new tasks, those with most room first.
    fn wake_for(&self, agent_slug: &str, mut tasks: i64) {
        let suits =
            |id: &&WorkerId| self.fleet.worker(id).is_some_and(|worker| worker.capabilities.serves(agent_slug)) && self.fleet.free(id) > 0;
        let mut waiting: Vec<&WorkerId> = self.pollers.keys().filter(suits).collect();
        waiting.sort_by_key(|id| std::cmp::Reverse((self.fleet.free(id), self.fleet.worker(id).map(|worker| worker.last_seen))));
        for id in waiting {
            if tasks <= 0 {
                break;
            }
            tasks -= self.fleet.free(id);
            self.wake(id);
        }
    }

    /// Where a worker looks for tasks.
    pub fn scopes(&self, worker: &str) -> Vec<Scope> {
        match self.fleet.worker(worker).and_then(|worker| worker.capabilities.agents.as_ref()) {
            Some(agents) => agents.iter().cloned().map(Scope::Agent).collect(),
            None => vec![Scope::All],
        }
    }

    pub fn look(&mut self, worker: &str, scopes: &[Scope], max: usize, now: Ms) -> crate::core::queue::Look {
        let fleet = &self.fleet;
        self.queue.look(scopes, worker, max, now, |other, agent_slug| {
            fleet.takes_tasks(other) && fleet.worker(other).is_some_and(|other| other.is_online() && other.capabilities.serves(agent_slug))
        })
    }

    pub fn cancels(&self, worker: &str) -> Vec<TaskId> {
        self.fleet.held(worker).filter(|held| held.cancel_requested).map(|held| held.task).collect()
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats { leases_total: self.leases_total, ..Stats::default() };
        for ((_, _, status), count) in &self.counts {
            *stats.tasks_by_status.entry(*status).or_default() += count;
            if status.is_active() {
                stats.leases_active += count;
            }
        }
        for worker in self.fleet.workers() {
            stats.workers_total += 1;
            stats.workers_online += i64::from(worker.is_online());
        }
        stats
    }
}
