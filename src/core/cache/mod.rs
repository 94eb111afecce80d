//! The replica cache: the head of the queue, the workers, and the leases that they hold.
//!
//! Rows reach the cache in several ways: from commits of this replica, from the feed of other replicas' commits, and from pages that are
//! read on demand. They may arrive in any order, so each row carries a revision from the database, and an older copy never replaces a newer
//! one. The cache must therefore remember a revision for as long as an older copy may still arrive. A reader that reads the database for
//! the cache opens a [`CacheRead`] first and ends it once the rows are in. Nothing that the cache learned since the start of the oldest
//! open read is forgotten. A rebuild reads only the rows that are shown. If a copy that was read before a rebuild arrives after it, the row
//! is a suspect, and is read again.
//!
//! The cache is only a hint: [`decide`](super::decide) and the database check everything again.

mod fleet;
mod paused_accounts;
mod queue;
mod window;

use std::collections::{BTreeSet, HashMap, VecDeque};

pub use fleet::{Fleet, HeldLease, Shortage};
pub use queue::{PageRead, Queue, ReadyTasks};
pub use window::{Part, Projects, ReadyKey, Scope, WINDOW};

use super::Ms;
use super::ids::{TaskId, WorkerId};
use super::requirement::Requirement;
use super::task::{Parked, Status, TaskState};
use super::worker::Worker;

/// A task that can be claimed now, judged by its own row only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyRow {
    /// The task's id. Ids sort by age, so the oldest task of a rank comes first.
    pub id: TaskId,
    /// The revision of the row that this entry was made from.
    pub revision: i64,
    /// 9 − priority. The queue is ordered by (rank, id).
    pub rank: i64,
    /// The agent that the task is for.
    pub agent_slug: String,
    /// The namespace of its Kubernetes object; `None` for all other tasks.
    pub namespace: Option<String>,
    /// The name of its project.
    pub project: Option<String>,
    /// The worker for which the task is reserved; `None` for ready tasks.
    pub reserved_for: Option<WorkerId>,
    /// Since when the task could run; 0 if unknown.
    pub ready_at: Ms,
}

impl ReadyRow {
    /// The task's entry in the queue, if it can be claimed.
    pub fn of(task: &TaskState) -> Option<Self> {
        let reserved_for = match task.parked {
            _ if task.status != Status::Queued => return None,
            None => None,
            Some(Parked::Reserved) => Some(task.session_worker.clone()?),
            Some(_) => return None,
        };
        let (agent_slug, namespace, project) = (task.agent_slug.clone(), task.namespace.clone(), task.project.clone());
        let (rank, ready_at) = (rank(task.priority), task.ready_at.unwrap_or_default());
        Some(Self { id: task.id, revision: task.revision, rank, agent_slug, namespace, project, reserved_for, ready_at })
    }

    /// What a worker must serve to run the task.
    pub fn requirement(&self) -> Requirement<'_> {
        Requirement { agent_slug: &self.agent_slug, namespace: self.namespace.as_deref(), project: self.project.as_deref() }
    }

    /// The place of the task in the queue.
    pub fn key(&self) -> ReadyKey {
        (self.rank, self.id)
    }
}

/// The rank of a priority. Priority 9 comes first in the queue.
pub fn rank(priority: i64) -> i64 {
    9 - priority
}

/// The priority of this rank.
pub fn priority(rank: i64) -> i64 {
    9 - rank
}

/// A read of the database that has begun. The rows that it returns may be as old as its start.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a read that never ends keeps all that is heard after it"]
pub struct CacheRead(u64);

/// The cache's entry for one task.
#[derive(Debug)]
struct Known {
    revision: i64,
    /// The cache's logical time of the last update.
    at: u64,
    ready: Option<ReadyRow>,
    held_by: Option<WorkerId>,
}

/// What a new row changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Whether this is the newest row of the task: the cache has no newer one, and can't have forgotten one.
    pub is_newest: bool,
    /// The worker whose slot became free.
    pub freed: Option<WorkerId>,
    /// Whether the task can be claimed.
    pub is_ready: bool,
}

