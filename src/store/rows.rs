//! Rows and the core's types, each way: tasks.

use std::sync::Arc;

use super::args::{Bulk, Column, RowType, boolean, columns, int, real, row_type, text, uuid};
use super::conn::Cells;
use super::error::Error;
use bloom_core::Ms;
use bloom_core::ids::LeaseId;
use bloom_core::task::{
    ActiveLease, Failure, Format, LastLease, LeaseStatus, Origin, Parked, Reason, Session, Status, TaskSpec, TaskState, Usage,
};

pub(super) fn json<T: serde::Serialize>(value: &T) -> String {
    // Lists and maps of texts always have a JSON form.
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) static SPEC: RowType = row_type!(
    tasks:
    uuid id, text context_id, text agent_slug, text prompt, text context_hints, int timeout_sec, real budget, text desired_format, int
    max_attempts, int priority, int not_before, text depends_on, text exclusive_key, text idempotency_key, text labels, text session, text
    model, int ttl_after_finished_sec,
);

pub(super) fn push_spec<'a>(rows: &mut Bulk<'a>, spec: &'a TaskSpec) {
    rows.uuid(spec.id)
        .text(&spec.context_id)
        .text(&spec.agent_slug)
        .text(&spec.prompt)
        .text(json(&spec.context_hints))
        .int(spec.timeout_sec)
        .real(spec.budget)
        .text(spec.desired_format.as_str())
        .int(spec.max_attempts)
        .int(spec.priority)
        .int(spec.not_before)
        .text(json(&spec.depends_on))
        .opt_text(spec.exclusive_key.as_deref())
        .opt_text(spec.idempotency_key.as_deref())
        .text(json(&spec.labels))
        .text(spec.session.as_str())
        .opt_text(spec.model.as_deref())
        .int(spec.ttl_after_finished_sec);
}

pub(super) fn spec(row: &mut Cells<'_>) -> Result<Arc<TaskSpec>, Error> {
    Ok(Arc::new(TaskSpec {
        id: row.take()?,
        context_id: row.take()?,
        agent_slug: row.take()?,
        prompt: row.take()?,
        context_hints: row.json()?,
        timeout_sec: row.take()?,
        budget: row.take()?,
        desired_format: row.word(Format::parse)?,
        max_attempts: row.take()?,
        priority: row.take()?,
        not_before: row.take()?,
        depends_on: row.json()?,
        exclusive_key: row.take()?,
        idempotency_key: row.take()?,
        labels: row.json()?,
        session: row.word(Session::parse)?,
        model: row.take()?,
        ttl_after_finished_sec: row.take()?,
    }))
}

pub(super) static STATE: RowType = row_type!(
    task_state as task_state_row_2:
    uuid id, text context_id, text agent_slug, int rank, text session, int max_attempts, int timeout_sec, text exclusive_key, int
    ttl_after_finished_sec, boolean has_dependencies, int revision, text status, int updated_at, int attempts, int infra_retries, int
    lease_count, boolean cancel_requested, int not_before, text parked, int wake_at, int ready_at, text session_worker, uuid
    created_after, boolean has_dependents, text worker_id, uuid lease_id, int slot, text origin, int started_at, int ttl_ms, int
    expires_at, int check_at, int hard_end_at, int last_heartbeat, boolean holds_context, uuid last_lease_id, text last_lease_worker,
    text last_lease_status, text session_id, text failure_reason, text failure_message, int failure_at, int input_tokens, int
    output_tokens, real cost_usd, int finished_at, int remove_at, int event_count, int event_seq,
);
/// What changes; the columns before never do.
pub(super) static STATE_MOVING: &[Column] = STATE.columns.split_at(10).1;
/// What a quiet change may move: a later expiry, more events, somebody who waits. Only these are written for one, and none is indexed.
/// `check_at` is not among them: a quiet change that moves it is written whole.
pub(super) static STATE_QUIET: &[Column] = columns!(
    int revision, int updated_at, boolean has_dependents, int expires_at, int last_heartbeat, int event_count, int event_seq,
);

/// The queue's order puts priority 9 first.
pub(super) fn rank(priority: i64) -> i64 {
    9 - priority
}

