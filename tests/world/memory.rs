//! A database in memory: it loads [`RowKeys`] and saves [`Dirty`](bloom_core::working_set::Dirty) as the real databases do, and refuses
//! what their unique indexes refuse.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue, Closed};
use bloom_core::api_key::ApiKey;
use bloom_core::audit::AuditEntry;
use bloom_core::cache::rank;
use bloom_core::command::RowKeys;
use bloom_core::event::TaskEvent;
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::project::{Project, ProjectId, ProjectNode};
use bloom_core::run_result::RunResult;
use bloom_core::task::{Parked, PastLease, Session, Status, TaskSpec, TaskState};
use bloom_core::wakeup::{Subject, Waiters, Wakeup, WakeupId};
use bloom_core::worker::Worker;
use bloom_core::working_set::{ContextView, Counts, Loaded, Slots, WorkingSet};

use super::control_plane::ControlPlaneRows;
use super::files::FileRows;

/// The name of the unique index that refused a write.
pub type Conflict = &'static str;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    pub specs: BTreeMap<TaskId, Arc<TaskSpec>>,
    pub tasks: BTreeMap<TaskId, TaskState>,
    pub workers: BTreeMap<WorkerId, Worker>,
    /// The last revisions of removed workers.
    pub tombstones: BTreeMap<WorkerId, i64>,
    pub wakeups: BTreeMap<WakeupId, Wakeup>,
    pub past_leases: BTreeMap<LeaseId, PastLease>,
    pub results: Vec<Arc<RunResult>>,
    pub events: BTreeMap<(TaskId, i64), TaskEvent>,
    /// The row of all queues is added by the first change.
    pub queues: BTreeMap<String, AgentQueue>,
    pub context_resets: BTreeMap<String, Ms>,
    pub settings: BTreeMap<String, String>,
    pub api_keys: BTreeMap<String, ApiKey>,
    /// Of keys with a quota: `refilled_at` and `stored_bytes`.
    pub quota_uses: BTreeMap<String, (Ms, i64)>,
    pub projects: BTreeMap<ProjectId, Project>,
    pub project_nodes: BTreeMap<(ProjectId, WorkerId), ProjectNode>,
    pub control_plane: ControlPlaneRows,
    pub files: FileRows,
    pub audit: Vec<AuditEntry>,
    /// The sum of all changes of the counts.
    pub counts: Counts,
    pub leases_granted: i64,
    /// Those of them that belonged to tasks that were deleted.
    pub leases_removed: i64,
}

impl Memory {
    /// Looks up, locks and reads at one moment.
    pub fn load(&self, now: Ms, keys: &RowKeys) -> Loaded {
        let (found, tasks) = self.look_up(keys);
        self.lock(now, keys, found, tasks)
    }

