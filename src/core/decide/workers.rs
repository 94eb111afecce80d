//! Workers: registration, last seen, loss, cordon and removal.

use super::super::Ms;
use super::super::arguments::{CordonChange, Loss, WorkerChange};
use super::super::audit::{Action, Actor, Concerns, EntityType};
use super::super::ids::WorkerId;
use super::super::limits::{TOLD_PAUSE_MS, WORKER_AGENTS};
use super::super::operation::{Operation, Weight};
use super::super::pause::Pause;
use super::super::rejection::Rejection;
use super::super::reply::{ChangedWorker, Due};
use super::super::row_keys::RowKeys;
use super::super::task::{Failure, LeaseStatus, Reason, TaskState};
use super::super::wakeup::Subject;
use super::super::worker::{Instance, Worker, WorkerStatus};
use super::super::working_set::{Halt, WorkingSet, need, unless_locked};
use super::lease_end::{Next, Retry, Wait, end_lease, plan, retry};

impl Operation for WorkerChange {
    type Reply = ChangedWorker;

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        // The reply contains the number of the worker's active leases.
        keys.workers.insert(self.id.clone());
        keys.exact_slots.insert(self.id.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ChangedWorker, Halt> {
        let change = self;
        let now = set.now();
        let known = set.find_worker(&change.id)?.cloned();
        let created = known.is_none();
        let before = known.unwrap_or_else(|| Worker::new(change.id.clone(), now));
        if change.instance.is_some_and(|instance| !before.may_become(instance)) {
            return Err(other_agent(&before, now).into());
        }
        let mut worker = with_change(before.clone(), change);
        for pause in &mut worker.pauses {
            pause.until = bounded_end(pause, &before.pauses, now);
            pause.is_resumed = before.pauses.iter().any(|known| known.is_resumed && known.is_same(pause));
        }
        let combinations = worker.capabilities.combinations();
        if combinations > WORKER_AGENTS {
            return Err(Rejection::TooManyCombinations(combinations).into());
        }
        if let Some(id) = change.instance.filter(|id| before.instance.is_none_or(|known| known.id != *id)) {
            worker.instance = Some(Instance { id, since: now });
        }
        worker.last_seen = now;
        worker.lost = false;
        // The agent that had the name has stopped. If it were still remembered, no other one that this caller registers could ever work.
        if change.instance.is_none() && before.shown_status() == WorkerStatus::Offline && worker.status != WorkerStatus::Offline {
            worker.instance = None;
        }
        let used = set.slots(&worker.id).used;
        worker.recount_slots =
            used.checked_shr(u32::try_from(worker.capabilities.max_concurrency).unwrap_or(0)).is_some_and(|above| above != 0);
        if created {
            set.audit(Action::WorkerRegistered, EntityType::Worker, &worker.id, &change.actor, "");
            worker = set.put_worker(worker);
        } else if (Worker { last_seen: before.last_seen, lost: before.lost, ..worker.clone() }) != before {
            let is_taken_over = before.is_of_other(change.instance);
            let detail = if is_taken_over { "another agent took over the name".to_owned() } else { changes(&before, &worker) };
            set.audit(Action::WorkerUpdated, EntityType::Worker, &worker.id, &change.actor, detail);
            if before.lost {
                audit_return(set, &worker);
            }
            worker = set.put_worker(worker);
            if worker.capabilities.serves_others_than(&before.capabilities) || !worker.takes_tasks() {
                set.wake(Subject::Reservations(worker.id.clone()));
            }
        } else {
            worker = see(set, before);
        }
        Ok(reply(set, worker, created))
    }
}

/// What a change is about, for the audit trail: the status, and what is paused.
fn changes(before: &Worker, worker: &Worker) -> String {
    let mut told = Vec::new();
    if before.status != worker.status {
        told.push(format!("status {} to {}", before.status, worker.status));
    }
    let is_in = |pauses: &[Pause], pause: &Pause| pauses.iter().any(|other| other.is_same(pause));
    let name = |pause: &Pause| format!("{} {}", pause.kind, pause.name);
    let begun = worker.pauses.iter().filter(|pause| !is_in(&before.pauses, pause));
    told.extend(begun.take(TOLD_CHANGES).map(|pause| format!("{} is paused: {}", name(pause), pause.cause)));
    let ended = before.pauses.iter().filter(|pause| !is_in(&worker.pauses, pause));
    told.extend(ended.take(TOLD_CHANGES).map(|pause| format!("{} is no longer paused", name(pause))));
    told.join(", ")
}

/// Pauses of each kind that an audit entry tells.
const TOLD_CHANGES: usize = 5;

/// When the pause ends, at most an hour from now, whatever the worker says. If it says the same again, the end stays for half of that time, so that
/// not each repetition is a change.
fn bounded_end(pause: &Pause, before: &[Pause], now: Ms) -> Ms {
    if pause.until <= now + TOLD_PAUSE_MS {
        return pause.until;
    }
    let ends = before.iter().filter(|known| known.is_same(pause)).map(|known| known.until);
    let is_long = |end: &Ms| (now + TOLD_PAUSE_MS / 2..=now + TOLD_PAUSE_MS).contains(end);
    ends.filter(is_long).max().unwrap_or(now + TOLD_PAUSE_MS)
}

/// The refusal of an agent whose name another one has.
pub(super) fn other_agent(worker: &Worker, now: Ms) -> Rejection {
    Rejection::OtherAgent { worker: worker.id.clone(), seen_ago: (now - worker.last_seen).max(0) }
}

fn reply(set: &WorkingSet, worker: Worker, created: bool) -> ChangedWorker {
    let active_leases = i64::from(set.slots(&worker.id).used.count_ones());
    ChangedWorker { worker, created, active_leases }
}

fn with_change(mut worker: Worker, change: &WorkerChange) -> Worker {
    fn keep<T: Clone>(field: &mut T, wanted: &Option<T>) {
        if let Some(wanted) = wanted {
            field.clone_from(wanted);
        }
    }
    keep(&mut worker.url, &change.url);
    keep(&mut worker.status, &change.status);
    keep(&mut worker.capabilities.claude_cli, &change.claude_cli);
    keep(&mut worker.capabilities.max_concurrency, &change.max_concurrency);
    keep(&mut worker.capabilities.labels, &change.labels);
    keep(&mut worker.ip_addrs, &change.ip_addrs);
    keep(&mut worker.agent_version, &change.agent_version);
    keep(&mut worker.os_info, &change.os_info);
    keep(&mut worker.install_method, &change.install_method);
    keep(&mut worker.dispatch, &change.dispatch);
    keep(&mut worker.obs_count, &change.obs_count);
    keep(&mut worker.db_sha, &change.db_sha);
    keep(&mut worker.pauses, &change.pauses);
    keep(&mut worker.capabilities.agents, &change.agents);
    keep(&mut worker.capabilities.profiles, &change.profiles);
    keep(&mut worker.capabilities.git, &change.git);
    keep(&mut worker.capabilities.projects, &change.projects);
    keep(&mut worker.capabilities.other, &change.other_capabilities);
    if change.namespaces.is_some() {
        worker.capabilities.namespaces.clone_from(&change.namespaces);
    }
    worker
}

/// Records that the worker is seen now. A worker that was marked offline is back.
pub(super) fn see(set: &mut WorkingSet, worker: Worker) -> Worker {
    let at = set.now();
    see_at(set, worker, at)
}

fn see_at(set: &mut WorkingSet, mut worker: Worker, at: Ms) -> Worker {
    // A time in the future was written before the clock stepped back.
    worker.last_seen = if worker.last_seen > set.now() { at } else { worker.last_seen.max(at) };
    if worker.lost {
        worker.lost = false;
        audit_return(set, &worker);
        worker = set.put_worker(worker);
    } else {
        set.dirty.seen.insert(worker.id.clone());
        set.loaded.workers.insert(worker.id.clone(), Some(worker.clone()));
    }
    worker
}

fn audit_return(set: &mut WorkingSet, worker: &Worker) {
    set.audit(Action::WorkerOnline, EntityType::Worker, &worker.id, &Actor::Worker(worker.id.clone()), "seen again");
}

/// Records when these workers were seen.
#[derive(Clone, Debug)]
pub struct RecordLastSeen {
    /// The workers, and when each of them was seen. An earlier time than the recorded one changes nothing.
    pub last_seen: Vec<(WorkerId, Ms)>,
}

impl Operation for RecordLastSeen {
    type Reply = ();

