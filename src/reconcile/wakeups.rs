//! Wake-ups that nobody works off: the replica that made them died, or had too many.

use std::collections::HashMap;
use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::command::Rejection;
use bloom_core::ids::TaskId;
use bloom_core::wakeup::WakeupId;
use bloom_engine::{Alarm, Error};
use tokio::sync::Mutex;

use super::{Context, LOOK_EVERY_MS, PAGE, PAGE_ROWS, unreadable};

/// Pages of one look; the next look goes on.
const PAGES: usize = 20;

pub(super) async fn run(context: Context) {
    let alarm = Alarm::default();
    let seen = Arc::new(Mutex::new(Seen::default()));
    context.drive("wakeups", &alarm, LOOK_EVERY_MS, |context| look(context, seen.clone())).await;
}

/// The wake-ups of the last look: one that has not moved since is nobody's.
#[derive(Default)]
struct Seen {
    epoch: Option<i64>,
    cursors: HashMap<WakeupId, Option<TaskId>>,
}

async fn look(context: Context, seen: Arc<Mutex<Seen>>) -> Result<Option<Ms>, Error> {
    let mut seen = seen.lock().await;
    let Some(epoch) = context.leadership.epoch() else { return Ok(None) };
    // A new leader follows a dead one, perhaps: what it finds is nobody's.
    let is_first = seen.epoch != Some(epoch);
    let before = std::mem::take(&mut seen.cursors);
    let mut after = None;
    for _ in 0..PAGES {
        let page = context.engine.database().wakeups(after, PAGE_ROWS).await.map_err(unreadable)?;
        let is_last = page.len() < PAGE;
        after = page.last().map(|wakeup| wakeup.id);
        for wakeup in page {
            if !is_first && before.get(&wakeup.id) != Some(&wakeup.cursor) {
                seen.cursors.insert(wakeup.id, wakeup.cursor);
                continue;
            }
            match context.engine.drain_wakeup(wakeup, epoch).await {
                Ok(()) => {}
                Err(Error::Rejected(Rejection::NotLeader)) => return Ok(context.stands_down()),
                Err(error) => return Err(error),
            }
        }
        if is_last {
            break;
        }
    }
    seen.epoch = Some(epoch);
    Ok(None)
}
