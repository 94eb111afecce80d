//! Compares the stored counts with the tables. The program never makes them differ, but a restored backup or a manual edit may.

use std::sync::Arc;

use bloom_core::Ms;
use bloom_database::Maintenance;
use bloom_engine::{Alarm, Error};
use tokio::sync::Mutex;

use super::{RECONCILE_EVERY_MS, ReconcileContext, unreadable};

/// The delay of the first check after a start or a change of leader, and of the next check after a failed correction. It is this long
/// because all clients reconnect after a start.
const SOON_MS: Ms = 60_000;
/// The time between two checks. It is long because a check reads all tasks.
const EVERY_MS: Ms = 3_600_000;

/// When the next check is due, and in which epoch.
#[derive(Default)]
struct NextCheck {
    epoch: Option<i64>,
    at: Ms,
}

pub(super) async fn check(context: ReconcileContext) {
    let due = Arc::new(Mutex::new(NextCheck::default()));
    let alarm = Alarm::default();
    context.run("counts", &alarm, 30 * RECONCILE_EVERY_MS, |context| check_when_due(context, due.clone())).await;
}

async fn check_when_due(context: ReconcileContext, due: Arc<Mutex<NextCheck>>) -> Result<Option<Ms>, Error> {
    let mut due = due.lock().await;
    let engine = &context.engine;
    let (epoch, now) = (context.leadership.epoch(), engine.clock.now());
    let Some(led) = epoch else { return Ok(None) };
    if due.epoch != epoch {
        *due = NextCheck { epoch, at: now + SOON_MS };
    }
    if now < due.at {
        return Ok(Some(due.at));
    }
    // Set before the check, so that a check that fails because it takes too long is not repeated at once.
    due.at = now + EVERY_MS;
    let missing = tokio::select! {
        biased;
        () = engine.background.stopped() => return Ok(None),
        missing = engine.database.count_errors() => missing.map_err(unreadable)?,
    };
    if let Some(((agent, priority, status), n)) = missing.tasks.iter().next() {
        tracing::warn!(
            wrong = missing.len(),
            agent,
            priority,
            %status,
            missing = n,
            "the stored counts of tasks do not match the tables and are corrected; the first one is shown"
        );
    } else if missing.leases != 0 {
        tracing::warn!(missing = missing.leases, "the stored count of leases does not match the table and is corrected");
    }
    if !missing.is_empty() {
        let wrong = missing.len() as u64;
        if let Err(error) = engine.writers.maintain(Maintenance::CorrectCounts { missing, epoch: led }).await {
            due.at = now + SOON_MS;
            return Err(error);
        }
        engine.metrics.counts_corrected(wrong);
        context.progress.add(wrong);
    }
    Ok(Some(due.at))
}
