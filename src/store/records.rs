//! Rows and the core's types, each way: what stands beside a task, and workers.

use uuid::Uuid;

use super::args::{Bulk, RowType, boolean, int, real, row_type, text, uuid};
use super::conn::Cells;
use super::error::Error;
use super::rows::{json, usage};
use bloom_core::audit::{Action, AuditEntry, EntityType};
use bloom_core::task::{EventKind, LeaseStatus, Outcome, PastLease, RunResult, TaskEvent};
use bloom_core::wakeup::{Subject, Wakeup};
use bloom_core::worker::{DispatchMode, Worker, WorkerStatus};

pub(super) static LEASE: RowType = row_type!(
    leases:
    uuid id, uuid task_id, text context_id, text agent_slug, text worker_id, int started_at, int ttl_ms, int expires_at, int
    last_heartbeat, text status, int ended_at, boolean completed, text model, int input_tokens, int output_tokens, real cost_usd,
);

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

pub(super) static RESULT: RowType = row_type!(
    results:
    uuid id, uuid artifact_id, uuid task_id, uuid lease_id, text worker_id, text status, text output, text error_message, int duration_ms,
    int tokens_used, int completed_at, text artifact_type, text artifact_tags,
);

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

pub(super) static EVENT: RowType = row_type!(task_events: uuid task_id, int number, uuid lease_id, int seq, text kind, int at, text data);

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

pub(super) static WORKER: RowType = row_type!(
    workers as workers_row_2:
    text id, text url, text status, boolean lost, text capabilities, text ip_addrs, int obs_count, text db_sha, int registered_at, text
    agent_version, text os_info, text install_method, text dispatch, boolean cordoned, boolean draining, int revision, int updated_at,
    boolean recount_slots,
);

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
        .bool(worker.draining)
        .int(worker.revision)
        .int(worker.updated_at)
        .bool(worker.recount_slots);
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
        revision: row.take()?,
        updated_at: row.take()?,
        recount_slots: row.take()?,
        last_seen: row.take()?,
    })
}

pub(super) static AUDIT: RowType = row_type!(
    audit:
    uuid id, int timestamp, text action, text entity_type, text entity_id, text actor, text detail, text request_id,
);

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

pub(super) static WAKEUP: RowType = row_type!(wakeups: uuid id, text kind, uuid task_id, text subject, uuid cursor);

pub(super) fn push_wakeup<'a>(rows: &mut Bulk<'a>, wakeup: &'a Wakeup) {
    let (kind, task, subject) = match &wakeup.subject {
        Subject::Dependents(task) => ("dependents", Some(*task), None),
        Subject::Context { context_id, after } => ("context", *after, Some(context_id)),
        Subject::Key(key) => ("key", None, Some(key)),
        Subject::Reservations(worker) => ("reservations", None, Some(worker)),
    };
    rows.uuid(wakeup.id).text(kind).uuid(task).opt_text(subject).uuid(wakeup.cursor);
}

pub(super) fn wakeup(row: &mut Cells<'_>) -> Result<Wakeup, Error> {
    let (id, kind): (Uuid, String) = (row.take()?, row.take()?);
    let (task, subject): (Option<Uuid>, Option<String>) = (row.take()?, row.take()?);
    let subject = match (kind.as_str(), task, subject) {
        ("dependents", Some(task), None) => Subject::Dependents(task),
        ("context", after, Some(context_id)) => Subject::Context { context_id, after },
        ("key", None, Some(key)) => Subject::Key(key),
        ("reservations", None, Some(worker)) => Subject::Reservations(worker),
        _ => return Err(Error::Corrupt(format!("wake-up {id} of kind '{kind}' has not what belongs to it"))),
    };
    Ok(Wakeup { id, subject, cursor: row.take()? })
}
