//! The workers and the leases that they hold.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::paused_accounts::PausedAccounts;
use crate::Ms;
use crate::ids::{LeaseId, TaskId, WorkerId};
use crate::origin::Origin;
use crate::pause::{PauseCause, PauseKind, PausedAccount, ResumedAccount};
use crate::placement::{self, Candidate};
use crate::requirement::Requirement;
use crate::similar::did_you_mean;
use crate::task::{ActiveLease, TaskSpec, TaskState};
use crate::worker::{MAX_CONCURRENCY, Worker, WorkerStatus};

/// A lease that a worker holds, with the fields that the cache needs.
#[derive(Clone, Debug)]
pub struct HeldLease {
    /// The task that is leased.
    pub task: TaskId,
    /// The worker that has the lease.
    pub worker: WorkerId,
    /// The id of the lease.
    pub lease: LeaseId,
    /// Which slot of the worker it takes.
    pub slot: i64,
    /// How the lease was made.
    pub origin: Origin,
    /// The agent of the task.
    pub agent_slug: String,
    /// The context of the task.
    pub context_id: String,
    /// Whether the cancellation of the task was requested, so that its agent has to end the run.
    pub cancel_requested: bool,
    /// Whether its run waits for a person's answer.
    pub asks: bool,
    /// Whether a person has answered, and the agent has not fetched the answer yet.
    pub is_answered: bool,
}

impl HeldLease {
    pub(super) fn new(task: &TaskState, lease: &ActiveLease) -> Self {
        Self {
            task: task.id,
            worker: lease.worker_id.clone(),
            lease: lease.id,
            slot: lease.slot,
            origin: lease.origin,
            agent_slug: task.agent_slug.clone(),
            context_id: task.context_id.clone(),
            cancel_requested: task.cancel_requested,
            asks: task.asks().is_some(),
            is_answered: task.is_answered(),
        }
    }
}

/// The cache's entry for a worker. A lease may arrive before the row of its worker does.
#[derive(Clone, Debug, Default)]
struct Entry {
    worker: Option<Worker>,
    revision: i64,
    /// The cache's logical time of the last update.
    at: u64,
    held: BTreeMap<TaskId, HeldLease>,
}

/// The workers that the cache knows, by name, each with its leases.
#[derive(Debug, Default)]
pub struct Fleet {
    entries: BTreeMap<WorkerId, Entry>,
    /// How long a task is kept for the workers that name its agent.
    pub named_agent_wait_ms: Ms,
    /// The workers that name each agent.
    naming: ByAgent,
    /// The workers that know each agent by name: they name it, or have a profile for it.
    knowing: ByAgent,
    /// How many workers serve all agents.
    serving_all: usize,
    /// How many of those do not report for which agents they have profiles.
    serving_untold: usize,
    /// The workers to which the leader pushes.
    pushed_to: BTreeSet<WorkerId>,
    paused_accounts: PausedAccounts,
    /// Removed workers, kept while an older copy of their row may still arrive.
    removed: BTreeSet<(u64, WorkerId)>,
}

/// The agent of tasks that name none, and the profile that runs the tasks of agents without a profile.
const DEFAULT_AGENT: &str = "default";
/// The maximum number of known agent names that an unknown name is compared with.
const COMPARED_AGENTS: usize = 1_000;

/// Why no worker takes a ready task. If several workers have different reasons, the last of these variants counts, because it is the
/// closest to being resolved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortage {
    /// No worker that is online serves the task.
    NoWorker,
    /// Workers would run the task if they served its project.
    Project,
    /// Only paused workers serve it. The fields describe the pause that ends first. A pause that ends by itself precedes one that a person
    /// has to end, because that is when the task can run if nobody acts. Workers' names and messages are left out, because not everyone who
    /// sees the task may see them.
    Paused {
        /// Whether the pause ends by itself.
        is_passing: bool,
        /// When the pause ends, or when the worker tries again. It is reversed, so that the earliest time is the greatest value.
        until: Reverse<Ms>,
        /// Why the worker is paused.
        cause: PauseCause,
    },
    /// Every online worker that serves it is cordoned or draining.
    Cordoned,
    /// Every worker that serves it, is online and takes tasks has no free slot.
    NoCapacity {
        /// Whether a run on one of them waits for a person's answer. It keeps its slot meanwhile.
        asks: bool,
    },
    /// A worker that names no agents has room, but the task is kept for the workers that name its agent, which are full.
    Kept {
        /// Until when the task is kept for the workers that name its agent.
        until: Ms,
    },
}

