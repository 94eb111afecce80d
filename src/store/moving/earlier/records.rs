//! Workers, leases, results with their artifacts, audit entries and settings.

use serde_json::Value;
use uuid::Uuid;

use super::fields::{Field, Fields, timed};
use super::sink::Sink;
use crate::conn::Conn;
use crate::error::Error;
use crate::save::{Seen, Setting};
use bloom_core::audit::{Action, AuditEntry, EntityType};
use bloom_core::limits::MAX_SAFE;
use bloom_core::task::{LeaseStatus, Outcome, PastLease, RunResult};
use bloom_core::worker::{Capabilities, MAX_CONCURRENCY, Worker, WorkerStatus};

const WORKERS: &str = "SELECT to_jsonb(w)::text FROM workers w ORDER BY w.id::text";
/// A lease with the agent of its task, and whether its worker has reported a result.
const LEASES: &str = "SELECT (to_jsonb(l) || jsonb_build_object('agent_slug', t.agent_slug, 'has_result', r.id IS NOT NULL))::text \
    FROM leases l LEFT JOIN llm_tasks t ON t.id::text = l.task_id::text \
    LEFT JOIN (SELECT DISTINCT task_id::text AS id, worker_id::text AS worker FROM llm_results) r \
        ON r.id = l.task_id::text AND r.worker = l.worker_id::text \
    ORDER BY l.id::text";
/// A result with its artifact, and the last lease before it that its worker had of the task.
const RESULTS: &str = "SELECT DISTINCT ON (r.id::text) \
        (to_jsonb(r) || jsonb_build_object('artifact', to_jsonb(a), 'lease', to_jsonb(l), 'has_task', t.id IS NOT NULL))::text \
    FROM llm_results r LEFT JOIN runtime_artifacts a ON a.id::text = r.artifact_id::text LEFT JOIN llm_tasks t ON t.id::text = r.task_id::text \
    LEFT JOIN leases l ON l.task_id::text = r.task_id::text AND l.worker_id::text = r.worker_id::text AND l.started_at <= r.completed_at \
    ORDER BY r.id::text, l.started_at DESC NULLS LAST";
const ARTIFACTS_ALONE: &str = "SELECT to_jsonb(a)::text FROM runtime_artifacts a \
    WHERE NOT EXISTS (SELECT 1 FROM llm_results r WHERE r.artifact_id::text = a.id::text) ORDER BY a.id::text";
const AUDIT: &str = "SELECT to_jsonb(a)::text FROM audit_logs a ORDER BY a.id::text";
const SETTINGS: &str = "SELECT to_jsonb(s)::text FROM runtime_settings s ORDER BY s.key";

/// The settings that this program stores, and the names that they may have in the earlier runtime.
const SETTING_NAMES: [(&str, &[&str]); 2] = [
    (bloom_core::decide::MEMBRIDGE_SERVER_URL, &["membridge_server_url"]),
    (bloom_core::decide::MEMBRIDGE_ADMIN_KEY, &["membridge_admin_key", "admin_key"]),
];
/// What the earlier runtime only remembers of its last call.
const FORGOTTEN_SETTINGS: [&str; 4] = ["connected", "connection_status", "last_test", "last_test_at"];

pub(super) async fn workers(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    let mut seen = Vec::new();
    sink.take(conn, "workers", WORKERS, |sink, row| match worker(row) {
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
            claude_cli: able.number("claude_cli").is_none() || able.is_true("claude_cli"),
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
    sink.take(conn, "leases", LEASES, |sink, row| match of_task(sink, row).and_then(|()| lease(row)) {
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
        model: None,
        usage: None,
    })
}

pub(super) async fn results(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    sink.take(conn, "llm_results", RESULTS, |sink, row| match of_task(sink, row).and_then(|()| result(row)) {
        Err(why) => Ok(Err(why)),
        Ok(result) => sink.add(&result).map(Ok),
    })
    .await?;
    sink.take(conn, "runtime_artifacts", ARTIFACTS_ALONE, |_, row| Ok(row.wrong("id", "is not the artifact of a result"))).await
}

/// A result and its artifact are one row here.
fn result(row: &Fields) -> Field<RunResult> {
    if !row.is_true("has_task") {
        return row.wrong("task_id", "is not the id of a task");
    }
    let completed_at = row.time("completed_at")?;
    let (artifact, metrics, lease) = (row.object("artifact")?, row.object("metrics")?, row.object("lease")?);
    let Some(artifact_id) = artifact.optional_uuid("id")? else { return row.wrong("artifact_id", "is not the id of an artifact") };
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
    })
}

pub(super) async fn audit(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    sink.take(conn, "audit_logs", AUDIT, |sink, row| match entry(row) {
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
        detail: match row.number("detail") {
            Some(Value::String(text)) => text.clone(),
            other => other.map(ToString::to_string).unwrap_or_default(),
        },
        request_id: None,
        task_id: (entity_type == EntityType::Task).then(|| Uuid::parse_str(&entity_id).ok()).flatten(),
        worker_id: (entity_type == EntityType::Worker).then(|| entity_id.clone()),
        entity_id,
    })
}

pub(super) async fn settings(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    sink.take(conn, "runtime_settings", SETTINGS, |sink, row| {
        let name = match row.text("key") {
            Ok(name) => name,
            Err(why) => return Ok(Err(why)),
        };
        if FORGOTTEN_SETTINGS.contains(&name.as_str()) {
            return Ok(Ok(()));
        }
        let Some((key, _)) = SETTING_NAMES.iter().find(|(_, names)| names.contains(&name.as_str())) else {
            return Ok(row.wrong("key", "is no setting of this program"));
        };
        match row.text("value") {
            Err(why) => Ok(Err(why)),
            // It is not set.
            Ok(value) if value.is_empty() => Ok(Ok(())),
            Ok(value) => sink.add(Setting { key, value: &value }).map(Ok),
        }
    })
    .await
}
