//! The end of a run, as reported by its worker.

use std::sync::Arc;

use super::finish::finish;
use super::lease_end::{Next, Retry, Wait, complete_record, end_lease, plan, retry};
use crate::arguments::Completion;
use crate::audit::{Action, Actor, EntityType};
use crate::ids::{LeaseId, WorkerId};
use crate::operation::{Operation, Weight};
use crate::rejection::Rejection;
use crate::reply::{Completed, StoredResult};
use crate::row_keys::RowKeys;
use crate::run_result::RunResult;
use crate::task::{Failure, LastLease, LeaseStatus, PastLease, Reason, Status, TaskState};
use crate::working_set::{Halt, WorkingSet, need};

impl Operation for Completion {
    type Reply = Completed;

    fn weight(&self) -> Weight {
        Weight { rows: 4, bytes: 512 + self.output.as_ref().map_or(0, String::len) }
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Completed, Halt> {
        let completion = self;
        let task = set.task(completion.task)?;
        let not_held = task.held_by(&completion.holder).err();
        let Some(not_held) = not_held else {
            check_object(set, completion)?;
            let worker = task.lease.as_ref().map(|lease| lease.worker_id.clone()).unwrap_or_default();
            let end = End::of(set, task, completion, &worker, completion.keep_attempt)?;
            let mut task = task.clone();
            let Some(lease) = end_lease(set, &mut task, LeaseStatus::Released, None) else { return Err(Rejection::LeaseNotFound.into()) };
            complete_record(set, lease.id, completion);
            return Ok(conclude(set, task, lease.id, &worker, completion, end));
        };
        if let Some(named) = completion.holder.lease {
            let past = set.loaded.past_leases.get(&named).ok_or_else(|| need(|keys| keys.past_leases.insert(named)))?;
            let is_meant = |past: &&PastLease| {
                past.task_id == task.id && completion.holder.worker.as_ref().is_none_or(|named| *named == past.worker_id)
            };
            if let Some(past) = past.as_ref().filter(is_meant) {
                if past.completed {
                    return Ok(Completed { task: task.clone(), result: StoredResult::Before(named) });
                }
                if is_late(task, past) {
                    check_object(set, completion)?;
                    let (task, past) = (task.clone(), past.clone());
                    return late(set, task, past, completion);
                }
                if completion.usage.is_some() {
                    let (refusal, task, past) = (task.not_completable(not_held), task.clone(), past.clone());
                    return Ok(Completed { task: count_usage(set, task, past, completion), result: StoredResult::UsageOnly(refusal) });
                }
            }
        }
        Err(task.not_completable(not_held).into())
    }
}

/// Checks that the object with the output will still exist after the commit.
fn check_object(set: &WorkingSet, completion: &Completion) -> Result<(), Rejection> {
    match &completion.object {
        Some(object) if set.now() > object.until => Err(Rejection::ObjectTooOld),
        _ => Ok(()),
    }
}

/// Whether the completion is late but still acceptable: the lease expired, and no later lease was made. It is accepted because its work has
/// been paid for.
fn is_late(task: &TaskState, past: &PastLease) -> bool {
    matches!(task.status, Status::Queued | Status::Dead)
        && past.status == LeaseStatus::Expired
        && task.last_lease.as_ref().is_some_and(|last| last.id == past.id && last.status == LeaseStatus::Expired)
}

fn late(set: &mut WorkingSet, mut task: TaskState, past: PastLease, completion: &Completion) -> Result<Completed, Halt> {
    // If no heartbeat had arrived, the expiry has already given the attempt back. It must not be given back twice.
    let keep_attempt = completion.keep_attempt && past.last_heartbeat > past.started_at;
    let worker = past.worker_id.clone();
    let end = match End::of(set, &task, completion, &worker, keep_attempt)? {
        // Its dependents are cancelled, and whoever waited for it knows that it has failed: it must not run again by itself.
        End::Failed(failure) | End::Retried(Retry { failure, .. }, _) if task.status == Status::Dead => End::Dead(failure),
        end => end,
    };
    let mut past = PastLease { status: LeaseStatus::Released, ended_at: set.now(), ..past };
    past.complete(completion);
    task.last_lease = Some(LastLease { id: past.id, worker_id: past.worker_id.clone(), status: LeaseStatus::Released });
    let lease = past.id;
    set.loaded.past_leases.insert(past.id, Some(past.clone()));
    set.dirty.past_leases.retain(|record| record.id != past.id);
    set.dirty.past_leases.push(past);
    Ok(conclude(set, task, lease, &worker, completion, end))
}

/// Adds the usage of a run that ended too late to change the task, because its cost was incurred anyway.
fn count_usage(set: &mut WorkingSet, mut task: TaskState, past: PastLease, completion: &Completion) -> TaskState {
    if let (None, Some(usage)) = (past.usage, completion.usage) {
        let actor = Actor::Worker(past.worker_id.clone());
        let lost = || Failure { reason: Reason::WorkerLost, message: "the lease of a run has ended before it".into(), at: set.now() };
        let last = task.failure.clone().unwrap_or_else(lost);
        let over_budget = over_budget(&task, completion, &last).filter(|_| task.status == Status::Queued);
        let past = PastLease { model: completion.model.clone(), usage: Some(usage), ..past };
        set.loaded.past_leases.insert(past.id, Some(past.clone()));
        set.dirty.past_leases.retain(|record| record.id != past.id);
        set.dirty.past_leases.push(past);
        task.usage.get_or_insert_default().add(usage);
        task.updated_at = set.stamp();
        if let Some(failure) = over_budget {
            // No worker may get the task any more.
            retry(set, &mut task, Retry { give_back: false, wait: Wait::No, session_worker: None, failure, actor }, Next::Dead);
        }
        task.revision = set.put_task(task.clone());
    }
    task
}

/// What happens to the task.
enum End {
    Success,
    Failed(Failure),
    /// It is dead already, and stays so.
    Dead(Failure),
    Retried(Retry, Next),
}

impl End {
    fn of(set: &WorkingSet, task: &TaskState, completion: &Completion, worker: &WorkerId, keep_attempt: bool) -> Result<Self, Halt> {
        let Some(reason) = completion.failed_for() else { return Ok(Self::Success) };
        let failure = Failure { reason, message: completion.error_message.clone().unwrap_or_default(), at: set.now() };
        // A run that fills one disk would also fill another. Only one more worker may try, because the first one may have been short of
        // space for its own reasons.
        let is_second = reason == Reason::DiskLimit && task.failure.as_ref().is_some_and(|last| last.reason == Reason::DiskLimit);
        if (!completion.retryable || is_second) && !task.cancel_requested {
            return Ok(Self::Failed(failure));
        }
        let over_budget = over_budget(task, completion, &failure).filter(|_| !task.cancel_requested);
        let is_over_budget = over_budget.is_some();
        let failure = over_budget.unwrap_or(failure);
        let cause = Retry {
            give_back: keep_attempt,
            wait: completion.retry_at.map_or(Wait::Backoff, Wait::Until),
            // If the program could not be started, or had too little space, the next attempt may go to another worker.
            session_worker: (!matches!(reason, Reason::SpawnFailed | Reason::DiskLimit)).then(|| worker.to_owned()),
            failure,
            actor: Actor::Worker(worker.clone()),
        };
        let next = if is_over_budget { Next::Dead } else { plan(set, task, &cause)? };
        Ok(Self::Retried(cause, next))
    }
}

/// The failure of a task if the attempt has used up its budget, so that another attempt could not do anything.
fn over_budget(task: &TaskState, completion: &Completion, last: &Failure) -> Option<Failure> {
    let mut usage = task.usage.unwrap_or_default();
    usage.add(completion.usage?);
    let (left, spent) = task.budget_after(usage)?;
    if left > 0.0 {
        return None;
    }
    let about = if usage.cost_estimated { "about " } else { "" };
    let message = format!(
        "its attempts have cost {about}{spent:.4} USD, which leaves nothing of its budget of {:.4} USD; the last one: {}: {}",
        task.budget, last.reason, last.message
    );
    Some(Failure { reason: Reason::BudgetExceeded, message, at: last.at })
}

fn conclude(set: &mut WorkingSet, mut task: TaskState, lease: LeaseId, worker: &WorkerId, completion: &Completion, end: End) -> Completed {
    if let Some(record) = set.dirty.past_leases.iter().rev().find(|record| record.id == lease) {
        // Lets a repeat in the same batch find the record.
        set.loaded.past_leases.insert(lease, Some(record.clone()));
    }
    let result = Arc::new(RunResult {
        id: set.ids.next_id(),
        artifact_id: completion.object.as_ref().map_or_else(|| set.ids.next_id(), |object| object.artifact_id),
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
        warnings: completion.warnings.clone(),
        object: completion.object.as_ref().map(|object| object.stored.clone()),
        branch: completion.branch.clone(),
        commit_id: completion.commit.clone(),
    });
    set.dirty.results.push(result.clone());
    if let Some(usage) = completion.usage {
        task.usage.get_or_insert_default().add(usage);
    }
    task.last_event_seq = completion.last_event_seq;
    if completion.session_id.is_some() {
        task.session_id.clone_from(&completion.session_id);
    }
    let actor = Actor::Worker(worker.clone());
    task.updated_at = set.stamp();
    match end {
        End::Success => {
            task.failure = None;
            set.audit(Action::TaskCompleted, EntityType::Task, task.id, &actor, "the run succeeded");
            finish(set, &mut task, Status::Completed);
        }
        End::Failed(failure) => {
            set.audit(Action::TaskCompleted, EntityType::Task, task.id, &actor, format!("the run failed: {}", failure.reason));
            task.failure = Some(failure);
            finish(set, &mut task, Status::Failed);
        }
        End::Dead(failure) => {
            let detail = format!("the run failed: {}; the task stays dead", failure.reason);
            set.audit(Action::TaskCompleted, EntityType::Task, task.id, &actor, detail);
            task.failure = Some(failure);
        }
        End::Retried(cause, next) => {
            let reason = cause.failure.reason;
            retry(set, &mut task, cause, next);
            if task.status == Status::Queued {
                let detail = format!("{reason}, attempt {} of {}", task.attempts, task.max_attempts);
                set.audit(Action::TaskRetried, EntityType::Task, task.id, &actor, detail);
            }
        }
    }
    task.revision = set.put_task(task.clone());
    Completed { task, result: StoredResult::Now(result) }
}