    fn weight(&self) -> Weight {
        Weight { rows: self.last_seen.len(), ..Weight::default() }
    }

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.workers.extend(self.last_seen.iter().map(|(worker, _)| worker.clone()));
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let last_seen = &self.last_seen;
        for (id, _) in last_seen {
            unless_locked(set.find_worker(id))?;
        }
        for (id, at) in last_seen {
            // A `last_seen` from before the worker was marked offline arrived late. It does not bring the worker back.
            let is_news = |worker: &&Worker| !(worker.lost && *at < worker.updated_at);
            let is_later = |worker: &&Worker| worker.last_seen < *at || worker.last_seen > set.now();
            if let Some(worker) = unless_locked(set.find_worker(id))?.flatten().filter(is_news).filter(is_later) {
                let worker = worker.clone();
                let at = (*at).min(set.now());
                see_at(set, worker, at);
            }
        }
        Ok(())
    }
}

/// Marks the worker offline until it is seen again.
#[derive(Clone, Debug)]
pub struct MarkOffline {
    /// The worker to mark offline.
    pub worker: WorkerId,
    /// Why it counts as offline.
    pub cause: Loss,
}

impl Operation for MarkOffline {
    type Reply = Due;

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.workers.insert(self.worker.clone());
    }

    /// Its leases continue: each ends by its own expiry.
    fn decide(&self, set: &mut WorkingSet) -> Result<Due, Halt> {
        let (id, cause) = (&self.worker[..], &self.cause);
        let Some(worker) = set.find_worker(id)? else { return Ok(Due::Done) };
        let mut worker = worker.clone();
        if let Loss::Uninstalled = cause {
            set.audit(Action::AgentUninstalled, EntityType::Worker, id, &Actor::Admin, "");
            worker.agent_version = "uninstalled".into();
        } else if worker.lost || worker.status == WorkerStatus::Offline {
            return Ok(Due::Done);
        }
        if worker.last_seen > set.now() {
            // The clock has stepped back. The time without a sign of life is counted from now on.
            see(set, worker);
            return Ok(Due::Later(set.now() + 1));
        }
        let (actor, detail) = match cause {
            Loss::Silent { for_ms, served_since, has_started } => {
                let was_silent = *has_started && served_since - worker.last_seen > *for_ms;
                let counted_from = if was_silent { worker.last_seen } else { worker.last_seen.max(*served_since) };
                if set.now() - counted_from <= *for_ms {
                    return Ok(Due::Later(counted_from + for_ms + 1));
                }
                (Actor::Reconciler, format!("not seen for more than {} s", for_ms / 1000))
            }
            Loss::Unreachable(error) => (Actor::Admin, format!("its agent does not answer: {error}")),
            Loss::Uninstalled => (Actor::Admin, "its agent was uninstalled".into()),
            Loss::PodEnded => (Actor::Reconciler, "its pod has ended".into()),
        };
        if !worker.lost && worker.status != WorkerStatus::Offline {
            set.audit(Action::WorkerOffline, EntityType::Worker, id, &actor, detail);
        }
        worker.lost = true;
        set.put_worker(worker);
        set.wake(Subject::Reservations(id.to_owned()));
        Ok(Due::Done)
    }
}