/// The revision of a removed task. No row has a higher one.
const REMOVED: i64 = i64::MAX;

/// A replica's picture of the database. It is only a hint: the database decides.
#[derive(Debug, Default)]
pub struct Cache {
    /// The tasks that may be claimed.
    pub queue: Queue,
    /// The workers, and the leases that they hold.
    pub fleet: Fleet,
    tasks: HashMap<TaskId, Known>,
    /// Tasks that were updated while a read was open, in that order. When the last of these reads ends, those that are not shown are
    /// forgotten.
    recent: VecDeque<(u64, TaskId)>,
    /// The logical times at which the open reads began.
    reads: BTreeSet<u64>,
    /// The logical time at which the last rebuild began.
    rebuilt: u64,
    suspects: Suspects,
    clock: u64,
}

/// Tasks and workers whose latest copy was read before the last rebuild.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Suspects {
    /// The ids of the tasks to read again.
    pub tasks: BTreeSet<TaskId>,
    /// The names of the workers to read again.
    pub workers: BTreeSet<WorkerId>,
}

impl Cache {
    /// Begins a read of the database. What the cache learns from now on is kept until [`end_read`](Self::end_read).
    pub fn begin_read(&mut self) -> CacheRead {
        self.clock += 1;
        self.reads.insert(self.clock);
        CacheRead(self.clock)
    }

    /// Like [`begin_read`](Self::begin_read), for a read of everything that is shown. It empties the windows, which are read again on
    /// demand.
    pub fn begin_rebuild(&mut self) -> CacheRead {
        let read = self.begin_read();
        self.rebuilt = read.0;
        self.queue.clear();
        self.forget_dropped();
        read
    }

    /// The rows to read again.
    pub fn take_suspects(&mut self) -> Suspects {
        std::mem::take(&mut self.suspects)
    }

    /// Whether there are rows to read again.
    pub fn has_suspects(&self) -> bool {
        self.suspects != Suspects::default()
    }

    /// Ends the read, after its rows were put in. Forgets what is not shown and what no other open read needs.
    pub fn end_read(&mut self, read: &CacheRead) {
        self.reads.remove(&read.0);
        let oldest = self.reads.first().copied().unwrap_or(u64::MAX);
        while let Some((at, id)) = self.recent.pop_front_if(|(at, _)| *at < oldest) {
            if self.tasks.get(&id).is_some_and(|known| known.at == at) {
                self.forget_if_idle(id);
            }
        }
        self.fleet.forget_removed(oldest);
    }

    /// Adds a task's row, unless the cache has a newer one.
    pub fn put_task(&mut self, task: &TaskState, read: &CacheRead) -> Effect {
        let held = task.lease.as_ref().map(|lease| HeldLease::new(task, lease));
        self.put(task.id, task.revision, ReadyRow::of(task), held, read.0)
    }

    /// Records that the task was removed from the database.
    pub fn remove_task(&mut self, id: TaskId) -> Effect {
        self.put(id, REMOVED, None, None, self.clock)
    }

    fn put(&mut self, id: TaskId, revision: i64, ready: Option<ReadyRow>, held: Option<HeldLease>, began: u64) -> Effect {
        if self.tasks.get(&id).is_some_and(|known| known.revision > revision) {
            return Effect::default();
        }
        let is_newest = began >= self.rebuilt;
        if !is_newest {
            self.suspects.tasks.insert(id);
        }
        self.clock += 1;
        let held_by = held.as_ref().map(|held| held.worker.clone());
        let known = Known { revision, at: self.clock, ready, held_by };
        let before = self.tasks.insert(id, known);
        if let Some(gone) = before.as_ref().and_then(|before| before.ready.as_ref()) {
            self.queue.remove(gone);
        }
        let known = &self.tasks[&id];
        let freed = before.and_then(|before| before.held_by).filter(|worker| {
            let is_freed = known.held_by.as_ref() != Some(worker);
            if is_freed {
                self.fleet.let_go(worker, id);
            }
            is_freed
        });
        let is_ready = known.ready.is_some();
        if let Some(ready) = &known.ready {
            self.queue.insert(ready);
        }
        if let Some(held) = held {
            self.fleet.hold(held);
        }
        self.keep_or_forget(id);
        Effect { is_newest, freed, is_ready }
    }