    /// The first part of a load: the ids found without locks, and the tasks that they lead to. Both may be outdated when the locks are
    /// taken.
    pub fn look_up(&self, keys: &RowKeys) -> (Loaded, BTreeSet<TaskId>) {
        let mut found = Loaded::default();
        let mut tasks = BTreeSet::new();
        for key in &keys.idempotency {
            let spec = self.specs.values().find(|spec| spec.idempotency_key.as_ref() == Some(key));
            tasks.extend(spec.map(|spec| spec.id));
            found.idempotency.insert(key.clone(), spec.cloned());
        }
        for uid in &keys.objects {
            let spec = self.specs.values().find(|spec| spec.object.as_ref().is_some_and(|object| object.uid == *uid));
            tasks.extend(spec.map(|spec| spec.id));
            found.objects.insert(*uid, spec.cloned());
        }
        for lease in &keys.leases {
            let task = self.active().find(|task| task.lease.as_ref().is_some_and(|active| active.id == *lease)).map(|task| task.id);
            tasks.extend(task);
            found.lease_tasks.insert(*lease, task);
        }
        for worker in &keys.worker_tasks {
            let held: Vec<TaskId> = self.held_by(worker).map(|task| task.id).collect();
            tasks.extend(held.iter().copied());
            found.worker_tasks.insert(worker.clone(), held);
        }
        for key in &keys.exclusive {
            let holder = self.active().find(|task| task.exclusive_key.as_ref() == Some(key)).map(|task| task.id);
            tasks.extend(holder);
            found.exclusive.insert(key.clone(), holder);
        }
        for task in &keys.dependencies {
            let dependencies = self.specs.get(task).map(|spec| spec.depends_on.clone()).unwrap_or_default();
            tasks.extend(dependencies.iter().copied());
            found.dependencies.insert(*task, dependencies);
        }
        for context in &keys.contexts {
            let view = self.context(context);
            tasks.extend(view.holder);
            found.contexts.insert(context.clone(), view);
        }
        for (context, before) in &keys.predecessors {
            let newest = self.live_in(context).rfind(|task| task.id < *before).map(|task| task.id);
            tasks.extend(newest);
            found.predecessors.insert((context.clone(), *before), newest);
        }
        let last = found.contexts.values().filter_map(|view| view.last_worker.as_ref()).map(|(worker, _)| worker);
        let of_sessions = last.filter(|worker| !keys.all_workers && !keys.workers.contains(*worker));
        let observed = of_sessions.chain(&keys.observed_workers).map(|id| (id.clone(), self.workers.get(id).cloned())).collect();
        found.observed_workers = observed;
        (found, tasks)
    }

    /// The second part of a load: the locked rows, as they are now.
    pub fn lock(&self, now: Ms, keys: &RowKeys, found: Loaded, mut tasks: BTreeSet<TaskId>) -> Loaded {
        tasks.extend(keys.tasks.iter().copied());
        let mut loaded = Loaded { now, all_workers: keys.all_workers, ..found };
        loaded.tasks = tasks.into_iter().map(|id| (id, self.tasks.get(&id).cloned())).collect();
        let of_tasks = loaded.tasks.values().flatten().map(|task| &task.context_id);
        let reset = of_tasks.chain(&keys.resets).filter_map(|id| self.context_resets.get_key_value(id));
        loaded.context_resets = reset.map(|(id, at)| (id.clone(), *at)).collect();
        loaded.workers = keys.workers.iter().map(|id| (id.clone(), self.workers.get(id).cloned())).collect();
        if keys.all_workers {
            loaded.workers.extend(self.tombstones.keys().map(|id| (id.clone(), None)));
            loaded.workers.extend(self.workers.iter().map(|(id, worker)| (id.clone(), Some(worker.clone()))));
        }
        let revision = |id: &WorkerId| self.workers.get(id).map(|worker| worker.revision).or_else(|| self.tombstones.get(id).copied());
        loaded.worker_revisions = loaded.workers.keys().filter_map(|id| Some((id.clone(), revision(id)?))).collect();
        let everyone = self.workers.keys().filter(|_| keys.all_workers);
        loaded.slots = keys.exact_slots.iter().chain(everyone).map(|id| (id.clone(), Slots { used: self.used(id), exact: true })).collect();
        loaded.past_leases = keys.past_leases.iter().map(|id| (*id, self.past_leases.get(id).cloned())).collect();
        self.load_keys(keys, &mut loaded);
        self.load_projects(keys, &mut loaded);
        self.load_queues(keys, &mut loaded);
        loaded.control_plane = self.control_plane.load(keys);
        loaded.files = self.files.load(keys);
        loaded
    }

