//! Placement of a task on a worker: by a lease or dispatch call, or by a worker's claim.

use super::change_worker::other_agent;
use super::presence::see;
use super::readiness::{context_blocker, key_blocker, park};
use crate::Ms;
use crate::arguments::{Choice, Claim};
use crate::audit::{Action, Actor, Concerns, EntityType};
use crate::ids::{InstanceId, TaskId, WorkerId};
use crate::operation::{Operation, Weight};
use crate::origin::Origin;
use crate::placement::{self, Candidate, STICKY_FOR_MS};
use crate::rejection::Rejection;
use crate::reply::{Claimed, Leased};
use crate::row_keys::RowKeys;
use crate::task::{ActiveLease, Parked, Session, Status, TaskState};
use crate::worker::{MAX_CONCURRENCY, Worker};
use crate::working_set::{ContextView, Halt, Slots, WorkingSet, need, unless_locked};

/// How long after the time limit of its run a lease by claim or push ends at the latest.
const HARD_END_SLACK_MS: i64 = 60_000;
/// Additional time for the files of a task, which the time limit of its run does not include. The agent has a separate limit for each step.
const FILES_MS: i64 = 30 * 60_000;

/// Leases a task to a worker. `origin` distinguishes lease calls from dispatch calls.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The task to lease.
    pub task: TaskId,
    /// The worker that gets the lease, or the workers to look at first.
    pub choice: Choice,
    /// How long the lease lasts without a heartbeat, in ms.
    pub ttl_ms: i64,
    /// `Call` or `Dispatch`. A dispatch call chooses only workers with a URL.
    pub origin: Origin,
}

impl Operation for Lease {
    type Reply = Leased;

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.places = true;
        keys.tasks.insert(self.task);
        match &self.choice {
            Choice::Named(worker) => {
                keys.workers.insert(worker.clone());
            }
            Choice::Among { workers, context } => {
                keys.workers.extend(workers.iter().cloned());
                keys.contexts.extend(context.iter().cloned());
            }
        }
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Leased, Halt> {
        let Self { task, ref choice, ttl_ms, origin } = *self;
        let state = set.task(task)?;
        state.check_queued()?;
        if let Some(parked) = not_ready(set, state)? {
            return Err(Rejection::NotReady(parked).into());
        }
        if let Some(closed) = set.closed(&state.agent_slug)? {
            return Err(Rejection::QueueClosed(closed).into());
        }
        let worker = match choice {
            Choice::Named(id) => named(set, state, id, origin)?,
            Choice::Among { .. } => chosen(set, state, origin)?,
        };
        leased(set, task, &worker, origin, ttl_ms)
    }
}

/// Makes the lease, once all checks have passed.
pub(super) fn leased(set: &mut WorkingSet, task: TaskId, worker: &str, origin: Origin, ttl_ms: i64) -> Result<Leased, Halt> {
    let worker = set.worker(worker)?.clone();
    place(set, task, &worker, Terms { origin, ttl_ms, instance: None });
    let state = set.task(task)?.clone();
    let active_leases = i64::from(set.slots(&worker.id).used.count_ones());
    Ok(Leased { task: state, worker, active_leases })
}

/// Why a lease call can't have the task. The order of session tasks does not restrict lease calls.
fn not_ready(set: &WorkingSet, task: &TaskState) -> Result<Option<Parked>, Halt> {
    if task.suspend {
        return Ok(Some(Parked::Suspended));
    }
    if task.parked == Some(Parked::DependsOn) {
        return Ok(Some(Parked::DependsOn));
    }
    if task.not_before.is_some_and(|at| at > set.now()) {
        return Ok(Some(Parked::NotBefore));
    }
    Ok(key_blocker(set, task)?.map(|_| Parked::ExclusiveKey))
}

