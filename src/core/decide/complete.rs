//! The end of a run, as its worker tells it.

use std::sync::Arc;

use super::super::audit::{Action, EntityType};
use super::super::backoff::delay_ms;
use super::super::command::{Completed, Completion, Rejection, Reply};
use super::super::ids::{LeaseId, WorkerId};
use super::super::task::{Failure, LastLease, LeaseStatus, Outcome, PastLease, Reason, RunResult, Session, Status, TaskState};
use super::super::working_set::{Halt, WorkingSet, need};
use super::lease_end::{Retry, complete_record, end_lease, finish, retry};
use super::running::held;

pub(super) fn complete(set: &mut WorkingSet, completion: &Completion) -> Result<Reply, Halt> {
    let task = set.task(completion.task)?;
    let not_held = held(task, &completion.holder).err();
    let Some(not_held) = not_held else {
        let mut task = task.clone();
        let Some(lease) = end_lease(set, &mut task, LeaseStatus::Released) else { return Err(Rejection::LeaseNotFound.into()) };
        complete_record(set, lease.id, completion.model.clone(), completion.usage);
        return Ok(conclude(set, task, lease.id, lease.worker_id, completion, completion.keep_attempt));
    };
    if let Some(named) = completion.holder.lease {
        let past = set.loaded.past_leases.get(&named).ok_or_else(|| need(|keys| keys.past_leases.insert(named)))?;
        if let Some(past) = past.as_ref().filter(|past| past.task_id == task.id) {
            if past.completed {
                return Ok(Reply::Completed { task: task.clone(), result: Completed::Before(named) });
            }
            if is_late(task, past) {
                let (task, past) = (task.clone(), past.clone());
                return Ok(late(set, task, past, completion));
            }
        }
    }
    if matches!(not_held, Rejection::NotTheActiveLease(_)) {
        return Err(not_held.into());
    }
    Err(Rejection::WrongStatus { status: task.status, expected: "'leased' or 'running'" }.into())
}

/// Paid work is not thrown away: the lease ran out, and nobody has taken the task since.
fn is_late(task: &TaskState, past: &PastLease) -> bool {
    matches!(task.status, Status::Queued | Status::Dead)
        && past.status == LeaseStatus::Expired
        && task.last_lease.as_ref().is_some_and(|last| last.id == past.id && last.status == LeaseStatus::Expired)
}

fn late(set: &mut WorkingSet, mut task: TaskState, past: PastLease, completion: &Completion) -> Reply {
    let past = PastLease {
        status: LeaseStatus::Released,
        ended_at: set.now(),
        completed: true,
        model: completion.model.clone(),
        usage: completion.usage,
        ..past
    };
    task.last_lease = Some(LastLease { id: past.id, worker_id: past.worker_id.clone(), status: LeaseStatus::Released });
    // Should it go back to the queue from death, later tasks of its context stand behind it again.
    task.has_dependents |= task.session == Session::Context;
    let (lease, worker) = (past.id, past.worker_id.clone());
    // Without a sign of life the expiry has given the attempt back already; once is enough.
    let keep_attempt = completion.keep_attempt && past.last_heartbeat > past.started_at;
    set.loaded.past_leases.insert(past.id, Some(past.clone()));
    set.dirty.past_leases.retain(|record| record.id != past.id);
    set.dirty.past_leases.push(past);
    conclude(set, task, lease, worker, completion, keep_attempt)
}

fn conclude(
    set: &mut WorkingSet,
    mut task: TaskState,
    lease: LeaseId,
    worker: WorkerId,
    completion: &Completion,
    keep_attempt: bool,
) -> Reply {
    if let Some(record) = set.dirty.past_leases.iter().rev().find(|record| record.id == lease) {
        // A repeat in this very batch finds it.
        set.loaded.past_leases.insert(lease, Some(record.clone()));
    }
    let result = Arc::new(RunResult {
        id: set.ids.next_id(),
        artifact_id: set.ids.next_id(),
        task_id: task.id,
        lease_id: lease,
        worker_id: worker.clone(),
        status: completion.status,
        output: completion.output.clone(),
        error_message: completion.error_message.clone(),
        duration_ms: completion.duration_ms,
        tokens_used: completion.tokens_used,
        completed_at: set.now(),
        artifact_type: completion.artifact_type.clone(),
        artifact_tags: completion.artifact_tags.clone(),
    });
    set.dirty.results.push(result.clone());
    if let Some(usage) = completion.usage {
        task.usage.get_or_insert_default().add(usage);
    }
    if completion.session_id.is_some() {
        task.session_id.clone_from(&completion.session_id);
    }
    task.updated_at = set.now();
    match completion.status {
        Outcome::Success => {
            task.failure = None;
            set.audit(Action::TaskCompleted, EntityType::Task, task.id, &worker, "success");
            finish(set, &mut task, Status::Completed);
        }
        Outcome::Error => fail(set, &mut task, &worker, completion, keep_attempt),
    }
    set.put_task(task.clone());
    Reply::Completed { task, result: Completed::Now(result) }
}

fn fail(set: &mut WorkingSet, task: &mut TaskState, worker: &str, completion: &Completion, keep_attempt: bool) {
    let reason = completion.reason.unwrap_or(Reason::AgentError);
    let message = completion.error_message.clone().unwrap_or_default();
    let failure = Failure { reason, message, at: set.now() };
    if !completion.retryable && !task.cancel_requested {
        set.audit(Action::TaskCompleted, EntityType::Task, task.id, worker, format!("error: {reason}"));
        task.failure = Some(failure);
        finish(set, task, Status::Failed);
        return;
    }
    let chance = set.ids.draw();
    // Attempts that were given back count for the wait: else a fault that stays would use up all of them within a minute.
    let backoff = set.now() + delay_ms(task.attempts + task.infra_retries, chance);
    let not_before = completion.retry_at.map_or(backoff, |at| at.max(set.now()));
    // Where a program can't be started the next try need not be.
    let session_worker = (reason != Reason::SpawnFailed).then(|| worker.to_owned());
    retry(set, task, Retry { give_back: keep_attempt, not_before: Some(not_before), session_worker, failure, actor: worker });
    if task.status == Status::Queued {
        set.audit(
            Action::TaskRetried,
            EntityType::Task,
            task.id,
            worker,
            format!("{reason}, attempt {} of {}", task.attempts, task.max_attempts),
        );
    }
}