    /// Adds a claimable task, unless the cache has a newer row.
    pub fn put_ready(&mut self, row: ReadyRow, read: &CacheRead) -> Effect {
        self.put(row.id, row.revision, Some(row), None, read.0)
    }

    /// Adds a worker's row, unless the cache has a newer one. Returns whether it is the newest, in the sense of [`Effect::is_newest`].
    pub fn put_worker(&mut self, worker: Worker, read: &CacheRead) -> bool {
        let is_suspect = read.0 < self.rebuilt;
        if is_suspect {
            self.suspects.workers.insert(worker.id.clone());
        }
        self.clock += 1;
        self.fleet.put_worker(worker, self.clock) && !is_suspect
    }

    /// Records that the worker was removed. `revision` is the revision of its removal.
    pub fn remove_worker(&mut self, id: &str, revision: i64) {
        self.clock += 1;
        self.fleet.remove_worker(id, revision, self.clock);
        if self.reads.is_empty() {
            self.fleet.forget_removed(u64::MAX);
        }
    }

    /// Handles a worker that a read of all workers has not found. It was removed, unless the cache learned of it after the read began.
    pub fn forget_worker(&mut self, id: &str, read: &CacheRead) {
        if let Some(revision) = self.fleet.revision_before(id, read.0) {
            self.remove_worker(id, revision);
        }
    }

    /// Starts the next page of a window. Returns `None` if the page is already being read, or if the window is complete.
    pub fn begin_page(&mut self, scope: &Scope) -> Option<PageRead> {
        if !self.queue.wants_page(scope) {
            return None;
        }
        let read = self.begin_read();
        Some(self.queue.begin_page(scope, read.0))
    }

    /// Adds the rows of a page that was read with this `limit`.
    ///
    /// Returns the workers whose slots turned out to be free.
    pub fn end_page(&mut self, page: &PageRead, rows: Vec<ReadyRow>, limit: usize) -> Vec<WorkerId> {
        let counts = self.queue.end_page(page, rows.last().map(ReadyRow::key), rows.len() < limit);
        let freed = rows.into_iter().filter_map(|row| self.put(row.id, row.revision, Some(row), None, page.began).freed).collect();
        if counts {
            // Tasks that were updated while the page was read may be behind the previous end of the window.
            let since = self.recent.partition_point(|(at, _)| *at < page.began);
            for (_, id) in self.recent.iter().skip(since) {
                if let Some(ready) = self.tasks.get(id).and_then(|known| known.ready.as_ref()) {
                    self.queue.insert(ready);
                }
            }
        }
        self.end_read(&CacheRead(page.began));
        self.forget_dropped();
        freed
    }

    /// Abandons a page that could not be read.
    pub fn abandon_page(&mut self, page: &PageRead) {
        self.queue.abandon_page(page);
        self.end_read(&CacheRead(page.began));
    }

    /// Takes up to `max` tasks from the front of these scopes, for one claim. No other claim gets them until they are given back. The
    /// scopes contain only agents whose queues are open; `is_open` decides this for the agents of reserved tasks.
    ///
    /// `spread` widens the choice by this many tasks of the same priority, and `chance` selects among them. Without it, replicas that claim
    /// from one queue would always compete for the same first tasks.
    ///
    /// `names_none_at` is the current time if the worker names no agents. Such a worker does not get tasks that are kept for others.
    pub fn take_ready(
        &mut self,
        scopes: &[Scope],
        is_open: impl Fn(&str) -> bool,
        names_none_at: Option<Ms>,
        max: usize,
        spread: usize,
        chance: u64,
    ) -> ReadyTasks {
        let (tasks, fleet) = (&self.tasks, &self.fleet);
        let has = |worker: &str, id: &TaskId| can_have(tasks, fleet, &is_open, worker, id).unwrap_or(true);
        let kept_until = |id: &TaskId| {
            let (now, ready) = (names_none_at?, tasks.get(id)?.ready.as_ref()?);
            fleet.kept_until(ready.requirement(), ready.ready_at, now)
        };
        let ready = self.queue.take_ready(scopes, has, kept_until, max, spread, chance);
        self.forget_dropped();
        ready
    }

