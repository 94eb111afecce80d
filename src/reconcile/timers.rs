//! Queued tasks that wait: for their time, and, should a word have been lost, for anything else.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::{Context, PAGE};
use crate::core::Ms;
use crate::core::command::{Op, Rejection};
use crate::core::ids::TaskId;
use crate::engine::{Alarm, Error};
use crate::store;

const PAGE_ROWS: i64 = PAGE as i64;
/// Pause between two pages once all has been looked at after a change of leader.
const RESYNC_PAGE_EVERY_MS: Ms = 1_000;

pub(super) async fn run(context: Context) {
    let engine = context.engine.clone();
    context.drive("not_before", &engine.alarms().task_due, look).await;
}

async fn look(context: Context) -> Result<Option<Ms>, Error> {
    let store = context.engine.store();
    loop {
        let due = store.due_not_before(context.engine.now(), PAGE_ROWS).await.map_err(away)?;
        if due.is_empty() {
            return store.next_not_before().await.map_err(away);
        }
        if !reconsider(&context, due).await? {
            return Ok(None);
        }
    }
}

/// Answers whether this replica still leads.
async fn reconsider(context: &Context, tasks: Vec<TaskId>) -> Result<bool, Error> {
    let Some(command) = context.led(Op::Reconsider { tasks }) else { return Ok(false) };
    match context.engine.submit(command).await {
        Ok(_) => Ok(true),
        Err(Error::Rejected(Rejection::NotLeader)) => {
            context.stands_down();
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn away(error: store::Error) -> Error {
    tracing::warn!(%error, "a reconciler could not read");
    Error::Unavailable
}

/// How far the slow pass over parked tasks has come.
#[derive(Default)]
struct Pass {
    epoch: Option<i64>,
    after: Option<TaskId>,
    /// The first pass of a new leader goes without pauses: its predecessor may have died between a change and its consequence.
    is_first: bool,
}

pub(super) async fn resync(context: Context) {
    let pass = Arc::new(Mutex::new(Pass::default()));
    let alarm = Alarm::default();
    context.drive("resync", &alarm, |context| go_on(context, pass.clone())).await;
}

async fn go_on(context: Context, pass: Arc<Mutex<Pass>>) -> Result<Option<Ms>, Error> {
    let mut pass = pass.lock().await;
    let epoch = context.leadership.epoch();
    if pass.epoch != epoch {
        *pass = Pass { epoch, after: None, is_first: true };
    }
    loop {
        let page = context.engine.store().parked_page(pass.after, PAGE_ROWS).await.map_err(away)?;
        let is_last = page.len() < PAGE;
        pass.after = if is_last { None } else { page.last().copied() };
        if !page.is_empty() && !reconsider(&context, page).await? {
            return Ok(None);
        }
        pass.is_first &= !is_last;
        if !pass.is_first {
            return Ok(Some(context.engine.now() + RESYNC_PAGE_EVERY_MS));
        }
    }
}
