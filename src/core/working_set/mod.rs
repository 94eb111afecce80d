//! The rows that one batch works on: what was loaded for it, and what its commands changed.
//!
//! A look-up distinguishes *loaded*, *absent* and *not loaded*. A command never guesses a row that is not loaded: it asks for it
//! ([`Halt::Need`]) and runs again in the next batch with that row.

mod api_keys;
mod control_plane;
mod files;
mod projects;
mod queues;
mod quotas;
mod workers;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

pub use api_keys::LoadedKeys;
pub use control_plane::{DirtyControlPlane, LoadedControlPlane};
pub use files::{DirtyFiles, KnownFile, LeaseFiles, LoadedFiles, UnusedUploads};
pub use projects::{DirtyProjects, LoadedProjects, project_named};
pub use quotas::{DirtyQuotas, LoadedQuotas, QuotaUse};

use uuid::Uuid;

use super::Ms;
use super::agent_queue::AgentQueue;
use super::audit::{Action, Actor, AuditEntry, Concerns, EntityType, Requester};
use super::event::TaskEvent;
use super::ids::{IdSource, LeaseId, TaskId, WorkerId};
use super::project::Project;
use super::rejection::Rejection;
use super::row_keys::RowKeys;
use super::run_result::RunResult;
use super::task::{PastLease, Status, TaskSpec, TaskState};
use super::wakeup::{Progress, Subject, Wakeup};
use super::worker::Worker;

/// Why a command stopped without changing anything.
#[derive(Clone, Debug)]
pub enum Halt {
    /// The operation is refused, and this rejection is returned to the caller.
    Rejected(Rejection),
    /// The operation needs these rows, and runs again in a batch that loads them.
    Need(Box<RowKeys>),
    /// The command needs a row that another program keeps locked.
    Locked,
}

impl From<Rejection> for Halt {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

/// A worker's used slots, one bit each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slots {
    /// Bit `n` is set if a lease takes slot `n`.
    pub used: u32,
    /// Whether they were read from the database under the worker's lock. Otherwise they come from this replica's cache. That is enough to
    /// try a slot, because the database refuses a used one, but not enough to answer that no slot is free.
    pub exact: bool,
}

/// Which task runs in a context, and where its tasks ran last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextView {
    /// The task whose lease holds the context ([`ActiveLease::holds_context`](super::task::ActiveLease)).
    pub holder: Option<TaskId>,
    /// The worker of an active lease in the context.
    pub active_worker: Option<WorkerId>,
    /// The worker of the last completed lease, and when that lease ended.
    pub last_worker: Option<(WorkerId, Ms)>,
    /// The session id that the last completed run reported.
    pub session_id: Option<String>,
    /// The session of the newest run that answered in this context since its last reset.
    pub conversation: Option<String>,
}

