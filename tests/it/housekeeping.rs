//! What goes by itself, and what is put right, without waiting for it: the test sets the time.

use std::collections::BTreeSet;

use bloom_runtime::core::command::Op;
use bloom_runtime::core::ids::TaskId;
use bloom_runtime::core::task::Status;
use bloom_runtime::store::{Page, UsageBy};
use uuid::Uuid;

use crate::on_both_clocks;
use crate::store::success;
use crate::support::plane::{DAY, Plane, START};

/// No transaction removes more tasks than this.
const AT_ONCE: usize = 200;

async fn cancel(plane: &Plane, tasks: &[TaskId]) {
    for reply in plane.engine.submit_all(tasks.iter().map(|task| Op::Cancel { task: *task }.into()).collect()).await {
        assert!(reply.is_ok(), "{reply:?}");
    }
}

/// The whole audit trail, newest first: ids and times.
async fn trail(plane: &Plane) -> Vec<(Uuid, i64)> {
    let mut entries = Vec::new();
    loop {
        let before = entries.last().map(|(id, _)| *id);
        let page = plane.engine.store().audit(&Page { limit: 1000, before }).await.unwrap();
        if page.is_empty() {
            return entries;
        }
        entries.extend(page.iter().map(|entry| (entry.id, entry.timestamp)));
    }
}

async fn what_is_old_enough_goes_and_nothing_else(on_postgres: bool) {
    let plane = Plane::keeping(on_postgres, 5, 2).await;
    let store = plane.engine.store();
    plane.register("w").await;
    let old = plane.create_many(600, |_| {}).await;
    cancel(&plane, &old).await;
    let unfinished = plane.create(|_| {}).await;
    let ran = plane.create(|_| {}).await;
    plane.engine.lease(ran, Some("w".into()), 300_000, None).await.unwrap();
    plane.engine.submit(success(ran, "done")).await.unwrap();
    plane.pass(DAY);
    // Begun in time, and finished later than the others.
    let young = plane.create_many(3, |_| {}).await;
    cancel(&plane, &young).await;
    plane.has_looked("retention").await;
    let before = trail(&plane).await;
    let later: Vec<_> = before.iter().copied().filter(|(_, at)| *at >= START + DAY).collect();
    assert!(before.len() - later.len() > 1200 && later.len() >= 6, "{} and {}", before.len(), later.len());

    // Two days to the millisecond are not more than two days.
    plane.pass(DAY);
    plane.has_looked("retention").await;
    assert_eq!(trail(&plane).await.iter().filter(|(_, at)| *at == START).count(), before.len() - later.len());
    // Entries are found by their ids, whose time may be some milliseconds late where many are made in one.
    plane.pass(1_000);
    plane.has_looked("retention").await;
    let after = trail(&plane).await;
    assert_eq!(after.iter().filter(|(_, at)| *at <= START).count(), 0);
    assert!(after.ends_with(&later), "younger entries stay");
    assert_eq!(plane.task(old[0]).await.status, Status::Cancelled, "tasks have a time of their own");

    plane.pass(3 * DAY - 1_000);
    plane.has_looked("retention").await;
    assert_eq!(store.task_states(&old).await.unwrap().len(), old.len(), "not more than five days yet");
    let mut changes = plane.engine.subscribe();
    plane.pass(1);
    plane.has_looked("retention").await;
    let mut removed = BTreeSet::new();
    while let Ok(change) = changes.try_recv() {
        assert!(change.removed_tasks.len() <= AT_ONCE, "{} at once", change.removed_tasks.len());
        removed.extend(change.removed_tasks.iter().copied());
    }
    assert_eq!(removed, old.iter().copied().chain([ran]).collect::<BTreeSet<_>>());
    assert!(store.task_states(&old).await.unwrap().is_empty() && store.specs(&old).await.unwrap().is_empty());
    assert!(store.task(ran).await.unwrap().is_none() && store.newest_result(ran).await.unwrap().is_none());
    assert_eq!(store.usage(None, None, UsageBy::Day).await.unwrap()[0].runs, 1, "what it used is still known");
    assert_eq!(store.task_states(&young).await.unwrap().len(), young.len(), "younger ones stay");
    assert_eq!(plane.task(unfinished).await.status, Status::Queued, "unfinished ones stay, however old");
    let counted = plane.engine.stats().tasks_by_status;
    assert_eq!(counted.into_iter().filter(|(_, n)| *n != 0).collect::<Vec<_>>(), [(Status::Queued, 1), (Status::Cancelled, 3)]);
    plane.engine.stop().await;
}

on_both_clocks!(what_is_old_enough_goes_and_nothing_else);