/// Cordons, uncordons or drains a worker.
#[derive(Clone, Debug)]
pub struct Cordon {
    /// The worker to cordon, uncordon or drain.
    pub worker: WorkerId,
    /// Which of these is done.
    pub change: CordonChange,
}

impl Operation for Cordon {
    type Reply = ChangedWorker;

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.workers.insert(self.worker.clone());
        keys.exact_slots.insert(self.worker.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ChangedWorker, Halt> {
        let (id, change) = (&self.worker[..], self.change);
        let before = set.worker(id)?.clone();
        let (cordoned, draining, action) = match change {
            CordonChange::Cordon => (true, before.draining, Action::WorkerCordoned),
            CordonChange::Uncordon => (false, false, Action::WorkerUncordoned),
            CordonChange::Drain => (true, true, Action::WorkerDraining),
        };
        let mut worker = Worker { cordoned, draining, ..before.clone() };
        if worker != before {
            set.audit(action, EntityType::Worker, id, &Actor::Admin, "");
            worker = set.put_worker(worker);
            if !worker.takes_tasks() {
                set.wake(Subject::Reservations(worker.id.clone()));
            }
        }
        Ok(reply(set, worker, false))
    }
}

/// Removes a worker. Its leases end, and their tasks are queued again.
#[derive(Clone, Debug)]
pub struct RemoveWorker {
    /// The worker to remove.
    pub worker: WorkerId,
}

impl Operation for RemoveWorker {
    type Reply = ();

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.workers.insert(self.worker.clone());
        keys.worker_tasks.insert(self.worker.clone());
        keys.exact_slots.insert(self.worker.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let id = &self.worker[..];
        set.worker(id)?;
        let tasks = set.loaded.worker_tasks.get(id).cloned().ok_or_else(|| need(|keys| keys.worker_tasks.insert(id.to_owned())))?;
        let mut held = Vec::new();
        for task in tasks {
            held.extend(set.find_task(task)?.filter(|task| task.lease.as_ref().is_some_and(|lease| lease.worker_id == id)).cloned());
        }
        let slots = set.slots(id);
        if !slots.exact || slots.used.count_ones() as usize != held.len() {
            // A lease was made between the look-up and the lock.
            return Err(need(|keys| {
                keys.exact_slots.insert(id.to_owned());
                keys.worker_tasks.insert(id.to_owned());
            }));
        }
        let mut planned: Vec<(TaskState, Retry, Next)> = Vec::new();
        let mut missing = RowKeys::default();
        for task in held {
            let failure = Failure { reason: Reason::WorkerLost, message: format!("worker {id} was removed"), at: set.now() };
            let cause = Retry { give_back: true, wait: Wait::No, session_worker: None, failure, actor: Actor::Admin };
            match plan(set, &task, &cause) {
                Ok(next) => planned.push((task, cause, next)),
                Err(Halt::Need(keys)) => missing.merge(&keys),
                Err(rejected) => return Err(rejected),
            }
        }
        if missing != RowKeys::default() {
            return Err(Halt::Need(Box::new(missing)));
        }
        for (task, cause, next) in planned {
            // The retry of an earlier task of this list may have set the flag of this one.
            let mut task = set.find_task(task.id)?.cloned().unwrap_or(task);
            end_lease(set, &mut task, LeaseStatus::Failed);
            let detail = format!("worker {id} was removed");
            set.audit_concerning(Concerns::worker(id), Action::TaskReleased, EntityType::Task, task.id, &Actor::Admin, detail);
            retry(set, &mut task, cause, next);
            set.put_task(task);
        }
        set.audit(Action::WorkerRemoved, EntityType::Worker, id, &Actor::Admin, "");
        set.remove_worker(id);
        set.wake(Subject::Reservations(id.to_owned()));
        Ok(())
    }
}