fn named(set: &WorkingSet, task: &TaskState, id: &str, origin: Origin) -> Result<WorkerId, Halt> {
    let worker = set.worker(id)?;
    if origin.is_pushed() && worker.url.is_empty() {
        return Err(Rejection::NoUrl(worker.id.clone()).into());
    }
    // Naming a worker only skips the choice. The worker must still be allowed to run the task.
    if !placement::may_pick(worker, task.requirement()) {
        return Err(Rejection::NoWorker.into());
    }
    let slots = set.slots(id);
    let free = free_slots(worker, slots) > 0;
    if slots.exact && !free {
        return Err(Rejection::NoWorker.into());
    }
    if is_sure(set, worker) && free { Ok(worker.id.clone()) } else { Err(need(|keys| keys.exact_slots.insert(id.to_owned()))) }
}

/// The best available worker. "No available worker" is answered only after all workers and their slots were read under lock.
fn chosen(set: &WorkingSet, task: &TaskState, origin: Origin) -> Result<WorkerId, Halt> {
    let sticky = sticky_worker(set.context(&task.context_id)?, set.now());
    let takes = |worker: &Worker| !origin.is_pushed() || !worker.url.is_empty();
    if let Some(worker) = best(set, task, sticky.as_deref(), takes)? {
        return Ok(worker);
    }
    // Loading all workers also loads their slots.
    if !set.loaded.all_workers {
        return Err(need(|keys| keys.all_workers = true));
    }
    let without_url = if origin.is_pushed() { best(set, task, sticky.as_deref(), |_| true)? } else { None };
    Err(without_url.map_or(Rejection::NoWorker, Rejection::NoUrl).into())
}

/// The best of the loaded workers that fit the task.
pub(super) fn best(
    set: &WorkingSet,
    task: &TaskState,
    sticky: Option<&str>,
    takes: impl Fn(&Worker) -> bool,
) -> Result<Option<WorkerId>, Halt> {
    if let Some(id) = sticky {
        set.find_worker(id)?;
    }
    let required = task.requirement();
    let is_kept = task.ready_at.is_some_and(|at| placement::kept_until(at, set.named_agent_wait_ms, set.now()).is_some())
        && set.loaded.workers.values().flatten().any(|worker| placement::is_kept_for(worker, required) && takes(worker));
    let may_have = |worker: &Worker| !is_kept || worker.capabilities.names_agent(required.agent_slug) || sticky == Some(&worker.id);
    let fits = |worker: &&Worker| placement::may_pick(worker, required) && takes(worker) && may_have(worker);
    let suited = || set.loaded.workers.values().flatten().filter(fits);
    let unsure: Vec<WorkerId> = suited().filter(|worker| !is_sure(set, worker)).map(|worker| worker.id.clone()).collect();
    if !unsure.is_empty() {
        return Err(need(|keys| keys.exact_slots.extend(unsure)));
    }
    let candidates = suited().map(|worker| Candidate { worker, free: free_slots(worker, set.slots(&worker.id)) });
    Ok(placement::best(candidates, required.agent_slug, sticky).map(|worker| worker.id.clone()))
}

/// Whether the known slots are reliable enough to decide. The cache's slots are, unless the database refused them in a first try, or the
/// worker may hold more tasks than it has slots.
fn is_sure(set: &WorkingSet, worker: &Worker) -> bool {
    set.slots(&worker.id).exact || !(set.exact || worker.recount_slots)
}

pub(super) fn sticky_worker(context: &ContextView, now: Ms) -> Option<WorkerId> {
    let recent = || context.last_worker.as_ref().filter(|(_, ended_at)| now - ended_at <= STICKY_FOR_MS).map(|(worker, _)| worker);
    context.active_worker.as_ref().or_else(recent).cloned()
}

fn free_slots(worker: &Worker, slots: Slots) -> i64 {
    worker.capabilities.max_concurrency.min(MAX_CONCURRENCY) - i64::from(slots.used.count_ones())
}

impl Operation for Claim {
    type Reply = Claimed;

