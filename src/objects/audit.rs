//! Writes the audit trail as JSON lines, one hour after the other.
//!
//! What an object holds follows from the mark and from entries that do not change any more. A server that dies between the object and the
//! mark is followed by one that writes the same object again, so every entry is in exactly one object.

use bloom_core::Ms;
use bloom_core::audit::AuditEntry;
use bloom_database::Maintenance;
use bloom_engine::Error;
use bloom_reconcile::ReconcileContext;
use bloom_store::{AUDIT_FLUSHED, Store};
use serde::Serialize;
use uuid::Uuid;

use super::Objects;

/// An hour is written this long after its end: by then every batch that began in it has ended.
const SETTLED_MS: Ms = 600_000;
const HOUR_MS: Ms = 3_600_000;
/// Entries of one object.
const ENTRIES: i64 = 10_000;
const OBJECTS_AT_ONCE: usize = 20;

#[derive(Serialize)]
struct Line<'a> {
    id: Uuid,
    timestamp: Ms,
    action: &'a str,
    entity_type: &'a str,
    entity_id: &'a str,
    actor: String,
    detail: &'a str,
    request_id: Option<&'a str>,
    task_id: Option<Uuid>,
    worker_id: Option<&'a str>,
}

/// Writes the hours that are over. Returns whether the object store took them.
pub async fn flush(context: &ReconcileContext, store: &Store, objects: &Objects) -> Result<bool, Error> {
    let settled = (context.engine.clock.now() - SETTLED_MS).div_euclid(HOUR_MS) * HOUR_MS;
    for _ in 0..OBJECTS_AT_ONCE {
        let known = store.object_mark(AUDIT_FLUSHED).await.map_err(super::reconcile::unreadable)?.unwrap_or_default();
        let after = Uuid::parse_str(&known).unwrap_or_default();
        let mut entries = store.audit_after(after, settled, ENTRIES).await.map_err(super::reconcile::unreadable)?;
        let Some(hour) = entries.first().map(hour_of) else { break };
        entries.retain(|entry| hour_of(entry) == hour);
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { break };
        let key = key(hour, first.id, last.id);
        if let Err(failure) = objects.write("audit", &key, lines(&entries)?).await {
            tracing::warn!(failure = failure.text, "the audit trail could not be written to the object store; it will be retried");
            return Ok(false);
        }
        let mark = Maintenance::SetMark { name: AUDIT_FLUSHED, known, value: last.id.to_string() };
        context.engine.writers.maintain(mark).await?;
    }
    Ok(true)
}

/// The hour in which the id of the entry was made: it decides where the entry is in their order.
fn hour_of(entry: &AuditEntry) -> Ms {
    let (high, _) = entry.id.as_u64_pair();
    i64::try_from(high >> 16).unwrap_or_default() / HOUR_MS
}

fn key(hour: Ms, first: Uuid, last: Uuid) -> String {
    let (days, hour) = (hour.div_euclid(24), hour.rem_euclid(24));
    let (year, month, day) = date(days);
    format!("audit/{year:04}/{month:02}/{day:02}/{hour:02}/{first}-{last}.jsonl")
}

/// The date of a number of days since 1970-01-01, in the proleptic Gregorian calendar.
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
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
            actor: entry.actor.to_string(),
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
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(date(20_454), (2026, 1, 1));
        let (first, last) = (Uuid::nil(), Uuid::max());
        assert_eq!(key(19_782 * 24 + 7, first, last), format!("audit/2024/02/29/07/{first}-{last}.jsonl"));
    }
}
