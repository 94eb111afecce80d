//! The state of the replica cache, behind its lock: the cache of tasks and workers, the counts, the positions up to which each writer was
//! followed, and the open claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue};
use bloom_core::cache::{Cache, CacheRead, Effect, Part, ReadyRow, Scope};
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::requirement::Requirement;
use bloom_core::task::TaskState;
use bloom_core::worker::Worker;
use bloom_database::{CountDeltas, CountsAt, Position};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Stats;
use super::queues::{QueueState, Queues};

#[derive(Default)]
pub(crate) struct Remembered {
    pub cache: Cache,
    pub queues: Queues,
    /// Open claims by worker; each is woken when there may be work for it.
    pollers: BTreeMap<WorkerId, Vec<Poller>>,
    /// Rises whenever there is new work for waiting claims.
    round: u64,
    pub counts: CountDeltas,
    /// For each writer, the number of its last batch that is in the counts.
    positions: BTreeMap<i64, i64>,
    /// The writers of this process.
    own: Vec<i64>,
    /// The count changes that arrive while the counts are being read.
    counted_meanwhile: Option<Vec<(Position, CountDeltas)>>,
    /// Workers that a push failed for because another program keeps a row locked, and the time of the failure. They get no pushes for a
    /// while.
    passed_over: BTreeMap<WorkerId, Instant>,
}

/// This is longer than tasks are withheld for the same reason, so that such a task goes to another worker.
const PASSED_OVER_FOR: Duration = Duration::from_secs(5);

/// An open claim.
struct Poller {
    notify: Arc<Notify>,
    /// The last round in which this claim was woken.
    round: u64,
}

impl Remembered {
    /// Must be called before the counts are read again, and followed by [`end_counts`](Self::end_counts).
    pub(crate) fn begin_counts(&mut self) {
        self.counted_meanwhile = Some(Vec::new());
    }

    /// Replaces the counts by those that were read, and adds the commits that the snapshot does not include.
    pub(crate) fn end_counts(&mut self, read: Option<CountsAt>) {
        let meanwhile = self.counted_meanwhile.take().unwrap_or_default();
        let Some(CountsAt { counts, positions }) = read else { return };
        let known = std::mem::take(&mut self.positions);
        self.positions = positions.into_iter().map(|position| (position.writer, position.n)).collect();
        self.counts = counts;
        self.queues.recount(&self.counts.tasks);
        for (position, deltas) in meanwhile {
            self.count(position, &deltas);
        }
        for own in &self.own {
            let n = known.get(own).copied().unwrap_or_default();
            let now = self.positions.entry(*own).or_default();
            *now = n.max(*now);
        }
        // The counts may include ends of leases that this replica has not heard of one by one.
        for agent_slug in self.queues.limited() {
            self.wake_for_queue(&agent_slug);
        }
    }

    /// The positions up to which each writer was followed, and the ids of this process's writers.
    pub(crate) fn positions(&self) -> (Vec<Position>, Vec<i64>) {
        (self.positions.iter().map(|(writer, n)| Position { writer: *writer, n: *n }).collect(), self.own.clone())
    }

    pub(crate) fn commits(&self) -> i64 {
        self.positions.values().sum()
    }

    pub(crate) fn own(&mut self, writer: i64) {
        if !self.own.contains(&writer) {
            self.own.push(writer);
        }
    }

    pub(crate) fn count(&mut self, position: Position, deltas: &CountDeltas) {
        let known = self.positions.entry(position.writer).or_default();
        if *known < position.n {
            *known = position.n;
            self.counts.add(deltas);
            for agent_slug in self.queues.count(&deltas.tasks) {
                self.wake_for_queue(&agent_slug);
            }
            if let Some(meanwhile) = &mut self.counted_meanwhile {
                meanwhile.push((position, deltas.clone()));
            }
        }
    }

    /// Replaces all queues, and wakes claims for those that are open now.
    pub(crate) fn put_queues(&mut self, rows: Vec<AgentQueue>) {
        if self.queues.put(rows) {
            let agents: Vec<String> = self.queues.tasks().keys().cloned().collect();
            self.wake_for_queues(&agents);
        }
    }

    /// Ends a refusal. If there was no news of its queues since then, the refusal itself may be outdated.
    pub(crate) fn forget_refusal(&mut self, number: u64) {
        let mut agents = self.queues.forget_refusal(number);
        if agents.iter().any(|slug| slug == ALL_QUEUES) {
            agents = self.queues.tasks().keys().cloned().collect();
        }
        self.wake_for_queues(&agents);
    }

