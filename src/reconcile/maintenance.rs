//! Keeps the database small: compacts counts and removes old rows, in small pages.

use bloom_core::{DAY_MS, Ms};
use bloom_database::Maintenance;
use bloom_engine::Error;

use super::{RECONCILE_EVERY_MS, ReconcileContext};

/// How long batches are kept for other replicas. A replica that is further behind rebuilds its cache.
const BATCHES_KEPT_MS: Ms = 60_000;
const RETAIN_EVERY_MS: Ms = 5_000;
const REMOVE_AT_ONCE: i64 = 200;
const AUDIT_AT_ONCE: i64 = 1_000;
/// The maximum number of pages per run. The next run continues.
const PAGES: usize = 20;

pub(super) async fn compact(context: ReconcileContext) {
    context
        .every("compaction", RECONCILE_EVERY_MS, |context| async move {
            context.engine.writers.maintain(Maintenance::CompactCounts).await?;
            let pruned = context.engine.writers.maintain(Maintenance::PruneBatches { older_than_ms: BATCHES_KEPT_MS }).await?;
            context.progress.add(pruned.rows);
            Ok::<_, Error>(())
        })
        .await;
}

/// Removes finished tasks, files and audit entries whose retention period has passed.
pub(super) async fn retain(context: ReconcileContext) {
    context.every("retention", RETAIN_EVERY_MS, retain_once).await;
}

/// Does each of the three removals even if another one fails.
async fn retain_once(context: ReconcileContext) -> Result<(), Error> {
    let tasks = remove_tasks(&context).await;
    let files = remove_files(&context).await;
    prune_audit(&context).await.and(tasks).and(files)
}

fn days(days: u32) -> Option<Ms> {
    (days > 0).then(|| i64::from(days) * DAY_MS)
}

async fn remove_tasks(ReconcileContext { engine, options, progress, .. }: &ReconcileContext) -> Result<(), Error> {
    let finished_for_ms = days(options.task_retention_days);
    for _ in 0..PAGES {
        let removed = engine.writers.maintain(Maintenance::RemoveTasks { finished_for_ms, limit: REMOVE_AT_ONCE }).await?.removed;
        if removed.is_empty() {
            break;
        }
        progress.add(removed.len() as u64);
    }
    Ok(())
}

async fn remove_files(ReconcileContext { engine, progress, .. }: &ReconcileContext) -> Result<(), Error> {
    for _ in 0..PAGES {
        let removed = engine.writers.maintain(Maintenance::RemoveFiles { limit: REMOVE_AT_ONCE }).await?.rows;
        if removed == 0 {
            break;
        }
        progress.add(removed);
    }
    Ok(())
}

async fn prune_audit(ReconcileContext { engine, options, progress, .. }: &ReconcileContext) -> Result<(), Error> {
    let Some(older_than_ms) = days(options.audit_retention_days) else { return Ok(()) };
    for _ in 0..PAGES {
        let job = Maintenance::PruneAudit { older_than_ms, limit: AUDIT_AT_ONCE, only_flushed: options.audit_is_flushed };
        let removed = engine.writers.maintain(job).await?.rows;
        if removed == 0 {
            break;
        }
        progress.add(removed);
    }
    Ok(())
}