/// What the store loaded. A key that is missing in a map was not loaded. `None` (or an empty list) means that no such row exists.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The database's time when the rows were read.
    pub now: Ms,
    /// Rows that exist but could not be loaded because another program keeps them locked.
    pub locked_tasks: HashSet<TaskId>,
    /// Workers that exist but could not be loaded because another program keeps them locked.
    pub locked_workers: HashSet<WorkerId>,
    /// Tasks that were loaded and locked.
    pub tasks: HashMap<TaskId, Option<TaskState>>,
    /// Workers that were loaded and locked.
    pub workers: HashMap<WorkerId, Option<Worker>>,
    /// The revisions of the workers' rows. A removed worker's row stays as a tombstone for a while, so that a new worker with the same name
    /// continues from that revision.
    pub worker_revisions: HashMap<WorkerId, i64>,
    /// Workers that were read without a lock.
    pub observed_workers: HashMap<WorkerId, Option<Worker>>,
    /// Whether `workers` contains every worker, because `keys.all_workers` was set.
    pub all_workers: bool,
    /// The used slots of the loaded workers: from the database for the workers in `keys.exact_slots`, otherwise from this replica's cache.
    pub slots: HashMap<WorkerId, Slots>,
    /// The tasks that each of these workers holds.
    pub worker_tasks: HashMap<WorkerId, Vec<TaskId>>,
    /// The tasks that active leases hold. `None`: no active lease has this id.
    pub lease_tasks: HashMap<LeaseId, Option<TaskId>>,
    /// The records of ended leases. `None`: no ended lease has this id.
    pub past_leases: HashMap<LeaseId, Option<PastLease>>,
    /// The tasks that were created with these idempotency keys.
    pub idempotency: HashMap<String, Option<Arc<TaskSpec>>>,
    /// The tasks of Kubernetes objects, by the uids of the objects.
    pub objects: HashMap<Uuid, Option<Arc<TaskSpec>>>,
    /// For each of these contexts: which task runs in it, and where its tasks ran last.
    pub contexts: HashMap<String, ContextView>,
    /// When the contexts of the loaded tasks, and the contexts to reset, were last reset. A context that was never reset is missing.
    pub context_resets: HashMap<String, Ms>,
    /// The newest unfinished session task of a context before this task.
    pub predecessors: HashMap<(String, TaskId), Option<TaskId>>,
    /// The leased or running tasks that have these exclusive keys.
    pub exclusive: HashMap<String, Option<TaskId>>,
    /// The tasks that each of these tasks depends on.
    pub dependencies: HashMap<TaskId, Vec<TaskId>>,
    /// `None` if they were not loaded.
    pub api_keys: Option<LoadedKeys>,
    /// Whether some of the keys could not be loaded because another program keeps them locked.
    pub locked_api_keys: bool,
    /// `None` if they were not loaded.
    pub projects: Option<LoadedProjects>,
    /// The projects that were looked up, by the name or the id that was given.
    pub named_projects: HashMap<String, Option<Project>>,
    /// Whether some of the projects could not be loaded because another program keeps them locked.
    pub locked_projects: bool,
    /// The queues of the queued tasks if `keys.places` was set, the queues to change, and [`ALL_QUEUES`](super::agent_queue::ALL_QUEUES).
    pub queues: HashMap<String, Option<AgentQueue>>,
    /// The number of active leases of each loaded queue that has a limit or is to be changed.
    pub active_leases: HashMap<String, i64>,
    /// Queues that exist but could not be loaded because another program keeps them locked.
    pub locked_queues: HashSet<String>,
    /// The number of queues with a row, without [`ALL_QUEUES`](super::agent_queue::ALL_QUEUES). It is loaded only if there are queues to
    /// change.
    pub queue_rows: i64,
    /// `None` if none of its rows were loaded.
    pub control_plane: Option<LoadedControlPlane>,
    /// Whether some of its rows could not be loaded because another program keeps them locked.
    pub locked_control_plane: bool,
    /// The files that were loaded, and the uploads of keys and leases.
    pub files: LoadedFiles,
    /// The quotas that were loaded, and their use.
    pub quotas: LoadedQuotas,
}

/// What the batch changed. The store writes exactly this, in one transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dirty {
    /// Specifications of the tasks to insert, as their clients sent them.
    pub specs: Vec<Arc<TaskSpec>>,
    /// Task states to insert or rewrite.
    pub tasks: BTreeSet<TaskId>,
    /// The subset of `tasks` whose changes other replicas do not need, such as a later expiry. These changes are left out of the feed.
    pub quiet_tasks: BTreeSet<TaskId>,
    /// The subset of `tasks` whose labels changed.
    pub relabeled: BTreeSet<TaskId>,
    /// Finished tasks to remove, with all rows that belong to them. None of them is in `tasks`.
    pub removed_tasks: BTreeSet<TaskId>,
    /// Leases that ended, or whose record changed. The store upserts them by id.
    pub past_leases: Vec<PastLease>,
    /// Results to insert, each with its artifact.
    pub results: Vec<Arc<RunResult>>,
    /// Events of runs to insert.
    pub events: Vec<TaskEvent>,
    /// Workers to insert or rewrite.
    pub workers: BTreeSet<WorkerId>,
    /// Workers whose `last_seen` alone changed. It is written to a separate table, and left out of the feed.
    pub seen: BTreeSet<WorkerId>,
    /// Workers to remove. None of them is in `workers`.
    pub removed_workers: BTreeSet<WorkerId>,
    /// Queues whose rows are written, or removed if they have no settings any more.
    pub queues: BTreeSet<String>,
    /// Contexts that were reset.
    pub context_resets: BTreeSet<String>,
    /// Stored settings to write: their names and values.
    pub settings: Vec<(&'static str, String)>,
    /// Named keys to insert.
    pub api_keys: BTreeSet<String>,
    /// Named keys whose rows are removed before other keys are inserted.
    pub removed_api_keys: BTreeSet<String>,
    /// Names of existing keys whose secrets were replaced.
    pub rotated_api_keys: BTreeSet<String>,
    /// The projects that changed.
    pub projects: DirtyProjects,
    /// The rows of the control plane that changed.
    pub control_plane: DirtyControlPlane,
    /// The files that changed.
    pub files: DirtyFiles,
    /// The quotas that changed, or whose use changed.
    pub quotas: DirtyQuotas,
    /// Entries of the audit trail, in the order of the changes.
    pub audit: Vec<AuditEntry>,
    /// Wake-ups to insert, for changes that other tasks may wait for.
    pub wakeups: Vec<Wakeup>,
    /// Wake-ups that have advanced or finished.
    pub progress: Vec<Progress>,
}