impl Fleet {
    /// Returns whether the row was taken in, that is, whether the cache had no newer one.
    pub(super) fn put_worker(&mut self, worker: Worker, at: u64) -> bool {
        let entry = self.entries.entry(worker.id.clone()).or_default();
        if entry.revision > worker.revision {
            return false;
        }
        entry.at = at;
        let before = entry.worker.take();
        let last_seen = before.as_ref().filter(|_| entry.revision == worker.revision).map_or(0, |known| known.last_seen);
        entry.revision = worker.revision;
        if worker.is_pushed_to() {
            self.pushed_to.insert(worker.id.clone());
        } else {
            self.pushed_to.remove(&worker.id);
        }
        if let Some(before) = before {
            self.paused_accounts.remove(&before);
            self.forget_names(&before);
        }
        self.paused_accounts.add(&worker);
        self.note_names(&worker);
        let id = worker.id.clone();
        let worker = Worker { last_seen: worker.last_seen.max(last_seen), ..worker };
        self.entries.entry(id).or_default().worker = Some(worker);
        true
    }

    pub(super) fn remove_worker(&mut self, id: &str, revision: i64, at: u64) {
        let entry = self.entries.entry(id.to_owned()).or_default();
        if entry.revision > revision {
            return;
        }
        entry.revision = revision;
        entry.at = at;
        if let Some(before) = entry.worker.take() {
            self.paused_accounts.remove(&before);
            self.forget_names(&before);
        }
        self.pushed_to.remove(id);
        self.removed.insert((at, id.to_owned()));
    }

    fn note_names(&mut self, worker: &Worker) {
        add_names(&mut self.naming, worker.capabilities.agents.iter().flatten(), &worker.id);
        add_names(&mut self.knowing, worker.capabilities.known_agents(), &worker.id);
        self.serving_all += usize::from(worker.capabilities.agents.is_none());
        self.serving_untold += usize::from(worker.capabilities.serves_untold());
    }

    fn forget_names(&mut self, worker: &Worker) {
        remove_names(&mut self.naming, worker.capabilities.agents.iter().flatten(), &worker.id);
        remove_names(&mut self.knowing, worker.capabilities.known_agents(), &worker.id);
        self.serving_all -= usize::from(worker.capabilities.agents.is_none());
        self.serving_untold -= usize::from(worker.capabilities.serves_untold());
    }

    /// How many workers serve the agent, online or not. Without an agent: how many workers there are.
    pub fn serving(&self, agent_slug: Option<&str>) -> usize {
        match agent_slug {
            None => self.workers().count(),
            Some(agent) => self.serving_all + self.naming.get(agent).map_or(0, BTreeSet::len),
        }
    }

    /// A warning about an agent whose name may be misspelt, because no worker knows it by name. `None` if there are no workers. Also `None`
    /// if some worker serves all agents without reporting its profiles, and no known name is similar to this one.
    pub fn unknown_agent(&self, agent_slug: &str) -> Option<String> {
        let is_served = self.serving_all > 0;
        if (is_served && agent_slug == DEFAULT_AGENT) || self.knowing.contains_key(agent_slug) {
            return None;
        }
        let meant = did_you_mean(agent_slug, self.knowing.keys().take(COMPARED_AGENTS).map(String::as_str));
        if is_served {
            let may_be_known = meant.is_empty() && self.serving_untold > 0;
            let runs = || format!("no worker knows agent {agent_slug}{meant}; the task runs with a worker's profile default");
            return (!may_be_known).then(runs);
        }
        self.workers().next().map(|_| format!("no worker serves agent {agent_slug}{meant}; the task waits until one does"))
    }

    /// Forgets workers that were removed before this logical time.
    pub(super) fn forget_removed(&mut self, before: u64) {
        while let Some((at, id)) = self.removed.pop_first() {
            if at >= before {
                self.removed.insert((at, id));
                return;
            }
            if self.entries.get(&id).is_some_and(|entry| entry.at == at && entry.worker.is_none() && entry.held.is_empty()) {
                self.entries.remove(&id);
            }
        }
    }

    pub(super) fn heard_of_before(&self, at: u64) -> Vec<WorkerId> {
        self.entries.iter().filter(|(_, entry)| entry.worker.is_some() && entry.at < at).map(|(id, _)| id.clone()).collect()
    }

    /// The revision of the entry, if it was not updated since this logical time.
    pub(super) fn revision_before(&self, id: &str, at: u64) -> Option<i64> {
        self.entries.get(id).filter(|entry| entry.at < at).map(|entry| entry.revision)
    }

    pub(super) fn hold(&mut self, held: HeldLease) {
        self.entries.entry(held.worker.clone()).or_default().held.insert(held.task, held);
    }

    pub(super) fn let_go(&mut self, worker: &str, task: TaskId) {
        let Some(entry) = self.entries.get_mut(worker) else { return };
        entry.held.remove(&task);
        if entry.worker.is_none() && entry.held.is_empty() {
            self.removed.insert((entry.at, worker.to_owned()));
        }
    }

