//! Ways a lease ends other than by a completion, and what becomes of its task.

use super::super::Ms;
use super::super::audit::{Action, EntityType};
use super::super::command::{Rejection, Reply};
use super::super::ids::{LeaseId, TaskId, WorkerId};
use super::super::task::{
    ActiveLease, Failure, LastLease, LeaseStatus, MAX_INFRA_RETRIES, Parked, PastLease, Reason, Session, Status, TaskState, Usage,
};
use super::super::working_set::{Freed, Halt, Slots, WorkingSet};

pub(super) fn release(set: &mut WorkingSet, id: TaskId, lease_id: LeaseId, reason: &str) -> Result<Reply, Halt> {
    let task = set.task(id)?;
    match &task.lease {
        Some(lease) if lease.id == lease_id => {}
        Some(_) => return Err(Rejection::NotTheActiveLease(lease_id.to_string()).into()),
        None => return Err(Rejection::LeaseNotFound.into()),
    }
    let mut task = task.clone();
    let Some(lease) = end_lease(set, &mut task, LeaseStatus::Released) else { return Err(Rejection::LeaseNotFound.into()) };
    set.audit(Action::TaskReleased, EntityType::Task, id, &lease.worker_id, reason);
    let failure = Failure { reason: Reason::WorkerLost, message: format!("handed back: {reason}"), at: set.now() };
    retry(set, &mut task, Retry { give_back: true, not_before: None, session_worker: None, failure, actor: &lease.worker_id });
    set.put_task(task.clone());
    Ok(Reply::Task(task))
}

pub(super) fn expire(set: &mut WorkingSet, id: TaskId, lease_id: LeaseId) -> Result<Reply, Halt> {
    let Some(task) = set.find_task(id)? else { return Ok(Reply::Done) };
    let Some(lease) = task.lease.as_ref().filter(|lease| lease.id == lease_id) else { return Ok(Reply::Done) };
    if lease.expires_at > set.now() {
        return Ok(Reply::NotDue(lease.expires_at));
    }
    // What was handed out with its lease and never sent a sign of life has perhaps never arrived: that is no attempt.
    let undelivered = lease.origin.is_delivered() && task.status == Status::Leased;
    let mut task = task.clone();
    let Some(lease) = end_lease(set, &mut task, LeaseStatus::Expired) else { return Ok(Reply::Done) };
    set.audit(Action::LeaseExpired, EntityType::Lease, lease.id, "reconciler", format!("task {id} of worker {}", lease.worker_id));
    let failure = Failure { reason: Reason::WorkerLost, message: format!("lease on worker {} expired", lease.worker_id), at: set.now() };
    retry(set, &mut task, Retry { give_back: undelivered, not_before: None, session_worker: None, failure, actor: "reconciler" });
    set.put_task(task);
    Ok(Reply::Done)
}

/// Gives active leases a little time after an outage of the whole control plane.
pub(super) fn grace(set: &mut WorkingSet, tasks: &[TaskId], ready_at: Ms, at_least_ms: i64) -> Result<Reply, Halt> {
    for id in tasks {
        set.find_task(*id)?;
    }
    for id in tasks {
        let Some(task) = set.find_task(*id)? else { continue };
        let mut task = task.clone();
        let Some(lease) = &mut task.lease else { continue };
        let until = ready_at + at_least_ms.min(lease.ttl_ms);
        if lease.expires_at < until {
            lease.expires_at = until;
            set.put_task(task);
        }
    }
    Ok(Reply::Done)
}