impl Dirty {
    /// Whether the batch has changed nothing, so that nothing is written.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether replicas have to read the stored settings and keys again.
    pub fn has_settings(&self) -> bool {
        let keys = [&self.api_keys, &self.removed_api_keys, &self.rotated_api_keys];
        !self.settings.is_empty() || keys.iter().any(|names| !names.is_empty()) || self.quotas.has_changed
    }
}

/// Numbers of tasks by agent, priority and status, as stats and metrics show them.
pub type Counts = BTreeMap<(String, i64, Status), i64>;

/// The rows of one batch, and what its commands make of them.
#[derive(Debug)]
pub struct WorkingSet {
    /// What was loaded, with the changes of the batch's earlier commands applied.
    pub loaded: Loaded,
    /// Makes the ids and stamps of the batch.
    pub ids: IdSource,
    /// Whether to assume nothing: the first try met a conflict, so everything that placement relies on must be loaded.
    pub exact: bool,
    /// How long a task is reserved for the worker that has its session.
    pub session_wait_ms: i64,
    /// How long a task is kept for workers that name its agent.
    pub named_agent_wait_ms: i64,
    /// What the store has to write.
    pub dirty: Dirty,
    /// Wake-ups that the current command caused. Its reply is sent only after their first page was re-evaluated.
    pub caused: Vec<Wakeup>,
    /// How the batch changes the numbers of tasks by agent, priority and status.
    pub counts: Counts,
    /// How many leases the batch has made.
    pub leases_granted: i64,
    /// The newest session task that this batch created in each context.
    pub(super) newest_in_context: HashMap<String, TaskId>,
    /// Session tasks that this batch requeued, by context. The loaded rows do not list them as unfinished.
    pub(super) requeued: HashMap<String, BTreeSet<TaskId>>,
    /// Contexts whose holder changed in this batch.
    pub(super) context_holders: HashMap<String, Option<TaskId>>,
    /// The request of the current command.
    pub(super) by: Requester,
}

impl WorkingSet {
    /// A working set of these rows, without changes. `seed` must be random; ids and jitter are derived from it.
    pub fn new(loaded: Loaded, seed: u64) -> Self {
        let mut ids = IdSource::new(loaded.now, seed);
        // Changes of this batch must get later stamps than earlier changes of the same rows, even within one millisecond and across
        // replicas, because audit entries sort by their ids.
        loaded.tasks.values().flatten().for_each(|task| ids.rise_past(task.updated_at));
        loaded.workers.values().flatten().for_each(|worker| ids.rise_past(worker.updated_at));
        Self {
            loaded,
            ids,
            exact: false,
            session_wait_ms: 0,
            named_agent_wait_ms: 0,
            dirty: Dirty::default(),
            caused: Vec::new(),
            counts: Counts::new(),
            leases_granted: 0,
            newest_in_context: HashMap::new(),
            requeued: HashMap::new(),
            context_holders: HashMap::new(),
            by: Requester::default(),
        }
    }

    /// The database's time. Deadlines are compared with it.
    pub fn now(&self) -> Ms {
        self.loaded.now
    }

    /// The time that is written with a change. It is `now` or slightly later, so that changes of a row sort in the order in which they
    /// happened.
    pub fn stamp(&self) -> Ms {
        self.ids.stamp()
    }

    /// The task, or `None` if it does not exist.
    pub fn find_task(&self, id: TaskId) -> Result<Option<&TaskState>, Halt> {
        match self.loaded.tasks.get(&id) {
            Some(task) => Ok(task.as_ref()),
            None if self.loaded.locked_tasks.contains(&id) => Err(Halt::Locked),
            None => Err(need(|keys| keys.tasks.insert(id))),
        }
    }

    /// The task, which must exist.
    ///
    /// # Errors
    /// It does not exist, is not loaded, or is locked.
    pub fn task(&self, id: TaskId) -> Result<&TaskState, Halt> {
        self.find_task(id)?.ok_or(Halt::Rejected(Rejection::TaskNotFound))
    }

    /// Which task runs in this context, and where its tasks ran last.
    ///
    /// # Errors
    /// It is not loaded.
    pub fn context(&self, context: &str) -> Result<&ContextView, Halt> {
        self.loaded.contexts.get(context).ok_or_else(|| need(|keys| keys.contexts.insert(context.to_owned())))
    }

