//! The rows that one batch works on: what was loaded for it, and what its commands changed.
//!
//! A look-up tells *loaded*, *absent* and *not loaded* apart. What is not loaded is never guessed: it is asked for ([`Halt::Need`]),
//! and the command runs again in the next batch with those rows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::Ms;
use super::audit::{Action, AuditEntry, EntityType};
use super::command::{Keys, Rejection};
use super::ids::{IdSource, LeaseId, TaskId, WorkerId};
use super::task::{PastLease, RunResult, Status, TaskEvent, TaskSpec, TaskState};
use super::worker::Worker;

/// Why a command stopped without an effect.
#[derive(Clone, Debug)]
pub enum Halt {
    Rejected(Rejection),
    Need(Box<Keys>),
}

impl From<Rejection> for Halt {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

/// A worker's places in use, a bit each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slots {
    pub used: u32,
    /// Read from the database under the worker's lock. Otherwise it is this replica's own view: good enough to try a place
    /// (the database refuses one that is taken), not to refuse one.
    pub exact: bool,
}

/// Who runs in a context, and where it ran last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextView {
    /// The task whose lease holds the context ([`ActiveLease::holds_context`](super::task::ActiveLease)).
    pub holder: Option<TaskId>,
    /// The worker of any active lease in it.
    pub active_worker: Option<WorkerId>,
    /// The worker of its last completed lease, and when that ended.
    pub last_worker: Option<(WorkerId, Ms)>,
    /// The session that its last completed run reported.
    pub session_id: Option<String>,
}

/// What the store loaded. A key that is missing in a map was not loaded; `None` (or an empty list) means that there is no such row.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub now: Ms,
    pub tasks: HashMap<TaskId, Option<TaskState>>,
    pub workers: HashMap<WorkerId, Option<Worker>>,
    /// `keys.all_workers` was honoured: `workers` has every one.
    pub all_workers: bool,
    pub slots: HashMap<WorkerId, Slots>,
    pub worker_tasks: HashMap<WorkerId, Vec<TaskId>>,
    pub lease_tasks: HashMap<LeaseId, Option<TaskId>>,
    pub past_leases: HashMap<LeaseId, Option<PastLease>>,
    pub idempotency: HashMap<String, Option<Arc<TaskSpec>>>,
    pub contexts: HashMap<String, ContextView>,
    pub predecessors: HashMap<(String, TaskId), Option<TaskId>>,
    pub exclusive: HashMap<String, Option<TaskId>>,
    pub dependencies: HashMap<TaskId, Vec<TaskId>>,
}

/// What the batch changed; the store writes exactly this, in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Dirty {
    pub specs: Vec<Arc<TaskSpec>>,
    /// Task states to insert or rewrite.
    pub tasks: BTreeSet<TaskId>,
    /// Of those, the ones with nothing to tell but a later expiry: kept out of the change feed.
    pub quiet_tasks: BTreeSet<TaskId>,
    /// Leases that ended, or whose record changed; the store upserts them by id.
    pub past_leases: Vec<PastLease>,
    pub results: Vec<Arc<RunResult>>,
    pub events: Vec<TaskEvent>,
    /// Workers to insert or rewrite.
    pub workers: BTreeSet<WorkerId>,
    /// Workers of which only `last_seen` moved: written to its own table, kept out of the change feed.
    pub seen: BTreeSet<WorkerId>,
    pub removed_workers: BTreeSet<WorkerId>,
    pub settings: Vec<(&'static str, String)>,
    pub audit: Vec<AuditEntry>,
}

impl Dirty {
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
            && self.tasks.is_empty()
            && self.past_leases.is_empty()
            && self.results.is_empty()
            && self.events.is_empty()
            && self.workers.is_empty()
            && self.seen.is_empty()
            && self.removed_workers.is_empty()
            && self.settings.is_empty()
            && self.audit.is_empty()
    }
}

/// A task let go of something that others may wait for: its end, its context, its exclusive key.
#[derive(Clone, Debug, PartialEq)]
pub struct Freed {
    pub task: TaskId,
    pub context: Option<String>,
    pub exclusive_key: Option<String>,
    pub finished: bool,
}

/// Tasks counted by what stats and metrics ask for.
pub type Counts = BTreeMap<(String, i64, Status), i64>;