    /// Tasks with a lease whose entries were not updated since this read began.
    pub fn unconfirmed_tasks(&self, read: &CacheRead) -> Vec<TaskId> {
        let unconfirmed = |known: &&Known| known.held_by.is_some() && known.at < read.0;
        let mut tasks: Vec<_> = self.tasks.iter().filter(|(_, known)| unconfirmed(known)).map(|(id, _)| *id).collect();
        tasks.sort_unstable();
        tasks
    }

    /// Workers whose entries were not updated since this read began.
    pub fn unconfirmed_workers(&self, read: &CacheRead) -> Vec<WorkerId> {
        self.fleet.heard_of_before(read.0)
    }

    /// The subset of these tasks that can be claimed.
    pub fn claimable(&self, tasks: &[TaskId]) -> Vec<ReadyRow> {
        tasks.iter().filter_map(|id| self.tasks.get(id)?.ready.clone()).collect()
    }

    /// The active lease of the task.
    pub fn held(&self, task: TaskId) -> Option<&HeldLease> {
        self.fleet.held_task(self.tasks.get(&task)?.held_by.as_ref()?, task)
    }

    /// All tasks that the cache shows, for comparison with the database.
    pub fn shown(&self) -> impl Iterator<Item = (TaskId, i64)> {
        self.tasks.iter().filter(|(_, known)| self.is_shown(known)).map(|(id, known)| (*id, known.revision))
    }

    /// The parts of the queue that have a claimable task; with `is_open`, one of an agent for which it returns true. Only parts that some
    /// worker has claimed from are included.
    pub fn parts_with_claimable(&mut self, is_open: Option<&dyn Fn(&str) -> bool>) -> BTreeSet<Part> {
        self.queue.parts_with_untaken(is_open)
    }

    /// The workers that can claim a task that is reserved for them and whose agent is open according to `is_open`.
    pub fn with_reserved(&mut self, is_open: impl Fn(&str) -> bool) -> Vec<WorkerId> {
        let (tasks, fleet) = (&self.tasks, &self.fleet);
        self.queue.with_reserved(|worker, id| can_have(tasks, fleet, &is_open, worker, id).unwrap_or(false))
    }

    fn is_shown(&self, known: &Known) -> bool {
        known.held_by.is_some() || known.ready.as_ref().is_some_and(|ready| self.queue.contains(ready))
    }

    fn forget_if_idle(&mut self, id: TaskId) {
        if self.tasks.get(&id).is_some_and(|known| !self.is_shown(known)) {
            self.tasks.remove(&id);
        }
    }

    fn keep_or_forget(&mut self, id: TaskId) {
        if self.reads.is_empty() {
            self.forget_if_idle(id);
        } else if let Some(known) = self.tasks.get(&id) {
            self.recent.push_back((known.at, id));
        }
        self.forget_dropped();
    }

    /// Forgets the tasks that windows have dropped.
    fn forget_dropped(&mut self) {
        for id in self.queue.take_dropped() {
            if self.reads.is_empty() {
                self.forget_if_idle(id);
            } else if let Some(known) = self.tasks.get_mut(&id) {
                self.clock += 1;
                known.at = self.clock;
                self.recent.push_back((self.clock, id));
            }
        }
    }
}

/// Whether the worker can have the task that is reserved for it; `None` if the cache does not have the task. An older replica may have
/// reserved a task for a worker that does not serve its namespace or its project.
fn can_have(tasks: &HashMap<TaskId, Known>, fleet: &Fleet, is_open: &impl Fn(&str) -> bool, worker: &str, id: &TaskId) -> Option<bool> {
    let ready = tasks.get(id)?.ready.as_ref()?;
    let serves = |worker: &Worker| worker.serves(ready.requirement());
    Some(is_open(&ready.agent_slug) && fleet.worker(worker).is_none_or(serves))
}
