//! What one replica remembers of the database: the head of the queue, the workers, and what they hold.
//!
//! Rows come to it on several paths: commits of this replica's writers, the feed of other replicas' commits, and pages that are read
//! when they are needed. Paths overtake each other, so each row carries the revision that the database gave it, and an older copy
//! never replaces a newer one, whichever comes first. For that a revision must be known for as long as an older copy may still be
//! under way: whoever reads the database for the cache begins a [`Read`] before it and ends it when the rows are in, and nothing that
//! was heard since the oldest open read is forgotten. A rebuild reads what is shown and no more, so a copy that was read before a
//! rebuild and comes after it is under suspicion, and is read again.
//!
//! What is here is a hint all the same. [`decide`](super::decide) and the database check everything again.

mod fleet;
mod queue;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

pub use fleet::{Fleet, Held, Shortage};
pub use queue::{Look, PageRead, Queue, ReadyKey, Scope, WINDOW};

use super::ids::{TaskId, WorkerId};
use super::task::{Parked, Status, TaskState};
use super::worker::Worker;

/// A task that could be claimed now, as far as its own row tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyRow {
    pub id: TaskId,
    pub revision: i64,
    /// 9 − priority: the queue's order is (rank, id).
    pub rank: i64,
    pub agent_slug: String,
    /// The worker that it is reserved for; ready tasks have none.
    pub reserved_for: Option<WorkerId>,
}

impl ReadyRow {
    /// Where a task that may be claimed stands in the queue.
    pub fn of(task: &TaskState) -> Option<Self> {
        let reserved_for = match task.parked {
            _ if task.status != Status::Queued => return None,
            None => None,
            Some(Parked::Reserved) => Some(task.session_worker.clone()?),
            Some(_) => return None,
        };
        let (id, revision, agent_slug) = (task.id, task.revision, task.agent_slug.clone());
        Some(Self { id, revision, rank: rank(task.priority), agent_slug, reserved_for })
    }

    pub fn key(&self) -> ReadyKey {
        (self.rank, self.id)
    }
}

/// The queue's order puts priority 9 first.
pub fn rank(priority: i64) -> i64 {
    9 - priority
}

/// The priority of this rank.
pub fn priority(rank: i64) -> i64 {
    9 - rank
}

/// A read of the database that has begun: what it brings may be as old as its beginning.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a read that never ends keeps all that is heard after it"]
pub struct Read(u64);

/// What is known of one task.
#[derive(Debug)]
struct Known {
    revision: i64,
    /// When it was heard of last.
    at: u64,
    ready: Option<ReadyRow>,
    held_by: Option<WorkerId>,
}

/// What a row changed for those who wait.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The worker that got a slot back.
    pub freed: Option<WorkerId>,
    /// The task can be claimed.
    pub is_ready: bool,
}

/// A removed task has no successor: nothing newer than this comes.
const REMOVED: i64 = i64::MAX;

#[derive(Debug, Default)]
pub struct Cache {
    pub queue: Queue,
    pub fleet: Fleet,
    tasks: HashMap<TaskId, Known>,
    /// Tasks that were heard of while a read was open, in that order. Those that nothing else keeps go with the last such read.
    recent: VecDeque<(u64, TaskId)>,
    /// When the open reads began.
    reads: BTreeSet<u64>,
    /// When the last rebuild began.
    rebuilt: u64,
    suspects: Suspects,
    clock: u64,
}

/// What is shown by a copy that is older than the last rebuild.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Suspects {
    pub tasks: BTreeSet<TaskId>,
    pub workers: BTreeSet<WorkerId>,
}

impl Cache {
    pub fn begin_read(&mut self) -> Read {
        self.clock += 1;
        self.reads.insert(self.clock);
        Read(self.clock)
    }

    /// As [`begin_read`](Self::begin_read), for a read of all that is to be shown. The windows are emptied: they are read again when
    /// they are asked for.
    pub fn begin_rebuild(&mut self) -> Read {
        let read = self.begin_read();
        self.rebuilt = read.0;
        self.queue.clear();
        self.forget_dropped();
        read
    }

    /// What is to be read again.
    pub fn take_suspects(&mut self) -> Suspects {
        std::mem::take(&mut self.suspects)
    }

    pub fn has_suspects(&self) -> bool {
        self.suspects != Suspects::default()
    }

    pub fn end_read(&mut self, read: &Read) {
        self.reads.remove(&read.0);
        let oldest = self.reads.first().copied().unwrap_or(u64::MAX);
        while let Some((at, id)) = self.recent.pop_front_if(|(at, _)| *at < oldest) {
            if self.tasks.get(&id).is_some_and(|known| known.at == at) {
                self.forget_if_idle(id);
            }
        }
        self.fleet.forget_removed(oldest);
    }

    /// Takes a task's row in, unless a newer one is known.
    pub fn put_task(&mut self, task: &TaskState, read: &Read) -> Effect {
        let held = task.lease.as_ref().map(|lease| Held::new(task, lease));
        self.put(task.id, task.revision, ReadyRow::of(task), held, read.0)
    }

    /// The task was removed from the database.
    pub fn remove_task(&mut self, id: TaskId) -> Effect {
        self.put(id, REMOVED, None, None, self.clock)
    }

