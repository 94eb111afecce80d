//! Workers, leases, results with their artifacts, and audit entries.

use serde_json::Value;
use uuid::Uuid;

use super::copies::{self, first};
use super::fields::{Field, Fields, timed};
use super::sink::Sink;
use crate::batch::save::Seen;
use crate::error::Error;
use crate::sql::conn::Conn;
use bloom_core::audit::{Action, AuditEntry, EntityType};
use bloom_core::limits::MAX_SAFE;
use bloom_core::run_result::RunResult;
use bloom_core::task::{LeaseStatus, Outcome, PastLease};
use bloom_core::worker::{Capabilities, MAX_CONCURRENCY, Worker, WorkerStatus};

fn workers_sql() -> String {
    format!("SELECT to_jsonb(w)::text FROM {} w ORDER BY w.id::text", first("workers"))
}

/// A lease with the agent of its task, and whether its worker has reported a result.
fn leases_sql() -> String {
    format!(
        "SELECT (to_jsonb(l) || jsonb_build_object('agent_slug', t.agent_slug, 'has_result', r.id IS NOT NULL))::text \
        FROM {} l LEFT JOIN {} t ON t.id::text = l.task_id::text \
        LEFT JOIN (SELECT DISTINCT task_id::text AS id, worker_id::text AS worker FROM llm_results) r \
            ON r.id = l.task_id::text AND r.worker = l.worker_id::text \
        ORDER BY l.id::text",
        first("leases"),
        first("llm_tasks")
    )
}

/// A result with its artifact, and the last lease of the task that its worker got before it.
fn results_sql() -> String {
    format!(
        "SELECT DISTINCT ON (r.id::text) \
            (to_jsonb(r) || jsonb_build_object('artifact', to_jsonb(a), 'lease', to_jsonb(l), 'has_task', t.id IS NOT NULL))::text \
        FROM {} r LEFT JOIN {} a ON a.id::text = r.artifact_id::text LEFT JOIN {} t ON t.id::text = r.task_id::text \
        LEFT JOIN {} l ON l.task_id::text = r.task_id::text AND l.worker_id::text = r.worker_id::text AND l.started_at <= r.completed_at \
        ORDER BY r.id::text, l.started_at DESC NULLS LAST",
        copies::results(),
        first("runtime_artifacts"),
        first("llm_tasks"),
        first("leases")
    )
}

fn artifacts_alone_sql() -> String {
    format!(
        "SELECT to_jsonb(a)::text FROM {} a WHERE NOT EXISTS (SELECT 1 FROM llm_results r WHERE r.artifact_id::text = a.id::text) ORDER BY a.id::text",
        first("runtime_artifacts")
    )
}

fn audit_sql() -> String {
    format!("SELECT to_jsonb(a)::text FROM {} a ORDER BY a.id::text", first("audit_logs"))
}

pub(super) async fn workers(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    let mut seen = Vec::new();
    sink.refuse_copies(conn, "workers").await?;
    sink.take(conn, "workers", &workers_sql(), |sink, row| match worker(row) {
        Err(why) => Ok(Err(why)),
        Ok(worker) => {
            seen.push((worker.id.clone(), worker.last_seen));
            sink.add(&worker).map(Ok)
        }
    })
    .await?;
    seen.iter().try_for_each(|(worker_id, last_seen)| sink.add(Seen { worker_id, last_seen: *last_seen }))
}

fn worker(row: &Fields) -> Field<Worker> {
    let able = row.object("capabilities")?;
    let Ok(max_concurrency) = able.optional_int("max_concurrency", 1..=MAX_CONCURRENCY) else {
        return row.wrong("capabilities", &format!("has a max_concurrency that is not a whole number from 1 to {MAX_CONCURRENCY}"));
    };
    let Ok(labels) = able.texts("labels") else { return row.wrong("capabilities", "has labels that are not a list of texts") };
    let id = row.name("id")?;
    if id.chars().count() > 128 {
        return row.wrong("id", "is longer than 128 characters");
    }
    let registered_at = row.optional_time("registered_at")?.unwrap_or(0);
    let text = |column: &str, default: &str| Ok::<_, String>(row.optional_text(column)?.unwrap_or_else(|| default.into()));
    Ok(Worker {
        revision: 1,
        url: text("url", "")?,
        status: row.word("status", WorkerStatus::parse)?,
        capabilities: Capabilities {
            claude_cli: able.value("claude_cli")?.is_none() || able.is_true("claude_cli"),
            max_concurrency: max_concurrency.unwrap_or(1),
            labels,
            ..Capabilities::default()
        },
        ip_addrs: row.texts("ip_addrs")?,
        obs_count: row.optional_int("obs_count", 0..=MAX_SAFE)?.unwrap_or(0),
        db_sha: text("db_sha", "")?,
        agent_version: text("agent_version", "unknown")?,
        os_info: text("os_info", "")?,
        install_method: text("install_method", "manual")?,
        last_seen: row.optional_time("last_heartbeat")?.unwrap_or(registered_at),
        ..Worker::new(id, registered_at)
    })
}

pub(super) async fn leases(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    sink.refuse_copies(conn, "leases").await?;
    sink.take(conn, "leases", &leases_sql(), |sink, row| match of_task(sink, row).and_then(|()| lease(row)) {
        Err(why) => Ok(Err(why)),
        Ok(lease) => sink.add(&lease).map(Ok),
    })
    .await
}

fn of_task(sink: &Sink<'_>, row: &Fields) -> Field<()> {
    let is_refused = sink.refused_tasks.contains(&row.text("task_id")?);
    if is_refused { row.wrong("task_id", "is the id of a task that can't be taken") } else { Ok(()) }
}