    /// Writes a task back and updates the counts. This is the only way in which task states change. Returns the new revision, which replies
    /// about the task must carry.
    pub fn put_task(&mut self, mut task: TaskState) -> i64 {
        let before = self.loaded.tasks.get(&task.id).and_then(Option::as_ref);
        task.revision = before.map_or(0, |before| before.revision) + 1;
        let was_active = before.is_some_and(|before| before.status.is_active());
        let was_open = before.is_some_and(|before| !before.status.is_final());
        if let Some(active) = self.loaded.active_leases.get_mut(&task.agent_slug) {
            *active += i64::from(task.status.is_active()) - i64::from(was_active);
        }
        if before.map(|b| (b.priority, b.status)) != Some((task.priority, task.status)) {
            if let Some(before) = before {
                *self.counts.entry((before.agent_slug.clone(), before.priority, before.status)).or_default() -= 1;
            }
            *self.counts.entry((task.agent_slug.clone(), task.priority, task.status)).or_default() += 1;
        }
        self.dirty.quiet_tasks.remove(&task.id);
        self.dirty.tasks.insert(task.id);
        self.count_open(&task, was_open);
        let revision = task.revision;
        self.loaded.tasks.insert(task.id, Some(task));
        revision
    }

    /// Removes a finished task.
    pub(super) fn remove_task(&mut self, task: &TaskState) {
        *self.counts.entry((task.agent_slug.clone(), task.priority, task.status)).or_default() -= 1;
        self.dirty.removed_tasks.insert(task.id);
        self.loaded.tasks.insert(task.id, None);
    }

    /// Like [`put_task`](Self::put_task), but for a change that other replicas do not need.
    pub fn put_task_quietly(&mut self, task: TaskState) -> i64 {
        let id = task.id;
        let told = self.dirty.tasks.contains(&id) && !self.dirty.quiet_tasks.contains(&id);
        let revision = self.put_task(task);
        if !told {
            self.dirty.quiet_tasks.insert(id);
        }
        revision
    }

    /// The actor as text. If the request used a named key, that key is shown instead.
    pub fn actor(&self, actor: &Actor) -> String {
        actor.named(&self.by)
    }

    /// Adds an audit entry, which commits with the change that it describes.
    pub fn audit(&mut self, action: Action, entity_type: EntityType, entity_id: impl ToString, actor: &Actor, detail: impl Into<String>) {
        self.audit_concerning(Concerns::default(), action, entity_type, entity_id, actor, detail);
    }

    /// Like [`audit`](Self::audit), for an entry that concerns a task or a worker that neither its entity nor its actor names.
    pub fn audit_concerning(
        &mut self,
        concerns: Concerns<'_>,
        action: Action,
        entity_type: EntityType,
        entity_id: impl ToString,
        actor: &Actor,
        detail: impl Into<String>,
    ) {
        let entity_id = entity_id.to_string();
        let task = concerns.task.or_else(|| entity_id.parse().ok().filter(|_| entity_type == EntityType::Task));
        let worker = match (concerns.worker, actor) {
            (Some(worker), _) => Some(worker.to_owned()),
            (None, _) if entity_type == EntityType::Worker => Some(entity_id.clone()),
            (None, Actor::Worker(worker)) => Some(worker.clone()),
            (None, _) => None,
        };
        self.dirty.audit.push(AuditEntry {
            id: self.ids.next_id(),
            timestamp: self.ids.stamp(),
            action,
            entity_type,
            entity_id,
            actor: self.actor(actor),
            detail: detail.into(),
            request_id: self.by.request_id.clone(),
            task_id: task,
            worker_id: worker,
        });
    }

    /// Requests a re-evaluation of the tasks that wait for this subject, once for the whole batch.
    pub fn wake(&mut self, subject: Subject) {
        let known = self.dirty.wakeups.iter().find(|wakeup| wakeup.subject == subject).cloned();
        let wakeup = known.unwrap_or_else(|| {
            let wakeup = Wakeup { id: self.ids.next_id(), subject, cursor: None };
            self.dirty.wakeups.push(wakeup.clone());
            wakeup
        });
        if !self.caused.contains(&wakeup) {
            self.caused.push(wakeup);
        }
    }
}

/// The result of a look-up, or `None` if another program keeps the row locked.
pub fn unless_locked<T>(found: Result<T, Halt>) -> Result<Option<T>, Halt> {
    match found {
        Err(Halt::Locked) => Ok(None),
        found => found.map(Some),
    }
}

/// Asks for more rows.
pub fn need<T>(add: impl FnOnce(&mut RowKeys) -> T) -> Halt {
    let mut keys = RowKeys::default();
    add(&mut keys);
    Halt::Need(Box::new(keys))
}