    fn load_queues(&self, keys: &RowKeys, loaded: &mut Loaded) {
        let queued = loaded.tasks.values().flatten().filter(|task| keys.places && task.status == Status::Queued);
        let slugs: BTreeSet<String> = queued.map(|task| task.agent_slug.clone()).chain(keys.queues.iter().cloned()).collect();
        if slugs.is_empty() {
            return;
        }
        loaded.queues = slugs.iter().map(|slug| (slug.clone(), self.queues.get(slug).cloned())).collect();
        // If nothing is set for any queue, placement reads no row of them.
        let is_any_set = self.queues.values().any(|queue| !queue.is_unrestricted());
        let all = Some(self.all_queues()).filter(|_| is_any_set || !keys.queues.is_empty());
        loaded.queues.insert(ALL_QUEUES.to_owned(), all);
        let counted = slugs.into_iter().filter(|slug| self.limit(slug).is_some() || keys.queues.contains(slug));
        loaded.active_leases = counted.map(|slug| (slug.clone(), self.active_of(&slug))).collect();
        if !keys.queues.is_empty() {
            let rows = self.queues.keys().filter(|slug| *slug != ALL_QUEUES).count();
            loaded.queue_rows = i64::try_from(rows).expect("a few queues");
        }
    }

    pub fn all_queues(&self) -> AgentQueue {
        self.queues.get(ALL_QUEUES).cloned().unwrap_or_default()
    }

    pub fn limit(&self, agent_slug: &str) -> Option<i64> {
        self.queues.get(agent_slug)?.max_concurrency
    }

    pub fn active_of(&self, agent_slug: &str) -> i64 {
        i64::try_from(self.active().filter(|task| task.agent_slug == agent_slug).count()).expect("a few leases")
    }

    /// Why no lease of the queue may be made.
    pub fn closed(&self, agent_slug: &str) -> Option<Closed> {
        let closed = |slug: &str| self.queues.get(slug)?.closed(self.active_of(slug));
        closed(ALL_QUEUES).or_else(|| closed(agent_slug))
    }

    /// Saves everything that the working set changed, or nothing.
    pub fn save(&mut self, set: &WorkingSet) -> Result<(), Conflict> {
        let mut next = self.clone();
        next.write(set)?;
        *self = next;
        Ok(())
    }

