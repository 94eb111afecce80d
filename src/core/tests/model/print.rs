//! Defines when two states are equal: ids and times differ between paths and are not compared.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::state::{Begun, State};
use super::{Setting, WORKERS};
use bloom_core::command::Op;
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::wakeup::Subject;

impl State {
    pub(super) fn sealed(mut self, setting: &Setting) -> Self {
        // The workers are interchangeable, so swapping them gives the same state.
        let prints = [WORKERS, [WORKERS[1], WORKERS[0]]].map(|workers| {
            let mut hasher = DefaultHasher::new();
            self.hash_all(workers, &mut hasher);
            hasher.finish()
        });
        self.print = prints[0].min(prints[1]);
        let mut graph = setting.graph.lock().unwrap();
        graph.seen.insert(self.print);
        if self.is_over() {
            graph.ends.insert(self.print);
        }
        drop(graph);
        self
    }

    /// Hashes only what matters of ids and times: which task, the number of the lease, and whether a time has come.
    pub(super) fn hash_all(&self, workers: [&str; 2], hasher: &mut DefaultHasher) {
        let place = |worker: &str| workers[0] == worker;
        let number = |id: &TaskId| self.tasks.iter().position(|task| task == id);
        for id in &self.tasks {
            let task = &self.db.tasks[id];
            (task.status, task.attempts, task.infra_retries, task.cancel_requested, task.parked, task.has_dependents).hash(hasher);
            (task.suspend, task.not_before.is_some_and(|at| at > self.now)).hash(hasher);
            task.created_after.as_ref().map(number).hash(hasher);
            if self.session_wait_ms > 0 {
                (task.session_worker.as_deref().map(place), task.wake_at.is_some_and(|at| at > self.now)).hash(hasher);
            }
            task.lease.as_ref().map(|lease| (place(&lease.worker_id), lease.slot, lease.origin, lease.holds_context)).hash(hasher);
            task.last_lease.as_ref().map(|last| last.status).hash(hasher);
            // Messages for an earlier lease change nothing, which is checked when they happen.
            let newest = self.leases.iter().rfind(|given| given.task == *id);
            let ended = newest
                .and_then(|given| self.db.past_leases.get(&given.id))
                .map(|past| (past.status, past.completed, past.last_heartbeat > past.started_at));
            (task.lease_count, newest.map(|given| (place(given.worker), given.known, given.sending)), ended).hash(hasher);
        }
        let mut begun: Vec<u64> = self.replicas.iter().flatten().map(|begun| begun.print(place, number)).collect();
        begun.sort_unstable();
        begun.hash(hasher);
        for wakeup in self.db.wakeups.values() {
            let subject = match &wakeup.subject {
                Subject::Dependents(task) => ("dependents", "", number(task)),
                Subject::Context { context_id, after } => ("context", context_id.as_str(), after.as_ref().and_then(number)),
                Subject::Key(key) => ("key", key.as_str(), None),
                Subject::Reservations(_) => ("reservations", "", None),
            };
            (subject, wakeup.cursor.as_ref().map(number)).hash(hasher);
        }
        (self.crashes, self.cancelled, self.requeued, self.edited, self.suspended).hash(hasher);
    }
}

impl Begun {
    pub(super) fn print(&self, place: impl Fn(&str) -> bool, number: impl Fn(&TaskId) -> Option<usize>) -> u64 {
        let mut hasher = DefaultHasher::new();
        match &self.op {
            Op::Claim(claim) => {
                ("claim", place(&claim.worker), claim.held.is_some(), claim.candidates.iter().map(&number).collect::<Vec<_>>())
                    .hash(&mut hasher)
            }
            Op::Lease(op::Lease { task, .. }) => {
                ("lease", self.keys.workers.iter().map(|worker| place(worker)).collect::<Vec<_>>(), number(task)).hash(&mut hasher)
            }
            Op::Push(op::Push { task, .. }) => {
                ("push", self.keys.workers.iter().map(|worker| place(worker)).collect::<Vec<_>>(), number(task)).hash(&mut hasher)
            }
            Op::Requeue(op::Requeue { task, limits: _ }) => ("again", number(task)).hash(&mut hasher),
            Op::Suspend(op::Suspend { task, .. }) => ("resume", number(task)).hash(&mut hasher),
            Op::Reevaluate(op::Reevaluate { tasks, progress }) => {
                let progress = progress.as_ref().map(|progress| (progress.next.as_ref().map(&number), progress.more_want_key));
                ("look", tasks.iter().map(&number).collect::<Vec<_>>(), progress).hash(&mut hasher)
            }
            _ => "create".hash(&mut hasher),
        }
        let seen: BTreeSet<_> = self
            .view
            .iter()
            .filter(|(worker, _)| self.keys.workers.contains(*worker))
            .map(|(worker, used)| (place(worker), used))
            .collect();
        let held = self.found.worker_tasks.values().flatten().map(&number).collect::<BTreeSet<_>>();
        let holders: BTreeSet<_> = self.found.contexts.iter().map(|(context, view)| (context, view.holder.as_ref().map(&number))).collect();
        let before: BTreeSet<_> =
            self.found.predecessors.iter().map(|((_, id), found)| (number(id), found.as_ref().map(&number))).collect();
        let keys: BTreeSet<_> = self.found.exclusive.iter().map(|(key, holder)| (key, holder.as_ref().map(&number))).collect();
        (seen, held, holders, before, keys, self.keys.exact_slots.len(), self.found.dependencies.len(), self.exact).hash(&mut hasher);
        self.found_tasks.iter().map(number).collect::<Vec<_>>().hash(&mut hasher);
        hasher.finish()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.print.hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print
    }
}
