//! Re-evaluates parked tasks that are due: their `not_before` has passed, or their reservation has ended.

use bloom_core::Ms;
use bloom_core::op;
use bloom_engine::Error;

use super::{PAGE, PAGE_ROWS, RECONCILE_EVERY_MS, ReconcileContext, unreadable};

pub(super) async fn run(context: ReconcileContext) {
    let engine = context.engine.clone();
    context.run("task_timers", &engine.alarms.task_due, RECONCILE_EVERY_MS, reconcile).await;
}

async fn reconcile(context: ReconcileContext) -> Result<Option<Ms>, Error> {
    loop {
        let due = context.engine.database.due_tasks(PAGE_ROWS).await.map_err(unreadable)?;
        if due.items.is_empty() {
            return Ok(due.next_at);
        }
        let (found, is_last) = (due.items.len() as u64, due.items.len() < PAGE);
        if context.submit_led([op::Reevaluate { tasks: due.items, progress: None }]).await?.is_none() {
            return Ok(None);
        }
        context.progress.add(found);
        if is_last {
            return Ok(due.next_at);
        }
    }
}