    /// As [`save`](Self::save), but after a conflict this database is half-written and must be discarded.
    pub fn write(&mut self, set: &WorkingSet) -> Result<(), Conflict> {
        let dirty = &set.dirty;
        for spec in &dirty.specs {
            self.specs.insert(spec.id, spec.clone());
        }
        for id in &dirty.tasks {
            let task = set.loaded.tasks[id].clone().expect("a written task exists");
            self.tasks.insert(*id, task);
        }
        self.past_leases.extend(dirty.past_leases.iter().map(|lease| (lease.id, lease.clone())));
        self.results.extend(dirty.results.iter().cloned());
        self.events.extend(dirty.events.iter().map(|event| ((event.task_id, event.number), event.clone())));
        for id in &dirty.removed_workers {
            if self.workers.remove(id).is_some() {
                self.tombstones.insert(id.clone(), set.loaded.worker_revisions[id]);
            }
        }
        for id in dirty.workers.iter().filter(|id| !dirty.removed_workers.contains(*id)) {
            let written = set.loaded.worker_revisions[id];
            if self.workers.get(id).is_some_and(|known| known.revision >= written) {
                return Err("one worker per name");
            }
        }
        for id in dirty.workers.iter().chain(&dirty.seen).filter(|id| !dirty.removed_workers.contains(*id)) {
            let worker = set.loaded.workers[id].clone().expect("a written worker exists");
            self.tombstones.remove(id);
            self.workers.insert(id.clone(), worker);
        }
        self.wakeups.extend(dirty.wakeups.iter().map(|wakeup| (wakeup.id, wakeup.clone())));
        for progress in &dirty.progress {
            match (progress.next, self.wakeups.get_mut(&progress.wakeup)) {
                (Some(next), Some(wakeup)) => wakeup.cursor = wakeup.cursor.max(Some(next)),
                (None, Some(_)) => {
                    self.wakeups.remove(&progress.wakeup);
                }
                (_, None) => {}
            }
        }
        for slug in &dirty.queues {
            match set.loaded.queues.get(slug).cloned().flatten() {
                Some(queue) => drop(self.queues.insert(slug.clone(), queue)),
                None => drop(self.queues.remove(slug)),
            }
        }
        self.context_resets.extend(dirty.context_resets.iter().map(|id| (id.clone(), set.loaded.context_resets[id])));
        self.settings.extend(dirty.settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        self.write_keys(set)?;
        self.write_projects(set)?;
        self.control_plane.save(set);
        self.files.save(set);
        self.audit.extend(dirty.audit.iter().cloned());
        for (key, delta) in &set.counts {
            *self.counts.entry(key.clone()).or_default() += delta;
        }
        self.counts.retain(|_, count| *count != 0);
        self.leases_granted += set.leases_granted;
        for id in &dirty.removed_tasks {
            self.leases_removed += self.forget_task(*id).lease_count;
        }
        self.check_unique()
    }

    fn check_unique(&self) -> Result<(), Conflict> {
        fn unique<K: Ord>(name: Conflict, keys: impl Iterator<Item = K>) -> Result<(), Conflict> {
            let mut seen = BTreeSet::new();
            for key in keys {
                if !seen.insert(key) {
                    return Err(name);
                }
            }
            Ok(())
        }
        let leases = || self.active().filter_map(|task| Some((task, task.lease.as_ref()?)));
        unique("one task per slot", leases().map(|(_, lease)| (&lease.worker_id, lease.slot)))?;
        unique("one task per lease", leases().map(|(_, lease)| lease.id))?;
        unique("one run per context", leases().filter(|(_, lease)| lease.holds_context).map(|(task, _)| &task.context_id))?;
        let made_after = self.tasks.values().filter_map(|task| Some((&task.context_id, task.created_after?)));
        unique("one successor per task", made_after)?;
        unique("one run per key", leases().filter_map(|(task, _)| task.exclusive_key.as_ref()))?;
        unique("one task per object", self.specs.values().filter_map(|spec| Some(spec.object.as_ref()?.uid)))?;
        unique("one task per idempotency key", self.specs.values().filter_map(|spec| spec.idempotency_key.as_ref()))
    }

    /// Removes a finished task with its leases, results and events.
    pub fn remove_task(&mut self, id: TaskId) -> TaskState {
        let task = self.forget_task(id);
        *self.counts.entry((task.agent_slug.clone(), task.priority, task.status)).or_default() -= 1;
        self.counts.retain(|_, count| *count != 0);
        task
    }

    fn forget_task(&mut self, id: TaskId) -> TaskState {
        self.specs.remove(&id);
        self.past_leases.retain(|_, lease| lease.task_id != id);
        self.results.retain(|result| result.task_id != id);
        self.events.retain(|(task, _), _| *task != id);
        self.files.forget_task(id);
        let task = self.tasks.remove(&id).expect("a removed task exists");
        if !self.tasks.values().any(|other| other.context_id == task.context_id) {
            self.context_resets.remove(&task.context_id);
        }
        task
    }

    /// A page of the tasks that wait for the wake-up's subject.
    pub fn waiters(&self, wakeup: &Wakeup, limit: usize) -> Waiters {
        let queued = |task: &&TaskState| task.status == Status::Queued;
        let behind = |task: &TaskId| wakeup.cursor.is_none_or(|cursor| *task > cursor);
        let page = |ids: Vec<TaskId>| ids.last().copied().filter(|_| ids.len() == limit);
        match &wakeup.subject {
            Subject::Dependents(id) => {
                let depend = self.specs.values().filter(|spec| spec.depends_on.contains(id) && behind(&spec.id)).map(|spec| spec.id);
                let depend: Vec<TaskId> = depend.take(limit).collect();
                let waits = |id: &&TaskId| self.tasks.get(id).filter(queued).is_some_and(|task| task.parked.is_some());
                Waiters { tasks: depend.iter().filter(waits).copied().collect(), next: page(depend), more_want_key: false }
            }
            Subject::Context { context_id, after } => {
                let first = self.live_in(context_id).next();
                let next = after.and_then(|after| self.live_in(context_id).find(|task| task.id > after));
                let waits = |task: &&TaskState| matches!(task.parked, None | Some(Parked::Session | Parked::Reserved));
                let mut tasks: Vec<TaskId> = first.into_iter().chain(next).filter(queued).filter(waits).map(|task| task.id).collect();
                tasks.dedup();
                Waiters { tasks, ..Waiters::default() }
            }
            Subject::Key(key) => {
                let wants = |task: &&TaskState| task.parked == Some(Parked::ExclusiveKey) && task.exclusive_key.as_ref() == Some(key);
                let mut firsts: BTreeMap<(&str, &Option<String>), (i64, TaskId)> = BTreeMap::new();
                let mut waiting = 0;
                for task in self.tasks.values().filter(queued).filter(wants) {
                    waiting += 1;
                    let place = (rank(task.priority), task.id);
                    firsts.entry((&task.agent_slug, &task.project)).and_modify(|first| *first = place.min(*first)).or_insert(place);
                }
                let tasks: Vec<TaskId> = firsts.values().take(limit).map(|(_, id)| *id).collect();
                Waiters { more_want_key: waiting > tasks.len(), tasks, next: None }
            }
            Subject::Reservations(worker) => {
                let kept = |task: &&TaskState| task.parked == Some(Parked::Reserved) && task.session_worker.as_ref() == Some(worker);
                let kept = self.tasks.values().filter(queued).filter(kept).map(|task| task.id).filter(behind);
                let tasks: Vec<TaskId> = kept.take(limit).collect();
                Waiters { next: page(tasks.clone()), tasks, more_want_key: false }
            }
        }
    }

    pub fn parked(&self) -> Vec<TaskId> {
        self.tasks.values().filter(|task| task.status == Status::Queued && task.parked.is_some()).map(|task| task.id).collect()
    }

    /// The tasks that the worker may claim, including those reserved for it, in queue order.
    pub fn ready_for(&self, worker: &Worker) -> Vec<TaskId> {
        let serves = |task: &TaskState| worker.capabilities.serves(task.requirement());
        let suits = |task: &&TaskState| task.is_open_to(&worker.id) && serves(task);
        let mut ready: Vec<_> = self.tasks.values().filter(suits).map(|task| (rank(task.priority), task.id)).collect();
        ready.sort_unstable();
        ready.into_iter().map(|(_, id)| id).collect()
    }

    pub fn active(&self) -> impl Iterator<Item = &TaskState> {
        self.tasks.values().filter(|task| task.lease.is_some())
    }

    pub fn held_by<'a>(&'a self, worker: &'a str) -> impl Iterator<Item = &'a TaskState> {
        self.active().filter(move |task| task.lease.as_ref().is_some_and(|lease| lease.worker_id == worker))
    }

    pub fn used(&self, worker: &str) -> u32 {
        self.held_by(worker).filter_map(|task| task.lease.as_ref()).fold(0, |used, lease| used | 1 << lease.slot)
    }

    pub fn slots(&self) -> HashMap<WorkerId, u32> {
        self.workers.keys().map(|id| (id.clone(), self.used(id))).collect()
    }

    pub fn live_in<'a>(&'a self, context: &'a str) -> impl DoubleEndedIterator<Item = &'a TaskState> {
        let live = move |task: &&TaskState| task.context_id == context && task.session == Session::Context && !task.status.is_final();
        self.tasks.values().filter(live)
    }

    fn context(&self, context: &str) -> ContextView {
        let here = || self.active().filter(|task| task.context_id == context);
        let last = self.past_leases.values().rfind(|lease| lease.context_id == context && lease.completed);
        ContextView {
            holder: here().find(|task| task.lease.as_ref().is_some_and(|lease| lease.holds_context)).map(|task| task.id),
            active_worker: here().next().and_then(|task| Some(task.lease.as_ref()?.worker_id.clone())),
            last_worker: last.map(|lease| (lease.worker_id.clone(), lease.ended_at)),
            session_id: last.and_then(|lease| self.tasks.get(&lease.task_id)?.session_id.clone()),
            conversation: self.conversation(context),
        }
    }
}
