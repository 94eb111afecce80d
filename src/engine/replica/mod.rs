//! The replica cache: this process's copy of parts of the database. It receives commits of this process at once, and those of other
//! replicas through the [`feed`]. It answers queries without a read of the database, and notifies watchers.

pub(super) mod feed;
mod queues;
pub(super) mod remembered;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::agent_queue::AgentQueue;
use bloom_core::cache::CacheRead;
use bloom_core::command::Choice;
use bloom_core::ids::{InstanceId, LeaseId, TaskId, WorkerId};
use bloom_core::pause::{Pause, PausedAccount, ResumedAccount};
use bloom_core::task::{Parked, Status, TaskState};
use bloom_core::worker::{Worker, WorkerStatus};
use bloom_core::working_set::{Counts, WorkingSet};
use bloom_database::{CountDeltas, Position};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;

use super::alarm::Alarms;
use super::changes::Changes;
use super::specs::Specs;
use super::waiting_reasons::WaitingState;
pub use queues::AgentTasks;
pub(super) use queues::QueueState;
use remembered::Remembered;

/// How many commits a slow watcher may fall behind before it must read everything again.
const CHANGES_KEPT: usize = 256;
/// How many workers a lease call proposes. More are considered if none of them is suitable.
const SHORTLIST: usize = 4;

/// Numbers of tasks, leases and workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// The numbers of tasks by status. Statuses that no task has are left out.
    pub tasks_by_status: BTreeMap<Status, i64>,
    /// The number of leases that were ever granted.
    pub leases_total: i64,
    /// Tasks that are leased or running.
    pub leases_active: i64,
    /// Registered workers.
    pub workers_total: i64,
    /// Workers that are online.
    pub workers_online: i64,
}

/// Instructions to a worker, besides running its tasks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directives {
    /// Tasks of its leases whose runs it must end, because they are to be cancelled.
    pub cancel: Vec<TaskId>,
    /// The leases of these tasks, in `cancel`.
    pub cancel_leases: Vec<LeaseId>,
    /// Tasks whose runs have an answer to fetch.
    pub answered: Vec<TaskId>,
    /// Whether it gets no more tasks. Its current runs go on.
    pub drain: bool,
    /// Accounts that it must not use, because other workers found them to be out of quota.
    pub paused_accounts: Vec<PausedAccount>,
    /// Accounts whose pauses an administrator has ended.
    pub resumed_accounts: Vec<ResumedAccount>,
}

/// This process's cache of the database, with queries that need no read.
pub struct Replica {
    remembered: Mutex<Remembered>,
    specs: Arc<Specs>,
    alarms: Arc<Alarms>,
    changes: broadcast::Sender<Arc<Changes>>,
}

/// An open read for the cache, which ends when this is dropped. Until then the cache forgets nothing that it learns, so that it can tell
/// which of the rows that were read are outdated.
pub(super) struct OpenRead {
    replica: Arc<Replica>,
    read: CacheRead,
}

impl Deref for OpenRead {
    type Target = CacheRead;

    fn deref(&self) -> &CacheRead {
        &self.read
    }
}

impl Drop for OpenRead {
    fn drop(&mut self) {
        self.replica.lock().cache.end_read(&self.read);
    }
}

// Updates.
impl Replica {
    pub(super) fn new(specs: Arc<Specs>, alarms: Arc<Alarms>, named_agent_wait_ms: Ms) -> Self {
        let mut remembered = Remembered::default();
        remembered.cache.fleet.named_agent_wait_ms = named_agent_wait_ms;
        Self { remembered: Mutex::new(remembered), specs, alarms, changes: broadcast::channel(CHANGES_KEPT).0 }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock()
    }

    pub(super) fn begin_read(self: &Arc<Self>) -> OpenRead {
        OpenRead { replica: self.clone(), read: self.lock().cache.begin_read() }
    }

    fn begin_rebuild(self: &Arc<Self>) -> OpenRead {
        OpenRead { replica: self.clone(), read: self.lock().cache.begin_rebuild() }
    }

    /// Adds what a batch loaded and changed to the cache. If the batch was committed, also counts its changes and notifies watchers.
    pub(super) fn publish(&self, set: &WorkingSet, committed: Option<Position>, read: &CacheRead) {
        for spec in &set.dirty.specs {
            self.specs.put(spec.clone());
        }
        let committed = committed.map(|position| (position, Changes::of(set)));
        let mut remembered = self.lock();
        let workers: BTreeMap<_, _> = set.loaded.workers.iter().collect();
        let mut older_workers = Vec::new();
        for (id, worker) in workers {
            match (worker, set.loaded.worker_revisions.get(id)) {
                (Some(worker), _) => older_workers.extend((!remembered.put_worker(worker, read)).then_some(id)),
                (None, Some(revision)) => remembered.remove_worker(id, *revision),
                (None, None) => {}
            }
        }
        let tasks: BTreeMap<_, _> = set.loaded.tasks.iter().collect();
        let older_tasks = remembered.put_tasks(tasks.into_values().flatten(), read);
        let removed: Vec<TaskId> = set.dirty.removed_tasks.iter().copied().collect();
        remembered.remove_tasks(&removed);
        if let Some((position, mut changes)) = committed {
            remembered.count(position, &CountDeltas::of(set));
            changes.tasks.retain(|task| !older_tasks.contains(&task.id));
            changes.workers.retain(|worker| !older_workers.contains(&&worker.id));
            changes.removed_workers.retain(|id| remembered.cache.fleet.worker(id).is_none());
            self.announce(&remembered, changes);
        }
    }

