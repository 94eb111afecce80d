//! Rows and the core's types, each way.

use std::sync::Arc;

use super::args::{Bulk, Column, boolean, int, real, text, uuid};
use super::conn::Cells;
use super::error::Error;
use crate::core::Ms;
use crate::core::audit::{Action, AuditEntry, EntityType};
use crate::core::ids::LeaseId;
use crate::core::task::{
    ActiveLease, EventKind, Failure, Format, LastLease, LeaseStatus, Origin, Outcome, Parked, PastLease, Reason, RunResult, Session,
    Status, TaskEvent, TaskSpec, TaskState, Usage,
};
use crate::core::worker::{DispatchMode, Worker, WorkerStatus};

/// Column names for a SELECT, each behind `prefix` (`t.`).
pub(super) fn names(columns: &[&[Column]], prefix: &str) -> String {
    let names: Vec<_> = columns.iter().copied().flatten().map(|c| format!("{prefix}{}", c.name)).collect();
    names.join(", ")
}

fn json<T: serde::Serialize>(value: &T) -> String {
    // Lists and maps of texts always have a JSON form.
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) const SPEC: &[Column] = &[
    uuid("id"),
    text("context_id"),
    text("agent_slug"),
    text("prompt"),
    text("context_hints"),
    int("timeout_sec"),
    real("budget"),
    text("desired_format"),
    int("max_attempts"),
    int("priority"),
    int("not_before"),
    text("depends_on"),
    text("exclusive_key"),
    text("idempotency_key"),
    text("labels"),
    text("session"),
    text("model"),
    int("ttl_after_finished_sec"),
];

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

/// The part of a task's state that never changes.
pub(super) const STATE_FIXED: &[Column] = &[
    uuid("id"),
    text("context_id"),
    text("agent_slug"),
    int("rank"),
    text("session"),
    int("max_attempts"),
    int("timeout_sec"),
    text("exclusive_key"),
    int("ttl_after_finished_sec"),
    boolean("has_dependencies"),
];
pub(super) const STATE_MOVING: &[Column] = &[
    text("status"),
    int("updated_at"),
    int("attempts"),
    int("infra_retries"),
    int("lease_count"),
    boolean("cancel_requested"),
    int("not_before"),
    text("parked"),
    int("ready_at"),
    text("session_worker"),
    boolean("has_dependents"),
    text("worker_id"),
    uuid("lease_id"),
    int("slot"),
    text("origin"),
    int("started_at"),
    int("ttl_ms"),
    int("expires_at"),
    int("hard_end_at"),
    int("last_heartbeat"),
    boolean("holds_context"),
    uuid("last_lease_id"),
    text("last_lease_worker"),
    text("last_lease_status"),
    text("session_id"),
    text("failure_reason"),
    text("failure_message"),
    int("failure_at"),
    int("input_tokens"),
    int("output_tokens"),
    real("cost_usd"),
    int("finished_at"),
    int("remove_at"),
    int("event_count"),
    int("event_seq"),
];
/// What a quiet change may move: a later expiry, more events, somebody who waits. Only these are written for one, and none is indexed.
pub(super) const STATE_QUIET: &[Column] =
    &[int("updated_at"), boolean("has_dependents"), int("expires_at"), int("last_heartbeat"), int("event_count"), int("event_seq")];
pub(super) const STATE: &[&[Column]] = &[STATE_FIXED, STATE_MOVING];

/// The queue's order puts priority 9 first.
pub(super) fn rank(priority: i64) -> i64 {
    9 - priority
}

pub(super) fn push_state_fixed<'a>(rows: &mut Bulk<'a>, task: &'a TaskState) {
    rows.uuid(task.id)
        .text(&task.context_id)
        .text(&task.agent_slug)
        .int(rank(task.priority))
        .text(task.session.as_str())
        .int(task.max_attempts)
        .int(task.timeout_sec)
        .opt_text(task.exclusive_key.as_deref())
        .int(task.ttl_after_finished_sec)
        .bool(task.has_dependencies);
}

