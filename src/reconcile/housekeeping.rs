//! What keeps the database small and the next start right.

use std::time::Duration;

use super::{Context, PAGE};
use crate::core::Ms;
use crate::core::command::Op;
use crate::engine::{Engine, Error};
use crate::store::{self, Upkeep};

const DAY_MS: Ms = 24 * 60 * 60 * 1000;
const FOLD_EVERY_MS: Ms = 1_000;
/// Batches stay this long for replicas that follow; one that is further behind reads everything anew.
const BATCHES_KEPT_MS: Ms = 60_000;
const RETAIN_EVERY_MS: Ms = 5_000;
const REMOVE_AT_ONCE: i64 = 200;
const AUDIT_AT_ONCE: i64 = 1_000;
/// Pages of one look; the next look goes on.
const PAGES: usize = 20;
const SERVED_EVERY: Duration = Duration::from_secs(1);
/// So long without a sign of any other replica: there is none.
const OUTAGE: Duration = Duration::from_millis(1_500);
/// So long do workers have to come back after one.
const GRACE_MS: i64 = 10_000;

/// After a time in which no replica served, leases get a little time from now: their workers could not renew them. No lease is ended
/// before this is settled.
pub(super) async fn grace(engine: &Engine) {
    let ready_at = engine.now();
    while !engine.is_stopping() {
        match try_grace(engine, ready_at).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "leases could not be looked at after the start; no lease ends before that"),
        }
        tokio::select! {
            () = tokio::time::sleep(SERVED_EVERY) => {}
            () = engine.stopped() => {}
        }
    }
}

async fn try_grace(engine: &Engine, ready_at: Ms) -> Result<(), store::Error> {
    let store = engine.store();
    if somebody_serves(engine).await? {
        return Ok(());
    }
    let mut after = None;
    loop {
        let page = store.active_tasks(after, PAGE as i64).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.id);
        let tasks = page.iter().map(|task| task.id).collect();
        if engine.submit(Op::Grace { tasks, ready_at, at_least_ms: GRACE_MS }).await.is_err() {
            return Err(store::Error::Unavailable("the leases were not prolonged".into()));
        }
    }
}

/// Whether another replica is there: it notes that every second.
async fn somebody_serves(engine: &Engine) -> Result<bool, store::Error> {
    let store = engine.store();
    if store.kind() == store::Kind::Sqlite {
        return Ok(false);
    }
    let before = store.last_served().await?;
    tokio::select! {
        () = tokio::time::sleep(OUTAGE) => {}
        () = engine.stopped() => {}
    }
    Ok(store.last_served().await? != before)
}

/// Notes every second that somebody serves; on SQLite, keeps the log of writes short.
pub(super) async fn served(engine: Engine) {
    while !engine.is_stopping() {
        let outcome = match engine.store().mark_served().await {
            Ok(()) => engine.store().checkpoint().await.map(drop),
            Err(error) => Err(error),
        };
        engine.metrics().database_up(!outcome.as_ref().is_err_and(store::Error::is_unavailable));
        if let Err(error) = outcome {
            tracing::debug!(%error, "the sign of service was not written");
        }
        tokio::select! {
            () = tokio::time::sleep(SERVED_EVERY) => {}
            () = engine.stopped() => {}
        }
    }
}

pub(super) async fn fold(context: Context) {
    context
        .every("fold", FOLD_EVERY_MS, |context| async move {
            context.engine.upkeep(Upkeep::Fold).await?;
            context.engine.upkeep(Upkeep::PruneBatches { older_than: context.engine.now() - BATCHES_KEPT_MS }).await?;
            Ok(())
        })
        .await;
}

/// Removes finished tasks and old audit entries whose time is over, in small pages.
pub(super) async fn retain(context: Context) {
    context.every("retention", RETAIN_EVERY_MS, retain_once).await;
}

async fn retain_once(context: Context) -> Result<(), Error> {
    let engine = &context.engine;
    let now = engine.now();
    let before = |days: u32| (days > 0).then(|| now - i64::from(days) * DAY_MS);
    for _ in 0..PAGES {
        let finished_before = before(context.options.task_retention_days);
        let done = engine.upkeep(Upkeep::RemoveTasks { finished_before, remove_due_at: now, limit: REMOVE_AT_ONCE }).await?;
        if done.removed.is_empty() {
            break;
        }
    }
    let Some(before) = before(context.options.audit_retention_days) else { return Ok(()) };
    for _ in 0..PAGES {
        if engine.upkeep(Upkeep::PruneAudit { before, limit: AUDIT_AT_ONCE }).await?.rows == 0 {
            break;
        }
    }
    Ok(())
}