    fn weight(&self) -> Weight {
        Weight { rows: 2 + self.candidates.len() * 2, bytes: 512 }
    }

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.places = true;
        keys.workers.insert(self.worker.clone());
        keys.tasks.extend(self.candidates.iter().copied());
        if self.held.is_some() {
            keys.worker_tasks.insert(self.worker.clone());
        }
    }

    /// Leases candidates to the worker, up to its free slots. Blocked candidates are parked. Candidates that can't be leased any more are
    /// counted as missed. Candidates of closed queues stay unchanged.
    fn decide(&self, set: &mut WorkingSet) -> Result<Claimed, Halt> {
        let claim = self;
        let worker = set.worker(&claim.worker)?.clone();
        if worker.is_of_other(claim.instance) {
            return Err(other_agent(&worker, set.now()).into());
        }
        let again = undelivered(set, claim)?;
        let Blocked { blocked, locked } = blocked(set, claim)?;

        let worker = if worker.lost { see(set, worker) } else { worker };
        let takes = worker.is_online() && worker.takes_tasks();
        let mut leased = again;
        let mut granted = 0;
        let mut missed = locked.len();
        let mut closed: Vec<String> = Vec::new();
        for id in claim.candidates.iter().filter(|id| !locked.contains(id)) {
            if granted >= claim.max {
                break;
            }
            let takable = |task: &&TaskState| task.is_open_to(&worker.id) && worker.serves(task.requirement());
            let Some(task) = set.find_task(*id)?.filter(takable) else {
                missed += 1;
                continue;
            };
            // The leases of this batch count too, so the queue may have become full.
            if set.closed(&task.agent_slug)?.is_some() {
                if !closed.contains(&task.agent_slug) {
                    closed.push(task.agent_slug.clone());
                }
                continue;
            }
            // Checked again, because an earlier candidate of this claim may have taken the context or the key.
            let blocker = match blocked.iter().find(|(blocked_id, ..)| blocked_id == id) {
                Some((_, parked, blocker)) => Some((*parked, *blocker)),
                None => set.find_task(*id)?.and_then(|task| blocker(set, task).ok().flatten()),
            };
            if let Some((parked, blocker)) = blocker {
                park(set, *id, parked, blocker);
                missed += 1;
            } else if takes && free_slots(&worker, set.slots(&worker.id)) > 0 {
                place(set, *id, &worker, Terms { origin: Origin::Claim, ttl_ms: claim.ttl_ms, instance: claim.instance });
                leased.push(set.task(*id)?.clone());
                granted += 1;
            }
        }
        Ok(Claimed { worker, leased, missed, locked, closed })
    }
}

/// The leases from claims of this agent that it does not list, because their delivery was lost. Leases that another agent of the same name
/// has claimed are left out, because that agent may be running them.
fn undelivered(set: &WorkingSet, claim: &Claim) -> Result<Vec<TaskState>, Halt> {
    let Some(held) = &claim.held else { return Ok(Vec::new()) };
    let ids = set.loaded.worker_tasks.get(&claim.worker).ok_or_else(|| need(|keys| keys.worker_tasks.insert(claim.worker.clone())))?;
    let mut again = Vec::new();
    for id in ids {
        if let Some(Some(task)) = unless_locked(set.find_task(*id))?
            && let Some(lease) = &task.lease
            && lease.origin == Origin::Claim
            && lease.worker_id == claim.worker
            && lease.instance == claim.instance
            && !held.contains(&lease.id)
        {
            again.push(task.clone());
        }
    }
    Ok(again)
}

/// Candidates that can't be leased now.
#[derive(Default)]
struct Blocked {
    /// Ready tasks that another task blocks: the task, the reason, and the blocker.
    blocked: Vec<(TaskId, Parked, TaskId)>,
    /// Tasks that another program keeps locked, or whose blockers it keeps locked.
    locked: Vec<TaskId>,
}

/// Does all look-ups before the first lease is made.
fn blocked(set: &WorkingSet, claim: &Claim) -> Result<Blocked, Halt> {
    let mut blocked = Blocked::default();
    let mut missing = RowKeys::default();
    for id in &claim.candidates {
        let is_open = |task: &&TaskState| task.is_open_to(&claim.worker);
        let look = |task: &TaskState| set.closed(&task.agent_slug).and_then(|_| blocker(set, task));
        match set.find_task(*id).map(|task| task.filter(is_open)).and_then(|task| task.map_or(Ok(None), look)) {
            Ok(Some((parked, by))) => blocked.blocked.push((*id, parked, by)),
            Ok(None) => {}
            Err(Halt::Locked) => blocked.locked.push(*id),
            Err(Halt::Need(keys)) => missing.merge(&keys),
            Err(rejected) => return Err(rejected),
        }
    }
    if !is_sure(set, set.worker(&claim.worker)?) {
        missing.exact_slots.insert(claim.worker.clone());
    }
    if missing == RowKeys::default() { Ok(blocked) } else { Err(Halt::Need(Box::new(missing))) }
}