/// Takes the lease off the task and keeps its record; the caller says what becomes of the task.
pub(super) fn end_lease(set: &mut WorkingSet, task: &mut TaskState, status: LeaseStatus) -> Option<ActiveLease> {
    let lease = task.lease.take()?;
    set.dirty.past_leases.push(record(task, &lease, status, set.now()));
    task.last_lease = Some(LastLease { id: lease.id, worker_id: lease.worker_id.clone(), status });
    if let Some(slots) = set.loaded.slots.get_mut(&lease.worker_id) {
        *slots = Slots { used: slots.used & !(1 << lease.slot), ..*slots };
    }
    if lease.holds_context {
        set.context_holders.insert(task.context_id.clone(), None);
    }
    if let Some(key) = &task.exclusive_key {
        set.loaded.exclusive.insert(key.clone(), None);
    }
    free(set, task, false);
    Some(lease)
}

fn record(task: &TaskState, lease: &ActiveLease, status: LeaseStatus, now: Ms) -> PastLease {
    PastLease {
        id: lease.id,
        task_id: task.id,
        context_id: task.context_id.clone(),
        agent_slug: task.agent_slug.clone(),
        worker_id: lease.worker_id.clone(),
        started_at: lease.started_at,
        ttl_ms: lease.ttl_ms,
        expires_at: lease.expires_at,
        last_heartbeat: lease.last_heartbeat,
        status,
        ended_at: now,
        completed: false,
        model: None,
        usage: None,
    }
}

/// Adds what a completion tells to the record that [`end_lease`] has just made.
pub(super) fn complete_record(set: &mut WorkingSet, lease: LeaseId, model: Option<String>, usage: Option<Usage>) {
    if let Some(record) = set.dirty.past_leases.iter_mut().rev().find(|record| record.id == lease) {
        record.completed = true;
        record.model = model;
        record.usage = usage;
    }
}

/// Tells those who may wait for the task, if there can be any.
pub(super) fn free(set: &mut WorkingSet, task: &TaskState, finished: bool) {
    if !task.has_dependents && task.exclusive_key.is_none() {
        return;
    }
    let context = (task.session == Session::Context).then(|| task.context_id.clone());
    set.freed.push(Freed { task: task.id, context, exclusive_key: task.exclusive_key.clone(), finished });
}

/// The task is over.
pub(super) fn finish(set: &mut WorkingSet, task: &mut TaskState, status: Status) {
    debug_assert!(status.is_final() && task.lease.is_none());
    task.status = status;
    task.parked = None;
    task.updated_at = set.now();
    task.finished_at = Some(set.now());
    task.remove_at = task.ttl_after_finished_sec.map(|ttl| set.now() + ttl * 1000);
    free(set, task, true);
}

pub(super) struct Retry<'a> {
    /// The attempt does not count, within bounds.
    pub give_back: bool,
    pub not_before: Option<Ms>,
    /// Where the next attempt finds its session.
    pub session_worker: Option<WorkerId>,
    pub failure: Failure,
    pub actor: &'a str,
}

/// After a lease that ended without a final answer: back to the queue while attempts remain, else dead; cancelled if that was wished.
pub(super) fn retry(set: &mut WorkingSet, task: &mut TaskState, retry: Retry<'_>) {
    let mut exhausted = false;
    if retry.give_back {
        exhausted = task.infra_retries >= MAX_INFRA_RETRIES;
        if !exhausted {
            task.infra_retries += 1;
            task.attempts = (task.attempts - 1).max(0);
        }
    }
    let detail = format!("{}: {}", retry.failure.reason, retry.failure.message);
    task.failure = Some(retry.failure);
    if task.cancel_requested {
        set.audit(Action::TaskCancelled, EntityType::Task, task.id, retry.actor, detail);
        finish(set, task, Status::Cancelled);
    } else if exhausted || task.attempts >= task.max_attempts {
        set.audit(Action::TaskDead, EntityType::Task, task.id, retry.actor, detail);
        finish(set, task, Status::Dead);
    } else {
        let now = set.now();
        task.status = Status::Queued;
        task.updated_at = now;
        task.finished_at = None;
        task.remove_at = None;
        task.not_before = retry.not_before.filter(|at| *at > now);
        task.parked = task.not_before.map(|_| Parked::NotBefore);
        task.ready_at = Some(now);
        task.session_worker = retry.session_worker;
    }
}