pub(super) fn push_state<'a>(rows: &mut Bulk<'a>, task: &'a TaskState) {
    let lease = task.lease.as_ref();
    let last = task.last_lease.as_ref();
    let failure = task.failure.as_ref();
    rows.uuid(task.id)
        .text(&task.context_id)
        .text(&task.agent_slug)
        .int(rank(task.priority))
        .text(task.session.as_str())
        .int(task.max_attempts)
        .int(task.timeout_sec)
        .opt_text(task.exclusive_key.as_deref())
        .int(task.ttl_after_finished_sec)
        .bool(task.has_dependencies)
        .int(task.revision)
        .text(task.status.as_str())
        .int(task.updated_at)
        .int(task.attempts)
        .int(task.infra_retries)
        .int(task.lease_count)
        .bool(task.cancel_requested)
        .int(task.not_before)
        .opt_text(task.parked.map(Parked::as_str))
        .int(task.wake_at)
        .int(task.ready_at)
        .opt_text(task.session_worker.as_deref())
        .uuid(task.created_after)
        .bool(task.has_dependents)
        .opt_text(task.shown_lease().map(|(_, worker)| worker.as_str()))
        .uuid(lease.map(|l| l.id))
        .int(lease.map(|l| l.slot))
        .opt_text(lease.map(|l| l.origin.as_str()))
        .int(lease.map(|l| l.started_at))
        .int(lease.map(|l| l.ttl_ms))
        .int(lease.map(|l| l.expires_at))
        .int(lease.map(|l| l.check_at))
        .int(lease.and_then(|l| l.hard_end_at))
        .int(lease.map(|l| l.last_heartbeat))
        .bool(lease.and_then(|l| l.holds_context.then_some(true)))
        .uuid(last.map(|l| l.id))
        .opt_text(last.map(|l| l.worker_id.as_str()))
        .opt_text(last.map(|l| l.status.as_str()))
        .opt_text(task.session_id.as_deref())
        .opt_text(failure.map(|f| f.reason.as_str()))
        .opt_text(failure.map(|f| f.message.as_str()))
        .int(failure.map(|f| f.at))
        .int(task.usage.map(|u| u.input_tokens))
        .int(task.usage.map(|u| u.output_tokens))
        .real(task.usage.map(|u| u.cost_usd))
        .int(task.finished_at)
        .int(task.remove_at)
        .int(task.event_count)
        .int(task.event_seq);
}

pub(super) fn state(row: &mut Cells<'_>) -> Result<TaskState, Error> {
    Ok(TaskState {
        id: row.take()?,
        context_id: row.take()?,
        agent_slug: row.take()?,
        priority: rank(row.take()?),
        session: row.word(Session::parse)?,
        max_attempts: row.take()?,
        timeout_sec: row.take()?,
        exclusive_key: row.take()?,
        ttl_after_finished_sec: row.take()?,
        has_dependencies: row.take()?,
        revision: row.take()?,
        status: row.word(Status::parse)?,
        updated_at: row.take()?,
        attempts: row.take()?,
        infra_retries: row.take()?,
        lease_count: row.take()?,
        cancel_requested: row.take()?,
        not_before: row.take()?,
        parked: row.opt_word(Parked::parse)?,
        wake_at: row.take()?,
        ready_at: row.take()?,
        session_worker: row.take()?,
        created_after: row.take()?,
        has_dependents: row.take()?,
        lease: active_lease(row)?,
        last_lease: last_lease(row)?,
        session_id: row.take()?,
        failure: failure(row)?,
        usage: usage(row)?,
        finished_at: row.take()?,
        remove_at: row.take()?,
        event_count: row.take()?,
        event_seq: row.take()?,
    })
}

fn active_lease(row: &mut Cells<'_>) -> Result<Option<ActiveLease>, Error> {
    let worker_id: Option<String> = row.take()?;
    let id: Option<LeaseId> = row.take()?;
    let slot: Option<i64> = row.take()?;
    let origin = row.opt_word(Origin::parse)?;
    let (started_at, ttl_ms, expires_at): (Option<Ms>, Option<i64>, Option<Ms>) = (row.take()?, row.take()?, row.take()?);
    // A replica of the version before leaves it unset: it is due at once, and then set.
    let check_at: Ms = row.take::<Option<Ms>>()?.unwrap_or_default();
    let (hard_end_at, last_heartbeat): (Option<Ms>, Option<Ms>) = (row.take()?, row.take()?);
    let holds_context = row.take::<Option<bool>>()?.unwrap_or(false);
    let Some(slot) = slot else { return Ok(None) };
    let lease = || {
        Some(ActiveLease {
            id: id?,
            worker_id: worker_id?,
            slot,
            origin: origin?,
            started_at: started_at?,
            ttl_ms: ttl_ms?,
            expires_at: expires_at?,
            check_at,
            hard_end_at,
            last_heartbeat: last_heartbeat?,
            holds_context,
        })
    };
    lease().map(Some).ok_or_else(|| Error::Corrupt("a task has a place at a worker, but half a lease".into()))
}

fn last_lease(row: &mut Cells<'_>) -> Result<Option<LastLease>, Error> {
    let (id, worker, status) = (row.take()?, row.take()?, row.opt_word(LeaseStatus::parse)?);
    Ok(match (id, worker, status) {
        (Some(id), Some(worker_id), Some(status)) => Some(LastLease { id, worker_id, status }),
        _ => None,
    })
}

fn failure(row: &mut Cells<'_>) -> Result<Option<Failure>, Error> {
    let (reason, message, at) = (row.opt_word(Reason::parse)?, row.take()?, row.take()?);
    Ok(match (reason, message, at) {
        (Some(reason), Some(message), Some(at)) => Some(Failure { reason, message, at }),
        _ => None,
    })
}

pub(super) fn usage(row: &mut Cells<'_>) -> Result<Option<Usage>, Error> {
    let (input, output, cost) = (row.take()?, row.take()?, row.take()?);
    Ok(match (input, output, cost) {
        (Some(input_tokens), Some(output_tokens), Some(cost_usd)) => Some(Usage { input_tokens, output_tokens, cost_usd }),
        _ => None,
    })
}