    /// Adds the changes of a batch that a maintenance job has committed.
    pub(super) fn publish_removal(&self, removed: &[TaskId], counts: &CountDeltas, committed: Position) {
        let mut remembered = self.lock();
        remembered.remove_tasks(removed);
        remembered.count(committed, counts);
        self.announce(&remembered, Changes { removed_tasks: removed.to_vec(), ..Changes::default() });
    }

    /// Replaces all queues by these rows, which were read in one snapshot.
    fn put_queues(&self, rows: Vec<AgentQueue>) {
        self.lock().put_queues(rows);
        self.alarms.push_due.ring();
    }

    /// Ends the refusal with this number, for the queues that it still closes.
    pub(super) fn forget_refusal(&self, number: u64) {
        self.lock().forget_refusal(number);
        self.alarms.push_due.ring();
    }

    /// Notifies watchers and reconcilers. It is called under the lock of the cache, so that the changes of an object are announced in their
    /// order, and never one that is older than the cached state.
    fn announce(&self, remembered: &Remembered, changes: Changes) {
        if changes.is_empty() {
            return;
        }
        for id in &changes.removed_tasks {
            self.specs.remove(*id);
        }
        for task in &changes.tasks {
            if let Some(lease) = &task.lease {
                self.alarms.lease_due.ring_before(lease.check_at);
            }
            if let Some(at) = task.wake_at {
                self.alarms.task_due.ring_before(at);
            }
        }
        if !changes.workers.is_empty() {
            self.alarms.worker_silent.ring();
        }
        // A task may have become ready, or a worker may have got a free slot.
        let may_push = !changes.workers.is_empty() || changes.tasks.iter().any(|task| task.lease.is_none());
        if may_push && remembered.cache.fleet.has_pushed_workers() {
            self.alarms.push_due.ring();
        }
        if changes.reset {
            self.alarms.ring_all();
        }
        // Sending fails only if there are no watchers, which is fine.
        let _ = self.changes.send(Arc::new(changes));
    }

    /// Records a sign of life of the worker. Returns whether the worker is marked as lost.
    pub(super) fn see(&self, worker: &str, at: Ms) -> bool {
        let mut remembered = self.lock();
        let fleet = &mut remembered.cache.fleet;
        fleet.seen(worker, at);
        fleet.worker(worker).is_some_and(|worker| worker.lost)
    }
}