fn lease(row: &Fields) -> Field<PastLease> {
    let Some(agent_slug) = row.optional_text("agent_slug")? else { return row.wrong("task_id", "is not the id of a task") };
    let (started_at, expires_at) = (row.time("started_at")?, row.time("expires_at")?);
    let last_heartbeat = row.optional_time("last_heartbeat")?.unwrap_or(started_at);
    let status = row.word("status", LeaseStatus::parse)?;
    let is_completed = status == LeaseStatus::Released && row.is_true("has_result");
    Ok(PastLease {
        id: timed(row.uuid("id")?, started_at),
        task_id: row.uuid("task_id")?,
        context_id: row.optional_text("context_id")?.unwrap_or_default(),
        agent_slug,
        worker_id: row.name("worker_id")?,
        started_at,
        ttl_ms: row.optional_int("ttl_seconds", 0..=MAX_SAFE / 1000)?.map_or(expires_at - started_at, |seconds| seconds * 1000).max(0),
        expires_at,
        last_heartbeat,
        // Its task is queued again.
        status: if status == LeaseStatus::Active { LeaseStatus::Failed } else { status },
        ended_at: if status == LeaseStatus::Expired { expires_at } else { last_heartbeat.max(started_at) },
        completed: is_completed,
        reason: None,
        message: None,
        model: None,
        usage: None,
    })
}

pub(super) async fn results(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    sink.refuse_copies(conn, "llm_results").await?;
    sink.take(conn, "llm_results", &results_sql(), |sink, row| match of_task(sink, row).and_then(|()| result(row)) {
        Err(why) => Ok(Err(why)),
        Ok(result) => sink.add(&result).map(Ok),
    })
    .await?;
    sink.refuse_copies(conn, "runtime_artifacts").await?;
    sink.take(conn, "runtime_artifacts", &artifacts_alone_sql(), |_, row| Ok(row.wrong("id", "is not the artifact of a result"))).await
}

/// A result and its artifact are one row here.
fn result(row: &Fields) -> Field<RunResult> {
    if !row.is_true("has_task") {
        return row.wrong("task_id", "is not the id of a task");
    }
    let completed_at = row.time("completed_at")?;
    let (artifact, metrics, lease) = (row.object("artifact")?, row.object("metrics")?, row.object("lease")?);
    let Some(artifact_id) = artifact.optional_uuid("id")? else { return row.wrong("artifact_id", "is not the id of an artifact") };
    if row.int("bloom_artifact_copy", 1..=i64::MAX)? > 1 {
        return row.wrong("artifact_id", "is the id of another result's artifact, too");
    }
    let content = artifact.optional_text("content")?;
    let status = row.word("status", Outcome::parse)?;
    let output = row.optional_text("output")?.or(content.clone());
    if status == Outcome::Success && content.is_some() && content != output {
        return row.wrong("output", "differs from the content of the artifact");
    }
    for column in ["job_id", "url"] {
        if artifact.optional_text(column)?.is_some_and(|text| !text.is_empty()) {
            return row.wrong("artifact_id", &format!("names an artifact with a {column}, which this program does not have"));
        }
    }
    if matches!(artifact.json("entity_refs")?, Value::Array(refs) if !refs.is_empty()) {
        return row.wrong("artifact_id", "names an artifact with entity_refs, which this program does not have");
    }
    let lease_id = lease.optional_uuid("id")?.map_or(Ok(Uuid::nil()), |id| Ok::<_, String>(timed(id, lease.time("started_at")?)))?;
    let of_metrics = |name: &str| {
        metrics
            .optional_int(name, 0..=MAX_SAFE)
            .or_else(|_| row.wrong("metrics", &format!("has a {name} that is not a whole number from 0")))
    };
    Ok(RunResult {
        id: timed(row.uuid("id")?, completed_at),
        artifact_id: timed(artifact_id, completed_at),
        task_id: row.uuid("task_id")?,
        lease_id,
        worker_id: row.text("worker_id")?,
        status,
        output,
        error_message: row.optional_text("error_message")?,
        duration_ms: of_metrics("duration_ms")?.unwrap_or(0),
        tokens_used: of_metrics("tokens_used")?,
        completed_at,
        artifact_type: artifact.optional_text("type")?.unwrap_or_else(|| "LLM_RESULT".into()),
        artifact_tags: artifact.texts("tags")?,
        warnings: Vec::new(),
        object: None,
        branch: None,
        commit_id: None,
    })
}

pub(super) async fn audit(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    sink.refuse_copies(conn, "audit_logs").await?;
    sink.take(conn, "audit_logs", &audit_sql(), |sink, row| match entry(row) {
        Err(why) => Ok(Err(why)),
        Ok(entry) => sink.add(&entry).map(Ok),
    })
    .await
}

fn entry(row: &Fields) -> Field<AuditEntry> {
    let timestamp = row.time("timestamp")?;
    let (entity_type, entity_id) = (row.word("entity_type", EntityType::parse)?, row.text("entity_id")?);
    Ok(AuditEntry {
        id: timed(row.uuid("id")?, timestamp),
        timestamp,
        action: row.word("action", Action::parse)?,
        entity_type,
        actor: row.text("actor")?,
        detail: match row.value("detail")? {
            Some(Value::String(text)) => text.clone(),
            other => other.map(ToString::to_string).unwrap_or_default(),
        },
        request_id: None,
        task_id: (entity_type == EntityType::Task).then(|| Uuid::parse_str(&entity_id).ok()).flatten(),
        worker_id: (entity_type == EntityType::Worker).then(|| entity_id.clone()),
        entity_id,
    })
}