    /// Wakes as many claims as the queue has room for. The namespaces and projects of its tasks are unknown, so this many claims are woken
    /// in each group of workers that serve the same ones.
    fn wake_for_queue(&mut self, agent_slug: &str) {
        let leasable = self.queues.leasable(agent_slug);
        if leasable <= 0 {
            return;
        }
        self.round += 1;
        let fleet = &self.cache.fleet;
        let serving = self.pollers.keys().filter_map(|id| fleet.worker(id)).filter(|worker| worker.serves_agent(agent_slug));
        let groups: BTreeSet<_> = serving.map(|worker| Part::served_by(&worker.capabilities)).collect();
        for parts in groups {
            let suits = |worker: &Worker| worker.serves_agent(agent_slug) && Part::served_by(&worker.capabilities) == parts;
            self.wake_suited(agent_slug, leasable, suits);
        }
    }

    /// Adds a worker's row and wakes the claims that it may concern. Returns whether the row is the newest.
    pub(crate) fn put_worker(&mut self, worker: &Worker, read: &CacheRead) -> bool {
        let fleet = &self.cache.fleet;
        let before = (fleet.free(&worker.id), fleet.takes_tasks(&worker.id));
        let served = |known: &Worker| (known.capabilities.clone(), known.closed_agents().cloned().collect::<Vec<_>>());
        let served_before = fleet.worker(&worker.id).map(served);
        let kept_before = fleet.kept_agents(&worker.id);
        let is_newest = self.cache.put_worker(worker.clone(), read);
        let fleet = &self.cache.fleet;
        let is_changed = match (&served_before, fleet.worker(&worker.id)) {
            (Some((before, closed)), Some(known)) => known.capabilities.serves_others_than(before) || !known.closed_agents().eq(closed),
            (before, known) => before.is_some() != known.is_some(),
        };
        if is_changed || before != (fleet.free(&worker.id), fleet.takes_tasks(&worker.id)) || worker.draining {
            self.wake(&worker.id);
        }
        if is_changed || kept_before != self.cache.fleet.kept_agents(&worker.id) {
            self.wake_for_queues(&kept_before);
        }
        is_newest
    }

    pub(crate) fn remove_worker(&mut self, id: &str, revision: i64) {
        let kept_before = self.cache.fleet.kept_agents(id);
        self.cache.remove_worker(id, revision);
        self.wake(id);
        self.wake_for_queues(&kept_before);
    }

    /// Handles a worker that a read of all workers has not found.
    pub(crate) fn forget_worker(&mut self, id: &str, read: &CacheRead) {
        let kept_before = self.cache.fleet.kept_agents(id);
        self.cache.forget_worker(id, read);
        self.wake(id);
        self.wake_for_queues(&kept_before);
    }

    fn wake_for_queues(&mut self, agents: &[String]) {
        agents.iter().for_each(|agent_slug| self.wake_for_queue(agent_slug));
    }