/// What blocks the task. The context is looked up only after a first try met a conflict, because a unique index allows only one holder per
/// context, and usually there is none.
pub(super) fn blocker(set: &WorkingSet, task: &TaskState) -> Result<Option<(Parked, TaskId)>, Halt> {
    let known = set.exact || set.loaded.contexts.contains_key(&task.context_id) || set.context_holders.contains_key(&task.context_id);
    if task.session == Session::Context
        && known
        && let Some(by) = context_blocker(set, task)?
    {
        return Ok(Some((Parked::Session, by)));
    }
    Ok(key_blocker(set, task)?.map(|by| (Parked::ExclusiveKey, by)))
}

pub(super) fn hard_end(now: Ms, task: &TaskState) -> Ms {
    now + task.longest_run_sec() * 1000 + HARD_END_SLACK_MS + if task.moves_files { FILES_MS } else { 0 }
}

/// The terms on which a lease is made.
struct Terms {
    origin: Origin,
    ttl_ms: i64,
    /// The agent that claims the lease.
    instance: Option<InstanceId>,
}

fn place(set: &mut WorkingSet, id: TaskId, worker: &Worker, Terms { origin, ttl_ms, instance }: Terms) {
    let Ok(task) = set.task(id) else { return };
    let mut task = task.clone();
    let now = set.now();
    let slots = set.slots(&worker.id);
    let slot = slots.used.trailing_ones();
    set.loaded.slots.insert(worker.id.clone(), Slots { used: slots.used | 1 << slot, ..slots });

    let context_reset_at = set.loaded.context_resets.get(&task.context_id).copied();
    // The conversation was looked up when the task became ready. If the context was reset since then, it is over.
    if context_reset_at.is_some_and(|reset_at| task.ready_at.is_none_or(|ready_at| ready_at <= reset_at)) {
        task.conversation = None;
    }
    let holds_context = origin.is_in_order() && task.session == Session::Context;
    let hard_end_at = origin.is_delivered().then(|| hard_end(now, &task));
    let expires_at = hard_end_at.map_or(now + ttl_ms, |end| end.min(now + ttl_ms));
    let lease = ActiveLease {
        id: set.ids.next_id(),
        worker_id: worker.id.clone(),
        slot: i64::from(slot),
        origin,
        started_at: now,
        ttl_ms,
        expires_at,
        check_at: expires_at,
        hard_end_at,
        last_heartbeat: now,
        holds_context,
        instance,
        context_reset_at,
    };
    if holds_context {
        set.context_holders.insert(task.context_id.clone(), Some(id));
    }
    if let Some(key) = &task.exclusive_key {
        set.loaded.exclusive.insert(key.clone(), Some(id));
    }
    let actor = Actor::of(origin);
    let concerns = Concerns { task: Some(id), worker: Some(&worker.id) };
    let detail = format!("task {id} to worker {}", worker.id);
    set.audit_concerning(concerns, Action::TaskLeased, EntityType::Lease, lease.id, &actor, detail);
    if origin.is_pushed() {
        let detail = format!("to worker {}, lease {}", worker.id, lease.id);
        set.audit_concerning(concerns, Action::TaskDispatched, EntityType::Task, id, &actor, detail);
    }
    task.status = Status::Leased;
    task.updated_at = set.stamp();
    task.parked = None;
    task.wake_at = None;
    task.attempts += 1;
    task.lease_count += 1;
    (task.event_seq, task.event_bytes) = (-1, 0);
    task.last_event_seq = None;
    task.lease = Some(lease);
    set.leases_granted += 1;
    set.put_task(task);
}