    pub(super) fn held_task(&self, worker: &str, task: TaskId) -> Option<&HeldLease> {
        self.entries.get(worker)?.held.get(&task)
    }

    /// Records that the worker was seen at this time. The latest recorded time stays; an unknown worker is ignored.
    pub fn seen(&mut self, id: &str, at: Ms) {
        if let Some(worker) = self.entries.get_mut(id).and_then(|entry| entry.worker.as_mut()) {
            worker.last_seen = worker.last_seen.max(at);
        }
    }

    /// The worker of this name; `None` if the cache has no row of it, or it was removed.
    pub fn worker(&self, id: &str) -> Option<&Worker> {
        self.entries.get(id)?.worker.as_ref()
    }

    /// The subset of these accounts that other workers have found to be out of quota.
    pub fn paused_accounts(&self, worker: &str, accounts: &[String], now: Ms) -> Vec<PausedAccount> {
        let Some(worker) = self.worker(worker) else { return Vec::new() };
        let is_there = |finder: &WorkerId| self.worker(finder).is_some_and(|finder| finder.shown_status() != WorkerStatus::Offline);
        accounts.iter().filter_map(|account| self.paused_accounts.found_by_others(worker, account, now, is_there)).collect()
    }

    /// The accounts of this worker whose pauses an administrator has ended, while its agent still reports them as paused.
    pub fn resumed_accounts(&self, worker: &str) -> Vec<ResumedAccount> {
        let pauses = self.worker(worker).map(|worker| &worker.pauses[..]).unwrap_or_default();
        let resumed = pauses.iter().filter(|pause| pause.is_resumed && pause.kind == PauseKind::Account);
        resumed.map(|pause| ResumedAccount { account: pause.name.clone(), since: pause.since }).collect()
    }