    /// Adds rows, and wakes the claims that they may concern. Returns the tasks whose rows are not the newest.
    pub(crate) fn put_tasks<'a>(&mut self, tasks: impl Iterator<Item = &'a TaskState>, read: &CacheRead) -> Vec<TaskId> {
        let mut older = Vec::new();
        let mut ready: BTreeMap<Requirement<'_>, i64> = BTreeMap::new();
        for task in tasks {
            let Effect { is_newest, freed, is_ready } = self.cache.put_task(task, read);
            older.extend((!is_newest).then_some(task.id));
            if let Some(worker) = freed {
                self.wake(&worker);
            }
            match &task.session_worker {
                Some(worker) if is_ready && !task.is_ready() => self.wake(worker),
                _ if is_ready => *ready.entry(task.requirement()).or_default() += 1,
                _ => {}
            }
            if let Some(lease) = task.lease.as_ref().filter(|_| task.cancel_requested || task.is_answered()) {
                self.wake(&lease.worker_id);
            }
        }
        for (required, tasks) in ready {
            self.wake_for(required, tasks);
        }
        older
    }

    /// Adds tasks that were read as claimable.
    pub(crate) fn put_ready(&mut self, rows: Vec<ReadyRow>, read: &CacheRead) {
        for row in rows {
            if let Some(worker) = self.cache.put_ready(row, read).freed {
                self.wake(&worker);
            }
        }
    }

    pub(crate) fn remove_tasks(&mut self, tasks: &[TaskId]) {
        for task in tasks {
            if let Some(worker) = self.cache.remove_task(*task).freed {
                self.wake(&worker);
            }
        }
    }

    /// Makes tasks available to others again that a claim or a push held.
    pub(crate) fn give_back(&mut self, tasks: &[TaskId]) {
        self.cache.queue.give_back(tasks);
        self.wake_for_all(tasks);
    }

    /// Stops pushes to the worker for a while.
    pub(crate) fn pass_over(&mut self, worker: WorkerId) {
        self.passed_over.retain(|_, since| since.elapsed() < PASSED_OVER_FOR);
        self.passed_over.insert(worker, Instant::now());
    }

    pub(crate) fn is_passed_over(&self, worker: &str) -> bool {
        self.passed_over.get(worker).is_some_and(|since| since.elapsed() < PASSED_OVER_FOR)
    }

    /// Makes withheld tasks available again.
    pub(crate) fn show_again(&mut self, tasks: &[TaskId]) {
        self.cache.queue.show_again(tasks);
        self.wake_for_all(tasks);
    }

    fn wake_for_all(&mut self, tasks: &[TaskId]) {
        let claimable = self.cache.claimable(tasks);
        let mut number: BTreeMap<Requirement<'_>, i64> = BTreeMap::new();
        for ready in &claimable {
            *number.entry(ready.requirement()).or_default() += 1;
        }
        for (required, tasks) in number {
            self.wake_for(required, tasks);
        }
    }

    pub(crate) fn open_claim(&mut self, worker: &str) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        self.pollers.entry(worker.to_owned()).or_default().push(Poller { notify: notify.clone(), round: self.round });
        notify
    }

    pub(crate) fn close_claim(&mut self, worker: &str, notify: &Arc<Notify>) {
        if let Some(open) = self.pollers.get_mut(worker) {
            open.retain(|other| !Arc::ptr_eq(&other.notify, notify));
            if open.is_empty() {
                self.pollers.remove(worker);
            }
        }
    }

    pub(crate) fn has_open_claim(&self, worker: &str) -> bool {
        self.pollers.contains_key(worker)
    }

    pub(crate) fn wake(&mut self, worker: &str) {
        for poller in self.pollers.get_mut(worker).into_iter().flatten() {
            poller.round = self.round;
            poller.notify.notify_one();
        }
    }

    /// Wakes as many waiting workers as this number of new tasks needs. Workers that name the agent come first, then those with the most
    /// free slots.
    fn wake_for(&mut self, required: Requirement<'_>, tasks: i64) {
        if self.queues.is_open(required.agent_slug) {
            self.round += 1;
            self.wake_suited(required.agent_slug, tasks, |worker| worker.serves(required));
        }
    }

    fn wake_suited(&mut self, agent_slug: &str, mut tasks: i64, suits: impl Fn(&Worker) -> bool) {
        let fleet = &self.cache.fleet;
        let is_suited = |id: &&WorkerId| fleet.worker(id).is_some_and(&suits) && fleet.free(id) > 0;
        let names = |id: &WorkerId| fleet.worker(id).is_some_and(|worker| worker.capabilities.names_agent(agent_slug));
        let mut waiting: Vec<_> = self.pollers.keys().filter(is_suited).map(|id| (names(id), self.eagerness(id))).collect();
        waiting.sort_unstable_by(|a, b| b.cmp(a));
        for (_, (free, _, id)) in waiting {
            if tasks <= 0 {
                break;
            }
            tasks -= free;
            self.wake(&id);
        }
    }

    fn eagerness(&self, id: &WorkerId) -> (i64, Option<Ms>, WorkerId) {
        (self.cache.fleet.free(id), self.cache.fleet.worker(id).map(|worker| worker.last_seen), id.clone())
    }

    /// Called after each try of a claim. If claimable tasks are left, it wakes another claim that can take one. If no claim can, it wakes
    /// one for a worker that has reserved tasks. Each claim is woken at most once per round, because this replica may wrongly believe that
    /// a worker has a free slot.
    pub(crate) fn pass_on(&mut self) {
        let queues = &self.queues;
        let is_open = |agent_slug: &str| queues.is_open(agent_slug);
        let only_open: Option<&dyn Fn(&str) -> bool> = if queues.is_any_closed() { Some(&is_open) } else { None };
        let parts = self.cache.parts_with_claimable(only_open);
        let is_for_most = parts.iter().any(Part::is_for_most);
        let reserved = if is_for_most { Vec::new() } else { self.cache.with_reserved(is_open) };
        let fleet = &self.cache.fleet;
        let suits = |id: &WorkerId| {
            let served = fleet.worker(id).map_or_else(|| vec![Part::default()], |worker| Part::served_by(&worker.capabilities));
            served.iter().any(|part| parts.contains(part))
        };
        let waits = |pollers: &[Poller]| pollers.iter().any(|poller| poller.round < self.round);
        let can_go_on = |id: &WorkerId| fleet.free(id) > 0 && self.pollers.get(id).is_some_and(|pollers| waits(pollers));
        let most_eager = |others: &mut dyn Iterator<Item = &WorkerId>| others.map(|id| self.eagerness(id)).max();
        let next = most_eager(&mut self.pollers.keys().filter(|id| suits(id) && can_go_on(id)))
            .or_else(|| most_eager(&mut reserved.iter().filter(|id| can_go_on(id))));
        if let Some((_, _, next)) = next {
            self.wake(&next);
        }
    }

    /// The windows of the queue that have tasks for the worker. A worker that names no agents normally uses a window on all tasks. While
    /// some queue is closed, or a pause closes some agents on this worker, it uses the windows of the agents that have tasks instead,
    /// because a window on all tasks could be full of tasks that it may not have.
    pub(crate) fn scopes(&self, worker: &str, queue_state: Option<&QueueState>) -> Vec<Scope> {
        let known = self.cache.fleet.worker(worker);
        let capabilities = known.map(|worker| &worker.capabilities);
        let is_open = |agent_slug: &&String| {
            let is_open = queue_state.map_or_else(|| self.queues.is_open(agent_slug), |queue_state| queue_state.is_open(agent_slug));
            is_open && !known.is_some_and(|worker| worker.is_closed_for(agent_slug))
        };
        let is_restricted = queue_state.map_or_else(|| self.queues.is_any_closed(), |queue_state| !queue_state.closed.is_empty())
            || known.is_some_and(Worker::has_closed_agents);
        // `None`: one window for all agents.
        let agents: Option<Vec<&String>> = match (capabilities.and_then(|served| served.agents.as_ref()), queue_state) {
            (Some(agents), _) => Some(agents.iter().filter(is_open).collect()),
            (None, _) if !is_restricted => None,
            (None, Some(queue_state)) => Some(queue_state.ready.iter().filter(is_open).collect()),
            (None, None) => {
                let queued = self.queues.tasks().iter().filter(|(_, tasks)| tasks.queued > 0).map(|(agent_slug, _)| agent_slug);
                Some(queued.filter(is_open).collect())
            }
        };
        let parts = capabilities.map_or_else(|| vec![Part::default()], Part::served_by);
        let of_part = |part: Part| match &agents {
            None => vec![Scope::of(part, None)],
            Some(agents) => agents.iter().map(|agent_slug| Scope::of(part.clone(), Some(agent_slug))).collect(),
        };
        let mut scopes: Vec<Scope> = parts.into_iter().flat_map(of_part).collect();
        scopes.push(Scope::Reserved(worker.to_owned()));
        scopes
    }

    pub(crate) fn cancels(&self, worker: &str) -> Vec<TaskId> {
        self.cache.fleet.held(worker).filter(|held| held.cancel_requested).map(|held| held.task).collect()
    }

    pub(crate) fn cancelled_leases(&self, worker: &str) -> Vec<LeaseId> {
        self.cache.fleet.held(worker).filter(|held| held.cancel_requested).map(|held| held.lease).collect()
    }

    pub(crate) fn answered(&self, worker: &str) -> Vec<TaskId> {
        self.cache.fleet.held(worker).filter(|held| held.is_answered).map(|held| held.task).collect()
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats { leases_total: self.counts.leases, ..Stats::default() };
        for ((_, _, status), count) in &self.counts.tasks {
            *stats.tasks_by_status.entry(*status).or_default() += count;
            if status.is_active() {
                stats.leases_active += count;
            }
        }
        for worker in self.cache.fleet.workers() {
            stats.workers_total += 1;
            stats.workers_online += i64::from(worker.is_online());
        }
        stats
    }
}