    fn put(&mut self, id: TaskId, revision: i64, ready: Option<ReadyRow>, held: Option<Held>, began: u64) -> Effect {
        if self.tasks.get(&id).is_some_and(|known| known.revision > revision) {
            return Effect::default();
        }
        if began < self.rebuilt && (ready.is_some() || held.is_some()) {
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
        Effect { freed, is_ready }
    }

    /// Takes in a task that was read as one to be claimed, unless something newer is known.
    pub fn put_ready(&mut self, row: ReadyRow, read: &Read) -> Effect {
        self.put(row.id, row.revision, Some(row), None, read.0)
    }

    /// Takes a worker's row in, unless a newer one is known.
    pub fn put_worker(&mut self, worker: Worker, read: &Read) {
        if read.0 < self.rebuilt {
            self.suspects.workers.insert(worker.id.clone());
        }
        self.clock += 1;
        self.fleet.put_worker(worker, self.clock);
    }

    /// The worker was removed, with this revision.
    pub fn remove_worker(&mut self, id: &str, revision: i64) {
        self.clock += 1;
        self.fleet.remove_worker(id, revision, self.clock);
        if self.reads.is_empty() {
            self.fleet.forget_removed(u64::MAX);
        }
    }

    /// A read of all workers has not found it; unless it was heard of since that began, it is gone.
    pub fn forget_worker(&mut self, id: &str, read: &Read) {
        if let Some(revision) = self.fleet.revision_before(id, read.0) {
            self.remove_worker(id, revision);
        }
    }

    /// Starts the next page of a window: says what to read. `None`: it is being read already, or nothing is missing.
    pub fn begin_page(&mut self, scope: &Scope) -> Option<PageRead> {
        if !self.queue.wants_page(scope) {
            return None;
        }
        let read = self.begin_read();
        Some(self.queue.begin_page(scope, read.0))
    }

    /// Takes in a page that was asked for `limit` rows.
    ///
    /// Answers the workers that turn out to have got a slot back.
    pub fn end_page(&mut self, page: &PageRead, rows: Vec<ReadyRow>, limit: usize) -> Vec<WorkerId> {
        let counts = self.queue.end_page(page, rows.last().map(ReadyRow::key), rows.len() < limit);
        let freed = rows.into_iter().filter_map(|row| self.put(row.id, row.revision, Some(row), None, page.began).freed).collect();
        if counts {
            // What was heard of while it was read may stand behind where the window ended then.
            let since = self.recent.partition_point(|(at, _)| *at < page.began);
            for (_, id) in self.recent.iter().skip(since) {
                if let Some(ready) = self.tasks.get(id).and_then(|known| known.ready.as_ref()) {
                    self.queue.insert(ready);
                }
            }
        }
        self.end_read(&Read(page.began));
        self.forget_dropped();
        freed
    }

    /// The page could not be read.
    pub fn abandon_page(&mut self, page: &PageRead) {
        self.queue.abandon_page(page);
        self.end_read(&Read(page.began));
    }

    /// The first tasks of these scopes, up to `max`, for one claim: they are its own until they are given back.
    ///
    /// `spread` widens the choice to so many tasks more of the same priority, of which `chance` picks: where several replicas take from
    /// one queue, the first tasks are always those that another one has just taken.
    pub fn look(&mut self, scopes: &[Scope], max: usize, spread: usize, chance: u64) -> Look {
        let look = self.queue.look(scopes, max, spread, chance);
        self.forget_dropped();
        look
    }

    /// Tasks that workers hold here, and that were not heard of since this read began.
    pub fn unconfirmed_tasks(&self, read: &Read) -> Vec<TaskId> {
        let unconfirmed = |known: &&Known| known.held_by.is_some() && known.at < read.0;
        let mut tasks: Vec<_> = self.tasks.iter().filter(|(_, known)| unconfirmed(known)).map(|(id, _)| *id).collect();
        tasks.sort_unstable();
        tasks
    }

    /// Workers that were not heard of since this read began.
    pub fn unconfirmed_workers(&self, read: &Read) -> Vec<WorkerId> {
        self.fleet.heard_of_before(read.0)
    }

    /// Of these tasks, how many of each agent can be claimed.
    pub fn claimable(&self, tasks: &[TaskId]) -> BTreeMap<String, i64> {
        let mut agents = BTreeMap::new();
        for ready in tasks.iter().filter_map(|id| self.tasks.get(id)?.ready.as_ref()) {
            *agents.entry(ready.agent_slug.clone()).or_default() += 1;
        }
        agents
    }

    /// The lease that holds the task.
    pub fn held(&self, task: TaskId) -> Option<&Held> {
        self.fleet.held_task(self.tasks.get(&task)?.held_by.as_ref()?, task)
    }

    /// All that is shown of tasks, for comparison with the database.
    pub fn shown(&self) -> impl Iterator<Item = (TaskId, i64)> {
        self.tasks.iter().filter(|(_, known)| self.is_shown(known)).map(|(id, known)| (*id, known.revision))
    }

    /// Whether somebody could claim something.
    pub fn has_claimable(&mut self) -> bool {
        self.queue.has_untaken()
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

    /// Windows have let go of some tasks.
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
