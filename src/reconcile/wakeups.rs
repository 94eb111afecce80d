//! Processes wake-ups that no replica is processing, because the one that made them died or had too many.

use std::collections::HashMap;
use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::command::Rejection;
use bloom_core::ids::TaskId;
use bloom_core::wakeup::WakeupId;
use bloom_engine::{Alarm, Error, OpenWakeup};
use futures_util::future::join_all;
use tokio::sync::Mutex;

use super::{PAGE, PAGE_ROWS, RECONCILE_EVERY_MS, ReconcileContext, unreadable};

/// The maximum number of pages of wake-ups that one run reads.
const PAGES: usize = 20;
/// The maximum number of pages of waiting tasks that one run processes for each wake-up.
const ROUNDS: usize = 4;

pub(super) async fn run(context: ReconcileContext) {
    let alarm = Alarm::default();
    let seen = Arc::new(Mutex::new(Seen::default()));
    context.run("wakeups", &alarm, RECONCILE_EVERY_MS, |context| reconcile(context, seen.clone())).await;
}

/// The wake-ups that the last run found. If one of them has not advanced since, no replica is processing it.
#[derive(Default)]
struct Seen {
    epoch: Option<i64>,
    cursors: HashMap<WakeupId, Option<TaskId>>,
}

async fn reconcile(context: ReconcileContext, seen: Arc<Mutex<Seen>>) -> Result<Option<Ms>, Error> {
    let mut seen = seen.lock().await;
    let Some(epoch) = context.leadership.epoch() else { return Ok(None) };
    // The previous leader may have died, so a new leader processes all wake-ups that it finds.
    let is_first = seen.epoch != Some(epoch);
    let before = std::mem::take(&mut seen.cursors);
    let mut open = Vec::new();
    let mut after = None;
    for _ in 0..PAGES {
        let page = context.engine.database.wakeups(after, PAGE_ROWS).await.map_err(unreadable)?;
        let is_last = page.len() < PAGE;
        after = page.last().map(|wakeup| wakeup.id);
        for wakeup in page {
            seen.cursors.insert(wakeup.id, wakeup.cursor);
            if is_first || before.get(&wakeup.id) == Some(&wakeup.cursor) {
                open.push(OpenWakeup { wakeup, is_whole: true });
            }
        }
        if is_last {
            break;
        }
    }
    seen.epoch = Some(epoch);
    // One page of each wake-up in turn, so that no wake-up waits until another one is finished. The next run finds new wake-ups.
    for _ in 0..ROUNDS {
        // The pages are submitted together, so that they share commits.
        let pages = std::mem::take(&mut open).into_iter().map(|wakeup| context.engine.wakeups.process_page(wakeup, epoch));
        for outcome in join_all(pages).await {
            context.progress.add(u64::from(outcome.is_ok()));
            match outcome {
                Ok(Some(left)) => {
                    seen.cursors.insert(left.wakeup.id, left.wakeup.cursor);
                    open.push(left);
                }
                Ok(None) => {}
                Err(Error::Rejected(Rejection::NotLeader)) => return Ok(context.step_down()),
                Err(error) => return Err(error),
            }
        }
    }
    Ok((!open.is_empty()).then(|| context.engine.clock.now()))
}