// Queries.
impl Replica {
    /// Receives the changes of each commit, by any replica.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Changes>> {
        self.changes.subscribe()
    }

    /// The current numbers, as far as this replica has heard of commits.
    pub fn stats(&self) -> Stats {
        self.lock().stats()
    }

    /// Grows with each commit that this replica has heard of.
    pub fn commits(&self) -> i64 {
        self.lock().commits()
    }

    /// The numbers of tasks by agent, priority and status.
    pub fn counts(&self) -> Counts {
        self.lock().counts.tasks.clone()
    }

    /// The queues that have settings. That of all queues comes first.
    pub fn queues(&self) -> Vec<AgentQueue> {
        self.lock().queues.rows().cloned().collect()
    }

    /// Agents with queued or active tasks.
    pub fn tasks_by_agent(&self) -> BTreeMap<String, AgentTasks> {
        self.lock().queues.tasks().clone()
    }

    /// How many more tasks of this agent its queue allows to run now: 0 if it is paused, `i64::MAX` if it has no limit.
    pub fn room_in_queue(&self, agent_slug: &str) -> i64 {
        self.lock().queues.room(agent_slug)
    }

    /// The tasks that the cache shows, with their revisions, for comparison with the database.
    pub fn shown_tasks(&self) -> Vec<(TaskId, i64)> {
        self.lock().cache.shown().collect()
    }

    /// Each worker with its free slots.
    pub fn workers_with_free_slots(&self) -> Vec<(Worker, i64)> {
        let remembered = self.lock();
        let fleet = &remembered.cache.fleet;
        fleet.workers().map(|worker| (worker.clone(), fleet.free(&worker.id).max(0))).collect()
    }

    /// The workers whose names begin with this prefix, each with its leased tasks.
    pub fn workers_named(&self, prefix: &str) -> Vec<(Worker, Vec<TaskId>)> {
        self.lock().cache.fleet.named(prefix).map(|(worker, tasks)| (worker.clone(), tasks.collect())).collect()
    }

    /// Whether the cache has this worker, and how many workers it has.
    pub fn knows_worker(&self, id: &str) -> (bool, usize) {
        let remembered = self.lock();
        let fleet = &remembered.cache.fleet;
        (fleet.worker(id).is_some(), fleet.workers().count())
    }

    /// Whether an agent other than `instance` works under the name.
    pub fn is_of_other(&self, worker: &str, instance: Option<InstanceId>) -> bool {
        self.lock().cache.fleet.worker(worker).is_some_and(|worker| worker.is_of_other(instance))
    }

    /// The number of the worker's active leases; 0 for an unknown worker.
    pub fn active_leases(&self, worker: &str) -> i64 {
        i64::from(self.lock().cache.fleet.used(worker).count_ones())
    }

    /// What the worker must do. `accounts` are the worker's accounts that other workers use, too.
    pub fn directives(&self, worker: &str, accounts: &[String], now: Ms) -> Directives {
        let remembered = self.lock();
        Directives {
            cancel: remembered.cancels(worker),
            cancel_leases: remembered.cancelled_leases(worker),
            answered: remembered.answered(worker),
            drain: remembered.cache.fleet.worker(worker).is_some_and(|worker| worker.draining),
            paused_accounts: remembered.cache.fleet.paused_accounts(worker, accounts, now),
            resumed_accounts: remembered.cache.fleet.resumed_accounts(worker),
        }
    }

    /// The pauses of all workers that are not offline.
    pub fn pauses(&self) -> Vec<(WorkerId, Pause)> {
        let remembered = self.lock();
        let there = remembered.cache.fleet.workers().filter(|worker| worker.shown_status() != WorkerStatus::Offline);
        there.flat_map(|worker| worker.pauses.iter().map(|pause| (worker.id.clone(), pause.clone()))).collect()
    }

    /// The tasks whose runs wait for a person, in any order.
    pub fn asking(&self) -> Vec<TaskId> {
        self.lock().cache.fleet.all_held().filter(|held| held.asks).map(|held| held.task).collect()
    }

    /// Why the task does not run yet, or why its run does not go on. `None` if workers are free and the task only waits for its turn.
    pub fn waiting(&self, task: &TaskState, now: Ms) -> Option<WaitingState> {
        if let Some(question) = task.asks() {
            return Some(WaitingState::asked(question));
        }
        let remembered = self.lock();
        if let Some(lease) = &task.lease {
            let silent = remembered.cache.fleet.worker(&lease.worker_id).filter(|worker| worker.lost);
            return silent.map(|worker| WaitingState::silent(worker.last_seen, lease));
        }
        if task.status != Status::Queued {
            return None;
        }
        let asks = || remembered.cache.fleet.asks(&task.agent_slug);
        let closed = || remembered.queues.closed(&task.agent_slug).map(|closed| WaitingState::closed(&closed, asks));
        let required = task.requirement();
        let short =
            || Some(WaitingState::short(required, remembered.cache.fleet.shortage(required, task.ready_at.unwrap_or_default(), now)?));
        match task.parked {
            // The worker that has its session could take it, unless the queue is closed.
            Some(parked @ Parked::Reserved) => Some(closed().unwrap_or_else(|| WaitingState::parked(task, parked))),
            // A suspended task is shown as suspended, even if its dependencies are unfinished too.
            Some(_) if task.suspend => Some(WaitingState::parked(task, Parked::Suspended)),
            Some(parked) => Some(WaitingState::parked(task, parked)),
            None => closed().or_else(short),
        }
    }

    /// How many workers serve the agent, online or not. Without an agent: how many workers there are.
    pub fn serving(&self, agent_slug: Option<&str>) -> usize {
        self.lock().cache.fleet.serving(agent_slug)
    }

    /// A warning about the agent of a new task, if its name is probably misspelt. An agent whose queue is paused or limited counts as
    /// intended.
    pub fn unknown_agent(&self, agent_slug: &str) -> Option<String> {
        let remembered = self.lock();
        let has_queue = remembered.queues.rows().any(|queue| queue.agent_slug == agent_slug);
        if has_queue { None } else { remembered.cache.fleet.unknown_agent(agent_slug) }
    }

    /// The URL of the worker's agent. `None` if the worker does not exist or has not reported a URL.
    pub fn worker_url(&self, worker: &str) -> Option<String> {
        self.lock().cache.fleet.worker(worker).map(|worker| worker.url.clone()).filter(|url| !url.is_empty())
    }

    /// Whether this lease holds the task, as far as this replica knows.
    pub fn holds(&self, task: TaskId, lease: LeaseId) -> bool {
        self.lock().cache.held(task).is_some_and(|held| held.lease == lease)
    }

    /// The workers that suit the task best.
    pub(super) fn shortlist(&self, task: TaskId, needs_url: bool) -> Choice {
        let spec = self.specs.kept(task);
        let workers = match &spec {
            Some(spec) => self.lock().cache.fleet.shortlist(spec, SHORTLIST, needs_url),
            None => Vec::new(),
        };
        Choice::Among { workers, context: spec.map(|spec| spec.context_id.clone()) }
    }
}