pub(super) fn push_state_moving<'a>(rows: &mut Bulk<'a>, task: &'a TaskState) {
    let lease = task.lease.as_ref();
    let last = task.last_lease.as_ref();
    let failure = task.failure.as_ref();
    rows.text(task.status.as_str())
        .int(task.updated_at)
        .int(task.attempts)
        .int(task.infra_retries)
        .int(task.lease_count)
        .bool(task.cancel_requested)
        .int(task.not_before)
        .opt_text(task.parked.map(Parked::as_str))
        .int(task.ready_at)
        .opt_text(task.session_worker.as_deref())
        .bool(task.has_dependents)
        .opt_text(task.shown_lease().map(|(_, worker)| worker.as_str()))
        .uuid(lease.map(|l| l.id))
        .int(lease.map(|l| l.slot))
        .opt_text(lease.map(|l| l.origin.as_str()))
        .int(lease.map(|l| l.started_at))
        .int(lease.map(|l| l.ttl_ms))
        .int(lease.map(|l| l.expires_at))
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

pub(super) fn push_state_quiet(rows: &mut Bulk<'_>, task: &TaskState) {
    let lease = task.lease.as_ref();
    rows.int(task.updated_at)
        .bool(task.has_dependents)
        .int(lease.map(|l| l.expires_at))
        .int(lease.map(|l| l.last_heartbeat))
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
        status: row.word(Status::parse)?,
        updated_at: row.take()?,
        attempts: row.take()?,
        infra_retries: row.take()?,
        lease_count: row.take()?,
        cancel_requested: row.take()?,
        not_before: row.take()?,
        parked: row.opt_word(Parked::parse)?,
        ready_at: row.take()?,
        session_worker: row.take()?,
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

fn usage(row: &mut Cells<'_>) -> Result<Option<Usage>, Error> {
    let (input, output, cost) = (row.take()?, row.take()?, row.take()?);
    Ok(match (input, output, cost) {
        (Some(input_tokens), Some(output_tokens), Some(cost_usd)) => Some(Usage { input_tokens, output_tokens, cost_usd }),
        _ => None,
    })
}

pub(super) const LEASE: &[Column] = &[
    uuid("id"),
    uuid("task_id"),
    text("context_id"),
    text("agent_slug"),
    text("worker_id"),
    int("started_at"),
    int("ttl_ms"),
    int("expires_at"),
    int("last_heartbeat"),
    text("status"),
    int("ended_at"),
    boolean("completed"),
    text("model"),
    int("input_tokens"),
    int("output_tokens"),
    real("cost_usd"),
];

pub(super) fn push_lease<'a>(rows: &mut Bulk<'a>, lease: &'a PastLease) {
    rows.uuid(lease.id)
        .uuid(lease.task_id)
        .text(&lease.context_id)
        .text(&lease.agent_slug)
        .text(&lease.worker_id)
        .int(lease.started_at)
        .int(lease.ttl_ms)
        .int(lease.expires_at)
        .int(lease.last_heartbeat)
        .text(lease.status.as_str())
        .int(lease.ended_at)
        .bool(lease.completed)
        .opt_text(lease.model.as_deref())
        .int(lease.usage.map(|u| u.input_tokens))
        .int(lease.usage.map(|u| u.output_tokens))
        .real(lease.usage.map(|u| u.cost_usd));
}

pub(super) fn lease(row: &mut Cells<'_>) -> Result<PastLease, Error> {
    Ok(PastLease {
        id: row.take()?,
        task_id: row.take()?,
        context_id: row.take()?,
        agent_slug: row.take()?,
        worker_id: row.take()?,
        started_at: row.take()?,
        ttl_ms: row.take()?,
        expires_at: row.take()?,
        last_heartbeat: row.take()?,
        status: row.word(LeaseStatus::parse)?,
        ended_at: row.take()?,
        completed: row.take()?,
        model: row.take()?,
        usage: usage(row)?,
    })
}

pub(super) const RESULT: &[Column] = &[
    uuid("id"),
    uuid("artifact_id"),
    uuid("task_id"),
    uuid("lease_id"),
    text("worker_id"),
    text("status"),
    text("output"),
    text("error_message"),
    int("duration_ms"),
    int("tokens_used"),
    int("completed_at"),
    text("artifact_type"),
    text("artifact_tags"),
];

pub(super) fn push_result<'a>(rows: &mut Bulk<'a>, result: &'a RunResult) {
    rows.uuid(result.id)
        .uuid(result.artifact_id)
        .uuid(result.task_id)
        .uuid(result.lease_id)
        .text(&result.worker_id)
        .text(result.status.as_str())
        .opt_text(result.output.as_deref())
        .opt_text(result.error_message.as_deref())
        .int(result.duration_ms)
        .int(result.tokens_used)
        .int(result.completed_at)
        .text(&result.artifact_type)
        .text(json(&result.artifact_tags));
}

