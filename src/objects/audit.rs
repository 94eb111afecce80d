//! Writes the audit trail as JSON lines, hour by hour.
//!
//! The content of an object is determined by the mark and by entries that no longer change. If a server dies after it has written an object
//! and before it moves the mark, the next server writes the same object again. So every entry is in exactly one object.

use bloom_core::Ms;
use bloom_core::audit::{AuditEntry, COMMIT_WITHIN_MS};
use bloom_database::Maintenance;
use bloom_engine::Error;
use bloom_reconcile::ReconcileContext;
use bloom_store::{AUDIT_FLUSHED, Store};
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::Objects;

/// How long after its end an hour is written. By then every transaction that began in the hour has ended, even if clocks differ.
const SETTLED_MS: Ms = 3 * COMMIT_WITHIN_MS;
const HOUR_MS: Ms = 3_600_000;
/// The most entries of one object.
const ENTRIES: i64 = 10_000;
const OBJECTS_AT_ONCE: usize = 20;

#[derive(Serialize)]
struct Line<'a> {
    id: Uuid,
    timestamp: Ms,
    action: &'a str,
    entity_type: &'a str,
    entity_id: &'a str,
    actor: &'a str,
    detail: &'a str,
    request_id: Option<&'a str>,
    task_id: Option<Uuid>,
    worker_id: Option<&'a str>,
}

/// Writes the completed hours. Returns whether the object store accepts writes.
pub(crate) async fn flush(context: &ReconcileContext, store: &Store, objects: &Objects) -> Result<bool, Error> {
    let settled = (context.engine.clock.now() - SETTLED_MS).div_euclid(HOUR_MS) * HOUR_MS;
    for _ in 0..OBJECTS_AT_ONCE {
        let known = store.object_mark(AUDIT_FLUSHED).await.map_err(super::unreadable)?.unwrap_or_default();
        let after = Uuid::parse_str(&known).unwrap_or_default();
        let mut entries = store.audit_after(after, settled, ENTRIES).await.map_err(super::unreadable)?;
        let Some(hour) = entries.first().map(hour_of) else { break };
        entries.retain(|entry| hour_of(entry) == hour);
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { break };
        let key = key(hour, first.id, last.id);
        if let Err(failure) = objects.write("audit", &key, lines(&entries)?).await {
            tracing::warn!(failure = failure.text, "the audit trail could not be written to the object store; it will be retried");
            context.progress.failed(&failure.text);
            return Ok(objects.probe().await.is_ok());
        }
        let mark = Maintenance::SetMark { name: AUDIT_FLUSHED, known, value: last.id.to_string() };
        context.engine.writers.maintain(mark).await?;
        context.progress.add(1);
    }
    Ok(true)
}

/// The hour in which the id of the entry was made. The id also determines the order of the entries.
fn hour_of(entry: &AuditEntry) -> Ms {
    let (high, _) = entry.id.as_u64_pair();
    i64::try_from(high >> 16).unwrap_or_default() / HOUR_MS
}

fn key(hour: Ms, first: Uuid, last: Uuid) -> String {
    let at = Timestamp::from_millisecond(hour * HOUR_MS).unwrap_or_default();
    format!("audit/{}/{first}-{last}.jsonl", at.strftime("%Y/%m/%d/%H"))
}

fn lines(entries: &[AuditEntry]) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    for entry in entries {
        let line = Line {
            id: entry.id,
            timestamp: entry.timestamp,
            action: entry.action.as_str(),
            entity_type: entry.entity_type.as_str(),
            entity_id: &entry.entity_id,
            actor: &entry.actor,
            detail: &entry.detail,
            request_id: entry.request_id.as_deref(),
            task_id: entry.task_id,
            worker_id: entry.worker_id.as_deref(),
        };
        serde_json::to_writer(&mut text, &line).map_err(|_| Error::Internal)?;
        text.push(b'\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_the_hour() {
        let (first, last) = (Uuid::nil(), Uuid::max());
        assert_eq!(key(19_782 * 24 + 7, first, last), format!("audit/2024/02/29/07/{first}-{last}.jsonl"));
    }
}
