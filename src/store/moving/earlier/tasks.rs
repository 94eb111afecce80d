//! Tasks. They keep their ids.
//!
//! A task that a worker held when the database was read is queued again and gets its attempt back, because no worker of the earlier runtime
//! reports to this program. The audit trail records this. The earlier runtime ran tasks of one context in any order, so they get `session:
//! none`.

use std::collections::BTreeMap;

use super::copies::first;
use super::fields::{Field, Fields, timed};
use super::sink::Sink;
use crate::error::Error;
use crate::sql::conn::Conn;
use bloom_core::audit::{Action, Actor, AuditEntry, EntityType};
use bloom_core::ids::{created_at, has_time};
use bloom_core::limits::MAX_SAFE;
use bloom_core::task::{Failure, Format, LastLease, LeaseStatus, Reason, Session, Status, TaskSpec, TaskState};

/// The tasks, each with its last lease, the number of its leases, and the error of its newest result.
fn tasks_sql() -> String {
    format!(
        "SELECT (to_jsonb(t) || jsonb_build_object('lease', to_jsonb(l), 'lease_count', c.n, 'error', r.error_message))::text \
        FROM {} t LEFT JOIN {leases} l ON l.id::text = t.lease_id::text \
        LEFT JOIN (SELECT task_id::text AS id, count(*) AS n FROM {leases} f GROUP BY task_id::text) c ON c.id = t.id::text \
        LEFT JOIN (SELECT DISTINCT ON (task_id::text) task_id::text AS id, error_message FROM llm_results \
            ORDER BY task_id::text, completed_at DESC) r ON r.id = t.id::text \
        ORDER BY t.id::text",
        first("llm_tasks"),
        leases = first("leases")
    )
}

/// The limits of the API.
const TIMEOUT_SEC: std::ops::RangeInclusive<i64> = 1..=3600;
const MAX_ATTEMPTS: std::ops::RangeInclusive<i64> = 1..=10;

pub(super) async fn write(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    let tasks = tasks_sql();
    sink.refuse_copies(conn, "llm_tasks").await?;
    // The rows of one table are written together, and a task has rows in two tables, so the tasks are read twice.
    sink.take(conn, "llm_tasks", &tasks, |sink, row| match task(row) {
        Err(why) => {
            sink.refused_tasks.extend(row.text("id"));
            Ok(Err(why))
        }
        Ok((spec, _)) => sink.add(&spec).map(Ok),
    })
    .await?;
    let mut queued_again = Vec::new();
    sink.take_silently(conn, "llm_tasks", &tasks, |sink, row| {
        let Ok((spec, state)) = task(row) else { return Ok(()) };
        if status(row).is_ok_and(Status::is_active) {
            queued_again.push((spec.id, row.optional_text("worker_id").ok().flatten()));
        }
        sink.add(&state)
    })
    .await?;
    for (id, worker_id) in queued_again {
        sink.note_queued_again();
        let entry = AuditEntry {
            id: sink.ids.next_id(),
            timestamp: sink.ids.stamp(),
            action: Action::TaskRequeued,
            entity_type: EntityType::Task,
            entity_id: id.to_string(),
            actor: Actor::Admin.to_string(),
            detail: "a worker had it when it was taken over from the earlier runtime".into(),
            request_id: None,
            task_id: Some(id),
            worker_id,
        };
        sink.add(&entry)?;
    }
    Ok(())
}

fn status(row: &Fields) -> Field<Status> {
    row.word("status", Status::parse)
}

fn task(row: &Fields) -> Field<(TaskSpec, TaskState)> {
    let policy = row.object("policy")?;
    let Ok(timeout_sec) = policy.optional_int("timeout_sec", TIMEOUT_SEC) else {
        return row.wrong("policy", "has a timeout_sec that is not a whole number from 1 to 3600");
    };
    let budget = policy.value("budget")?.map_or(Some(0.0), serde_json::Value::as_f64);
    let Some(budget) = budget.filter(|budget| *budget >= 0.0) else {
        return row.wrong("policy", "has a budget that is not a number from 0");
    };
    let spec = TaskSpec {
        id: row.uuid("id")?,
        context_id: row.name("context_id")?,
        agent_slug: row.name("agent_slug")?,
        prompt: row.text("prompt")?,
        context_hints: row.texts("context_hints")?,
        timeout_sec: timeout_sec.unwrap_or(120),
        profile_timeout_max: None,
        budget,
        desired_format: row.word("desired_format", Format::parse)?,
        max_attempts: row.optional_int("max_attempts", MAX_ATTEMPTS)?.unwrap_or(3),
        priority: 5,
        not_before: None,
        depends_on: Vec::new(),
        exclusive_key: None,
        idempotency_key: None,
        labels: BTreeMap::new(),
        session: Session::None,
        model: None,
        ttl_after_finished_sec: None,
        owner: None,
        team: None,
        suspend: false,
        traceparent: None,
        object: None,
        project: None,
        inputs: Vec::new(),
        outputs: Vec::new(),
    };
    let state = state(row, &spec)?;
    Ok((spec, state))
}

fn state(row: &Fields, spec: &TaskSpec) -> Field<TaskState> {
    let (status, made_at, updated_at) = (status(row)?, row.time("created_at")?, row.time("updated_at")?);
    let attempts = row.optional_int("attempts", 0..=MAX_SAFE)?.unwrap_or(0);
    // A queued task must have an attempt left.
    let (now, attempts, infra_retries) = match status {
        Status::Queued => (Status::Queued, attempts.min(spec.max_attempts - 1), 0),
        Status::Leased | Status::Running => (Status::Queued, (attempts - 1).clamp(0, spec.max_attempts - 1), 1),
        ended => (ended, attempts.min(spec.max_attempts), 0),
    };
    let reason = match now {
        Status::Failed => Some((Reason::AgentError, "the run failed")),
        Status::Dead => Some((Reason::WorkerLost, "its last lease expired")),
        Status::Cancelled => Some((Reason::Cancelled, "it was cancelled")),
        _ => None,
    };
    let message = row.optional_text("error")?;
    Ok(TaskState {
        revision: 1,
        status: now,
        updated_at,
        attempts,
        infra_retries,
        lease_count: row.optional_int("lease_count", 0..=MAX_SAFE)?.unwrap_or(0),
        ready_at: (now == Status::Queued).then_some(updated_at),
        last_lease: last_lease(row, updated_at)?,
        failure: reason.map(|(reason, text)| Failure { reason, message: message.unwrap_or_else(|| text.into()), at: updated_at }),
        finished_at: now.is_final().then_some(updated_at),
        made_at: (!has_time(spec.id) || created_at(spec.id) != made_at).then_some(made_at),
        ..TaskState::new(spec)
    })
}

fn last_lease(row: &Fields, updated_at: i64) -> Field<Option<LastLease>> {
    let (Some(id), Some(worker_id)) = (row.optional_uuid("lease_id")?, row.optional_text("worker_id")?) else { return Ok(None) };
    let lease = row.object("lease")?;
    let started_at = lease.optional_time("started_at")?.unwrap_or(updated_at);
    // A lease that was active ends with the move.
    let status = match lease.optional_text("status")?.as_deref().and_then(LeaseStatus::parse) {
        Some(LeaseStatus::Active) => LeaseStatus::Failed,
        Some(ended) => ended,
        None => LeaseStatus::Released,
    };
    Ok(Some(LastLease { id: timed(id, started_at), worker_id, status }))
}
