//! Marks workers as lost if they have not been seen for too long.

use std::sync::{Arc, OnceLock};

use bloom_core::Ms;
use bloom_core::command::Loss;
use bloom_core::op;
use bloom_core::reply::Due;
use bloom_engine::Error;

use super::{PAGE_ROWS, RECONCILE_EVERY_MS, ReconcileContext, unreadable};

/// The number of runs per time limit. This is enough because the next deadline is known, and a worker that appears later is due a whole
/// time limit later.
const RUNS_PER_LIMIT: i64 = 10;

pub(super) async fn run(context: ReconcileContext) {
    let engine = context.engine.clone();
    let every_ms = (context.options.worker_offline_after_ms / RUNS_PER_LIMIT).max(RECONCILE_EVERY_MS);
    let first = Arc::new(OnceLock::new());
    context.run("worker_liveness", &engine.alarms.worker_silent, every_ms, |context| reconcile(context, first.clone())).await;
}

/// `first` is when service had resumed, according to the first run of this process.
async fn reconcile(context: ReconcileContext, first: Arc<OnceLock<Ms>>) -> Result<Option<Ms>, Error> {
    let engine = &context.engine;
    let silent_for_ms = context.options.worker_offline_after_ms;
    let due = engine.database.silent_workers(silent_for_ms, PAGE_ROWS).await.map_err(unreadable)?;
    // No worker could be seen while no replica served, or when the clock stepped. The exception is the start of this process: workers that
    // had not been seen for that long before it are not shown as online until they are seen.
    let served_since = match due.items.is_empty() && first.get().is_some() {
        true => 0,
        false => engine.database.mark_served().await.map_err(unreadable)?.resumed_at,
    };
    let has_started = *first.get_or_init(|| served_since) == served_since;
    let mut next = due.next_at;
    let mark = |worker| op::MarkOffline { worker, cause: Loss::Silent { for_ms: silent_for_ms, served_since, has_started } };
    let Some(replies) = context.submit_led(due.items.into_iter().map(mark)).await? else { return Ok(None) };
    for reply in replies {
        match reply {
            Due::Later(at) => next = Some(next.map_or(at, |next| next.min(at))),
            Due::Done => context.progress.add(1),
        }
    }
    Ok(next)
}