    /// All workers, in the order of their names.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.known().map(|(worker, _)| worker)
    }

    /// The workers whose names begin with this prefix, each with its leased tasks.
    pub fn named(&self, prefix: &str) -> impl Iterator<Item = (&Worker, impl Iterator<Item = TaskId>)> {
        let entries = self.entries.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let entries = entries.take_while(move |(id, _)| id.starts_with(prefix));
        entries.filter_map(|(_, entry)| Some((entry.worker.as_ref()?, entry.held.keys().copied())))
    }

    fn known(&self) -> impl Iterator<Item = (&Worker, &Entry)> {
        self.entries.values().filter_map(|entry| Some((entry.worker.as_ref()?, entry)))
    }

    /// The workers to which the leader pushes tasks by itself.
    pub fn pushed_to(&self) -> impl Iterator<Item = &Worker> {
        self.pushed_to.iter().filter_map(|id| self.worker(id))
    }

    /// Whether the leader pushes to any worker.
    pub fn has_pushed_workers(&self) -> bool {
        !self.pushed_to.is_empty()
    }

    /// The leases that this worker holds.
    pub fn held(&self, worker: &str) -> impl Iterator<Item = &HeldLease> {
        self.entries.get(worker).into_iter().flat_map(|entry| entry.held.values())
    }

    /// The leases of all workers.
    pub fn all_held(&self) -> impl Iterator<Item = &HeldLease> {
        self.entries.values().flat_map(|entry| entry.held.values())
    }

    /// Whether a run of this agent waits for a person. It occupies its slot and its place in the queue meanwhile.
    pub fn asks(&self, agent_slug: &str) -> bool {
        self.all_held().any(|held| held.asks && held.agent_slug == agent_slug)
    }

    /// The used slots, one bit each.
    pub fn used(&self, worker: &str) -> u32 {
        self.held(worker).fold(0, |used, held| used | 1u32.checked_shl(u32::try_from(held.slot).unwrap_or(32)).unwrap_or(0))
    }

    /// The number of the worker's free slots. It is negative if the worker holds more leases than it has slots, and 0 for an unknown
    /// worker.
    pub fn free(&self, worker: &str) -> i64 {
        self.entries.get(worker).and_then(|entry| Some(entry.free(entry.worker.as_ref()?))).unwrap_or(0)
    }

    /// Whether the worker gets tasks when it claims. A worker that is lost does, because claiming brings it back.
    pub fn takes_tasks(&self, worker: &str) -> bool {
        self.worker(worker).is_some_and(Worker::takes_tasks)
    }

    /// How many tasks the worker can claim now: the number of its free slots, or 0 if it takes no new tasks.
    pub fn claimable(&self, worker: &str) -> i64 {
        if self.takes_tasks(worker) { self.free(worker).max(0) } else { 0 }
    }

    /// The workers that a task with this requirement is kept for.
    fn kept_for(&self, required: Requirement<'_>) -> impl Iterator<Item = &Worker> {
        let naming = self.naming.get(required.agent_slug).into_iter().flatten().filter_map(|id| self.worker(id));
        naming.filter(move |worker| placement::is_kept_for(worker, required))
    }

    /// Until when a task with this requirement, which has been ready since `ready_at`, is kept for the workers that name its agent; `None`
    /// if it is not kept now.
    pub fn kept_until(&self, required: Requirement<'_>, ready_at: Ms, now: Ms) -> Option<Ms> {
        let until = placement::kept_until(ready_at, self.named_agent_wait_ms, now)?;
        self.kept_for(required).next().map(|_| until)
    }

    /// The agents that the worker names, or none if it takes no tasks.
    pub fn kept_agents(&self, worker: &str) -> Vec<String> {
        let takes = |worker: &&Worker| worker.takes_tasks() && !worker.lost;
        self.worker(worker).filter(takes).and_then(|worker| worker.capabilities.agents.clone()).unwrap_or_default()
    }

    /// The candidates for a lease call, or for a dispatch call, which needs a URL. They are the workers with the most free slots, with
    /// those that name the agent first; a worker that runs a task of the same context; and one for which the task may be kept, even if it
    /// is full.
    pub fn shortlist(&self, task: &TaskSpec, length: usize, needs_url: bool) -> Vec<WorkerId> {
        let mut best: Vec<Candidate<'_>> = Vec::with_capacity(length + 1);
        let required = task.requirement();
        let is_reachable = |worker: &Worker| !(needs_url && worker.url.is_empty());
        for (worker, entry) in self.known() {
            let candidate = Candidate { worker, free: entry.free(worker) };
            let is_fit = placement::may_pick(worker, required) && is_reachable(worker);
            if candidate.free <= 0 || !is_fit {
                continue;
            }
            let rank = |c: &Candidate<'_>| (c.worker.capabilities.names_agent(required.agent_slug), c.free, c.worker.last_seen);
            let at = best.iter().position(|other| rank(other) < rank(&candidate)).unwrap_or(best.len());
            if at < length {
                best.insert(at, candidate);
                best.truncate(length);
            }
        }
        let mut ids: Vec<WorkerId> = best.iter().map(|candidate| candidate.worker.id.clone()).collect();
        let runs_it = self.known().find(|(_, entry)| entry.held.values().any(|held| held.context_id == task.context_id));
        let kept_for = self.kept_for(required).find(|worker| is_reachable(worker));
        for worker in runs_it.map(|(worker, _)| worker).into_iter().chain(kept_for) {
            if !ids.contains(&worker.id) {
                ids.push(worker.id.clone());
            }
        }
        ids
    }

    /// Why no worker takes a ready task with this requirement, which has been ready since `ready_at`; `None` if a worker can take it.
    pub fn shortage(&self, required: Requirement<'_>, ready_at: Ms, now: Ms) -> Option<Shortage> {
        let kept_until = self.kept_until(required, ready_at, now);
        let mut shortage = Shortage::NoWorker;
        let serves_rest = |worker: &Worker| worker.is_online() && worker.capabilities.serves_but_for_project(required);
        for (worker, entry) in self.known() {
            let here = match worker.pause_of(required) {
                Some(pause) => Shortage::Paused { is_passing: pause.cause.is_passing(), until: Reverse(pause.until), cause: pause.cause },
                None if !serves_rest(worker) => continue,
                None if !worker.capabilities.serves(required) => Shortage::Project,
                None if worker.cordoned || worker.draining => Shortage::Cordoned,
                None if entry.free(worker) <= 0 => Shortage::NoCapacity { asks: entry.held.values().any(|held| held.asks) },
                None => match kept_until.filter(|_| !worker.capabilities.names_agent(required.agent_slug)) {
                    Some(until) => Shortage::Kept { until },
                    None => return None,
                },
            };
            shortage = shortage.max(here);
        }
        Some(shortage)
    }
}

/// Workers by the agents that they name, or that they know.
type ByAgent = BTreeMap<String, BTreeSet<WorkerId>>;

fn add_names<'a>(index: &mut ByAgent, names: impl Iterator<Item = &'a String>, worker: &WorkerId) {
    for agent_slug in names {
        index.entry(agent_slug.clone()).or_default().insert(worker.clone());
    }
}

fn remove_names<'a>(index: &mut ByAgent, names: impl Iterator<Item = &'a String>, worker: &WorkerId) {
    for agent_slug in names {
        if let Some(workers) = index.get_mut(agent_slug) {
            workers.remove(worker);
            if workers.is_empty() {
                index.remove(agent_slug);
            }
        }
    }
}

impl Entry {
    fn free(&self, worker: &Worker) -> i64 {
        worker.capabilities.max_concurrency.min(MAX_CONCURRENCY) - self.held.len() as i64
    }
}
