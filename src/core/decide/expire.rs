//! The expiry of leases.

use super::lease::hard_end;
use super::lease_end::{Retry, Wait, end_lease, plan, retry};
use crate::Ms;
use crate::arguments::Grace;
use crate::audit::{Action, Actor, Concerns, EntityType};
use crate::ids::{LeaseId, TaskId};
use crate::operation::Operation;
use crate::reply::Due;
use crate::row_keys::RowKeys;
use crate::task::{ActiveLease, Failure, LeaseStatus, Reason, Status, TaskState};
use crate::working_set::{Halt, WorkingSet};

/// How long the result of a query for due leases is valid. Gaps between service marks up to this length do not count as an outage, so no
/// outage can go unnoticed between query and decision.
const TRUSTED_FOR_MS: Ms = 1_500;

/// Ends the lease if it is due; otherwise sets the time of the next check.
#[derive(Clone, Debug)]
pub struct ExpireLease {
    /// The task that was found with the lease.
    pub task: TaskId,
    /// The lease that was found to be due. If it has ended, nothing happens.
    pub lease: LeaseId,
    /// The last outage, and when the lease was found to be due.
    pub grace: Grace,
}

impl Operation for ExpireLease {
    type Reply = Due;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Due, Halt> {
        let Self { task: id, lease: lease_id, ref grace } = *self;
        let Some(task) = set.find_task(id)? else { return Ok(Due::Done) };
        let Some(lease) = task.lease.as_ref().filter(|lease| lease.id == lease_id) else { return Ok(Due::Done) };
        let now = set.now();
        if lease.expires_at > now + lease.ttl_ms {
            return Ok(clamp(set, id));
        }
        if grace.found_due_at.is_some_and(|at| (now - at).abs() > TRUSTED_FOR_MS) {
            return Ok(Due::Later(now));
        }
        // If the clock has stepped back since the outage, `resumed_at` is in the future.
        let graced_until = grace.resumed_at.min(now) + grace.grace_ms.min(lease.ttl_ms);
        let due_at = lease.expires_at.max(graced_until);
        // The lease must also have been due when it was found. If the clock has stepped forward since then, being due now proves nothing.
        if due_at > grace.found_due_at.map_or(now, |at| at.min(now)) {
            if lease.check_at != due_at {
                let mut task = task.clone();
                task.lease = task.lease.map(|lease| ActiveLease { check_at: due_at, ..lease });
                set.put_task_quietly(task);
            }
            return Ok(Due::Later(due_at));
        }
        let message = format!("lease on worker {} expired", lease.worker_id);
        let cause = Retry {
            // If the task was delivered with its lease and no heartbeat has arrived, the delivery may have been lost, so the attempt does
            // not count.
            give_back: lease.origin.is_delivered() && task.status == Status::Leased,
            wait: Wait::No,
            session_worker: None,
            failure: Failure { reason: Reason::WorkerLost, message, at: now },
            actor: Actor::Reconciler,
        };
        let next = plan(set, task, &cause)?;
        let mut task = task.clone();
        let Some(lease) = end_lease(set, &mut task, LeaseStatus::Expired, Some(&cause.failure)) else { return Ok(Due::Done) };
        let concerns = Concerns { task: Some(id), worker: Some(&lease.worker_id) };
        let detail = format!("task {id} of worker {}", lease.worker_id);
        set.audit_concerning(concerns, Action::LeaseExpired, EntityType::Lease, lease.id, &Actor::Reconciler, detail);
        retry(set, &mut task, cause, next);
        set.put_task(task);
        Ok(Due::Done)
    }
}

/// Handles a lease that seems to last longer than its TTL, because it was renewed before the clock stepped back. It is changed to last one
/// TTL from now.
fn clamp(set: &mut WorkingSet, id: TaskId) -> Due {
    let now = set.now();
    let Ok(Some(task)) = set.find_task(id) else { return Due::Done };
    let mut task = task.clone();
    let longest_ms = longest_ms(&task);
    let Some(lease) = &mut task.lease else { return Due::Done };
    last_from(lease, now, longest_ms);
    let due_at = lease.expires_at;
    set.put_task(task);
    Due::Later(due_at)
}

/// The longest time that a run of the task may last, including the question that it currently asks.
fn longest_ms(task: &TaskState) -> i64 {
    hard_end(0, task) + task.question.as_ref().map_or(0, |question| question.put_off_ms)
}

/// Makes the lease last one TTL from `at`, and its run no longer than a run that starts at `at`.
fn last_from(lease: &mut ActiveLease, at: Ms, longest_ms: i64) {
    lease.hard_end_at = lease.hard_end_at.map(|end| end.min(at + longest_ms));
    lease.expires_at = lease.hard_end_at.map_or(at + lease.ttl_ms, |end| end.min(at + lease.ttl_ms));
    lease.check_at = lease.check_at.min(lease.expires_at);
}

/// The database's clock has stepped by `step_ms`, to `at`. An active lease continues as if the clock had not stepped.
#[derive(Clone, Debug)]
pub struct ClockStepped {
    /// The task whose active lease continues. If it has none, nothing happens.
    pub task: TaskId,
    /// How far the clock has stepped, in ms; negative if it was set back.
    pub step_ms: i64,
    /// The time of the clock after the step.
    pub at: Ms,
}

impl Operation for ClockStepped {
    type Reply = ();

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    /// Leases that were made after the step stay unchanged.
    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let Self { task: id, step_ms, at } = *self;
        let Some(task) = set.find_task(id)? else { return Ok(()) };
        let mut task = task.clone();
        let longest_ms = longest_ms(&task);
        let Some(lease) = &mut task.lease else { return Ok(()) };
        // This tells leases from before and after the step apart, because their times differ by the whole step.
        let seems_to_last = lease.expires_at.max(lease.check_at);
        let is_older = if step_ms > 0 { lease.started_at < at - step_ms / 2 } else { seems_to_last > at + lease.ttl_ms };
        if is_older {
            lease.hard_end_at = lease.hard_end_at.map(|end| end + step_ms.max(0));
            last_from(lease, at, longest_ms);
            if let Some(question) = &mut task.question {
                question.asked_at += step_ms;
                question.until += step_ms;
            }
            set.put_task(task);
        }
        Ok(())
    }
}
