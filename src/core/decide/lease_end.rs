//! Ends of leases, and what happens to their tasks.

use super::finish::{finish, wake_successors};
use super::readiness::{Park, Readiness, apply, blocked, reserve};
use crate::Ms;
use crate::arguments::Completion;
use crate::audit::{Action, Actor, EntityType};
use crate::backoff::delay_ms;
use crate::ids::{LeaseId, TaskId, WorkerId};
use crate::limits::GIVE_BACKS;
use crate::operation::Operation;
use crate::row_keys::RowKeys;
use crate::task::{ActiveLease, Failure, LastLease, LeaseStatus, Parked, PastLease, Reason, Status, TaskState};
use crate::working_set::{Halt, Slots, WorkingSet};

/// Gives a lease back, and queues the task again.
#[derive(Clone, Debug)]
pub struct Release {
    /// The task to hand back.
    pub task: TaskId,
    /// The lease that is given back. If it is not the active lease, the command is rejected.
    pub lease: LeaseId,
    /// Why it is given back, for people.
    pub reason: String,
}

impl Operation for Release {
    type Reply = TaskState;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<TaskState, Halt> {
        let Self { task: id, lease: lease_id, ref reason } = *self;
        let task = set.task(id)?;
        let worker = task.active_lease(Some(lease_id))?.worker_id.clone();
        let failure = Failure { reason: Reason::WorkerLost, message: format!("handed back: {reason}"), at: set.now() };
        let cause = Retry { give_back: true, wait: Wait::No, session_worker: None, failure, actor: Actor::Worker(worker.clone()) };
        let next = plan(set, task, &cause)?;
        let mut task = task.clone();
        end_lease(set, &mut task, LeaseStatus::Released, Some(&cause.failure));
        set.audit(Action::TaskReleased, EntityType::Task, id, &Actor::Worker(worker), reason);
        retry(set, &mut task, cause, next);
        task.revision = set.put_task(task.clone());
        Ok(task)
    }
}

/// Takes the lease off the task and records it as ended. The caller decides what happens to the task. `failure`: why the run failed or was
/// interrupted.
pub(super) fn end_lease(set: &mut WorkingSet, task: &mut TaskState, status: LeaseStatus, failure: Option<&Failure>) -> Option<ActiveLease> {
    let lease = task.lease.take()?;
    task.question = None;
    if set.loaded.context_resets.get(&task.context_id).copied() != lease.context_reset_at {
        task.conversation = None;
    }
    let mut past = record(task, &lease, status, set.now());
    if let Some(failure) = failure {
        past.set_failure(failure.reason, &failure.message);
    }
    set.dirty.past_leases.push(past);
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
        reason: None,
        message: None,
        model: None,
        usage: None,
    }
}

impl PastLease {
    /// Adds what the completion of the run reports.
    pub(super) fn complete(&mut self, completion: &Completion) {
        self.completed = true;
        (self.reason, self.message) = (None, None);
        if let Some(reason) = completion.failed_for() {
            self.set_failure(reason, completion.error_message.as_deref().unwrap_or_default());
        }
        self.model.clone_from(&completion.model);
        self.usage = completion.usage;
    }
}

/// Adds the reported results of the run to the record that [`end_lease`] has just made.
pub(super) fn complete_record(set: &mut WorkingSet, lease: LeaseId, completion: &Completion) {
    if let Some(record) = set.dirty.past_leases.iter_mut().rev().find(|record| record.id == lease) {
        record.complete(completion);
    }
}

/// When a task that goes back to the queue may run again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wait {
    No,
    Until(Ms),
    /// Exponential backoff with jitter, depending on the number of attempts.
    Backoff,
}

pub(super) struct Retry {
    /// Whether the attempt is given back, as long as the limit allows it.
    pub give_back: bool,
    pub wait: Wait,
    /// The worker that has the session for the next attempt.
    pub session_worker: Option<WorkerId>,
    pub failure: Failure,
    pub actor: Actor,
}

/// What happens to a task whose lease ends without a final answer.
pub(super) enum Next {
    Cancelled,
    Dead,
    /// It is queued, and parked until its wait has ended.
    Later,
    Queued(Readiness),
}

/// Decides what happens to the task. It is cancelled if that was requested. Otherwise it is queued while attempts remain, and dead after
/// that. All look-ups happen here, while the lease still exists, so that a command that needs more rows has changed nothing.
pub(super) fn plan(set: &WorkingSet, task: &TaskState, cause: &Retry) -> Result<Next, Halt> {
    let is_exhausted = cause.give_back && task.infra_retries >= GIVE_BACKS;
    let attempts = task.attempts - i64::from(cause.give_back);
    if task.cancel_requested {
        return Ok(Next::Cancelled);
    }
    if is_exhausted || attempts >= task.max_attempts {
        return Ok(Next::Dead);
    }
    match cause.wait {
        Wait::Backoff => return Ok(Next::Later),
        Wait::Until(at) if at > set.now() => return Ok(Next::Later),
        Wait::Until(_) | Wait::No => {}
    }
    // An earlier task of its context may have come back, or this task may have been leased out of order by a lease call.
    let again = TaskState { not_before: None, parked: None, session_worker: cause.session_worker.clone(), ..task.clone() };
    Ok(Next::Queued(match blocked(set, &again, &[], task.id)? {
        Some(readiness) => readiness,
        None => reserve(set, &again)?,
    }))
}

/// Carries out the plan after the lease was taken off the task.
pub(super) fn retry(set: &mut WorkingSet, task: &mut TaskState, cause: Retry, next: Next) {
    if cause.give_back && task.infra_retries < GIVE_BACKS {
        task.infra_retries += 1;
        task.attempts = (task.attempts - 1).max(0);
    }
    let detail = format!("{}: {}", cause.failure.reason, cause.failure.message);
    task.failure = Some(match next {
        // The task ends because of the request. How its lease ended is in the audit entry.
        Next::Cancelled if cause.failure.reason != Reason::Cancelled => {
            let at = cause.failure.at;
            cause.failure.of_cancelled(at)
        }
        _ => cause.failure,
    });
    let readiness = match next {
        Next::Cancelled => {
            set.audit(Action::TaskCancelled, EntityType::Task, task.id, &cause.actor, detail);
            return finish(set, task, Status::Cancelled);
        }
        Next::Dead => {
            set.audit(Action::TaskDead, EntityType::Task, task.id, &cause.actor, detail);
            return finish(set, task, Status::Dead);
        }
        Next::Later => {
            let at = match cause.wait {
                Wait::Until(at) => at,
                Wait::No | Wait::Backoff => {
                    let chance = set.ids.draw();
                    // Attempts that were given back count towards the backoff. Otherwise a lasting fault would use up all of them within a
                    // minute.
                    set.now() + delay_ms(task.attempts + task.infra_retries, chance).max(1)
                }
            };
            Readiness::Park(Park::until(Parked::NotBefore, at))
        }
        Next::Queued(readiness) => readiness,
    };
    task.status = Status::Queued;
    task.updated_at = set.stamp();
    task.finished_at = None;
    task.remove_at = None;
    task.not_before = match &readiness {
        Readiness::Park(Park { parked: Parked::NotBefore, wake_at, .. }) => *wake_at,
        _ => None,
    };
    task.session_worker = cause.session_worker;
    // Its backoff is kept in `not_before`, and applies if the task is resumed before that time.
    let readiness = if task.suspend { Readiness::Park(Park::suspended()) } else { readiness };
    wake_successors(set, task, false);
    apply(set, task, readiness);
}