#[derive(Debug)]
pub struct WorkingSet {
    pub loaded: Loaded,
    pub ids: IdSource,
    /// Take nothing for granted: a first try met a conflict, so whatever placement relies on is loaded first.
    pub exact: bool,
    pub dirty: Dirty,
    pub freed: Vec<Freed>,
    /// How the number of tasks by agent, priority and status changes.
    pub counts: Counts,
    pub leases_granted: i64,
    /// Session tasks made in this batch, the newest of each context.
    pub(super) newest_in_context: HashMap<String, TaskId>,
    /// Contexts taken or let go in this batch.
    pub(super) context_holders: HashMap<String, Option<TaskId>>,
    /// The request of the command at hand.
    pub(super) request_id: Option<String>,
}

impl WorkingSet {
    pub fn new(loaded: Loaded, seed: u64) -> Self {
        let ids = IdSource::new(loaded.now, seed);
        Self {
            loaded,
            ids,
            exact: false,
            dirty: Dirty::default(),
            freed: Vec::new(),
            counts: Counts::new(),
            leases_granted: 0,
            newest_in_context: HashMap::new(),
            context_holders: HashMap::new(),
            request_id: None,
        }
    }

    pub fn now(&self) -> Ms {
        self.loaded.now
    }

    /// The task, if there is one.
    pub fn find_task(&self, id: TaskId) -> Result<Option<&TaskState>, Halt> {
        match self.loaded.tasks.get(&id) {
            Some(task) => Ok(task.as_ref()),
            None => Err(need(|keys| keys.tasks.insert(id))),
        }
    }

    pub fn task(&self, id: TaskId) -> Result<&TaskState, Halt> {
        self.find_task(id)?.ok_or(Halt::Rejected(Rejection::TaskNotFound))
    }

    pub fn find_worker(&self, id: &str) -> Result<Option<&Worker>, Halt> {
        match self.loaded.workers.get(id) {
            Some(worker) => Ok(worker.as_ref()),
            None => Err(need(|keys| keys.workers.insert(id.to_owned()))),
        }
    }

    pub fn worker(&self, id: &str) -> Result<&Worker, Halt> {
        self.find_worker(id)?.ok_or(Halt::Rejected(Rejection::WorkerNotFound))
    }

    pub fn slots(&self, worker: &str) -> Slots {
        self.loaded.slots.get(worker).copied().unwrap_or(Slots { used: 0, exact: false })
    }

    pub fn context(&self, context: &str) -> Result<&ContextView, Halt> {
        self.loaded.contexts.get(context).ok_or_else(|| need(|keys| keys.contexts.insert(context.to_owned())))
    }

    /// Writes a task back and keeps the counts; the only way a task state changes.
    pub fn put_task(&mut self, task: TaskState) {
        let before = self.loaded.tasks.get(&task.id).and_then(Option::as_ref);
        if before.map(|b| b.status) != Some(task.status) {
            if let Some(before) = before {
                *self.counts.entry((before.agent_slug.clone(), before.priority, before.status)).or_default() -= 1;
            }
            *self.counts.entry((task.agent_slug.clone(), task.priority, task.status)).or_default() += 1;
        }
        self.dirty.quiet_tasks.remove(&task.id);
        self.dirty.tasks.insert(task.id);
        self.loaded.tasks.insert(task.id, Some(task));
    }

    /// As [`put_task`](Self::put_task), for a change that nobody waits for.
    pub fn put_task_quietly(&mut self, task: TaskState) {
        let id = task.id;
        let told = self.dirty.tasks.contains(&id) && !self.dirty.quiet_tasks.contains(&id);
        self.put_task(task);
        if !told {
            self.dirty.quiet_tasks.insert(id);
        }
    }

    /// Records a deed; it commits with the change it tells of.
    pub fn audit(&mut self, action: Action, entity_type: EntityType, entity_id: impl ToString, actor: &str, detail: impl Into<String>) {
        self.dirty.audit.push(AuditEntry {
            id: self.ids.next_id(),
            timestamp: self.loaded.now,
            action,
            entity_type,
            entity_id: entity_id.to_string(),
            actor: actor.to_owned(),
            detail: detail.into(),
            request_id: self.request_id.clone(),
        });
    }

    pub fn put_worker(&mut self, worker: Worker) {
        self.dirty.removed_workers.remove(&worker.id);
        self.dirty.workers.insert(worker.id.clone());
        self.dirty.seen.insert(worker.id.clone());
        self.loaded.workers.insert(worker.id.clone(), Some(worker));
    }
}

/// Asks for more rows.
pub fn need<T>(add: impl FnOnce(&mut Keys) -> T) -> Halt {
    let mut keys = Keys::default();
    add(&mut keys);
    Halt::Need(Box::new(keys))
}