pub(super) fn result(row: &mut Cells<'_>) -> Result<RunResult, Error> {
    Ok(RunResult {
        id: row.take()?,
        artifact_id: row.take()?,
        task_id: row.take()?,
        lease_id: row.take()?,
        worker_id: row.take()?,
        status: row.word(Outcome::parse)?,
        output: row.take()?,
        error_message: row.take()?,
        duration_ms: row.take()?,
        tokens_used: row.take()?,
        completed_at: row.take()?,
        artifact_type: row.take()?,
        artifact_tags: row.json()?,
    })
}

pub(super) const EVENT: &[Column] = &[uuid("task_id"), int("number"), uuid("lease_id"), int("seq"), text("kind"), int("at"), text("data")];

pub(super) fn push_event<'a>(rows: &mut Bulk<'a>, event: &'a TaskEvent) {
    rows.uuid(event.task_id)
        .int(event.number)
        .uuid(event.lease_id)
        .int(event.seq)
        .text(event.kind.as_str())
        .int(event.at)
        .text(&event.data);
}

pub(super) fn event(row: &mut Cells<'_>) -> Result<TaskEvent, Error> {
    Ok(TaskEvent {
        task_id: row.take()?,
        number: row.take()?,
        lease_id: row.take()?,
        seq: row.take()?,
        kind: row.word(EventKind::parse)?,
        at: row.take()?,
        data: row.take()?,
    })
}

pub(super) const WORKER: &[Column] = &[
    text("id"),
    text("url"),
    text("status"),
    boolean("lost"),
    text("capabilities"),
    text("ip_addrs"),
    int("obs_count"),
    text("db_sha"),
    int("registered_at"),
    text("agent_version"),
    text("os_info"),
    text("install_method"),
    text("dispatch"),
    boolean("cordoned"),
    boolean("draining"),
];

pub(super) fn push_worker<'a>(rows: &mut Bulk<'a>, worker: &'a Worker) {
    rows.text(&worker.id)
        .text(&worker.url)
        .text(worker.status.as_str())
        .bool(worker.lost)
        .text(json(&worker.capabilities))
        .text(json(&worker.ip_addrs))
        .int(worker.obs_count)
        .text(&worker.db_sha)
        .int(worker.registered_at)
        .text(&worker.agent_version)
        .text(&worker.os_info)
        .text(&worker.install_method)
        .text(worker.dispatch.as_str())
        .bool(worker.cordoned)
        .bool(worker.draining);
}

/// The worker's columns, then `last_seen`.
pub(super) fn worker(row: &mut Cells<'_>) -> Result<Worker, Error> {
    Ok(Worker {
        id: row.take()?,
        url: row.take()?,
        status: row.word(WorkerStatus::parse)?,
        lost: row.take()?,
        capabilities: row.json()?,
        ip_addrs: row.json()?,
        obs_count: row.take()?,
        db_sha: row.take()?,
        registered_at: row.take()?,
        agent_version: row.take()?,
        os_info: row.take()?,
        install_method: row.take()?,
        dispatch: row.word(DispatchMode::parse)?,
        cordoned: row.take()?,
        draining: row.take()?,
        last_seen: row.take()?,
    })
}

pub(super) const AUDIT: &[Column] = &[
    uuid("id"),
    int("timestamp"),
    text("action"),
    text("entity_type"),
    text("entity_id"),
    text("actor"),
    text("detail"),
    text("request_id"),
];

pub(super) fn push_audit<'a>(rows: &mut Bulk<'a>, entry: &'a AuditEntry) {
    rows.uuid(entry.id)
        .int(entry.timestamp)
        .text(entry.action.as_str())
        .text(entry.entity_type.as_str())
        .text(&entry.entity_id)
        .text(&entry.actor)
        .text(&entry.detail)
        .opt_text(entry.request_id.as_deref());
}

pub(super) fn audit(row: &mut Cells<'_>) -> Result<AuditEntry, Error> {
    Ok(AuditEntry {
        id: row.take()?,
        timestamp: row.take()?,
        action: row.word(Action::parse)?,
        entity_type: row.word(EntityType::parse)?,
        entity_id: row.take()?,
        actor: row.take()?,
        detail: row.take()?,
        request_id: row.take()?,
    })
}
