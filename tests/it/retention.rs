//! Retention and the correction of counts, on a clock that the test sets.

use std::collections::BTreeSet;

use bloom_core::command::{Op, Requester};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::Status;
use bloom_engine::Engine;
use bloom_store::{Page, UsageBy, UsageFilter};
use uuid::Uuid;

use crate::on_both_clocks;
use crate::support::direct::{execute, success};
use crate::support::plane::{DAY, Plane, START};
use crate::support::{eventually, run};
use bloom_database::{CountDeltas, Database as _};

/// The maximum number of tasks that one transaction removes.
const AT_ONCE: usize = 200;

async fn cancel(plane: &Plane, tasks: &[TaskId]) {
    for reply in plane.engine.writers.submit_all(tasks.iter().map(|task| Op::Cancel(op::Cancel { task: *task }).into()).collect()).await {
        assert!(reply.is_ok(), "{reply:?}");
    }
}

/// The whole audit trail, newest first: ids and times.
async fn trail(plane: &Plane) -> Vec<(Uuid, i64)> {
    let mut entries = Vec::new();
    loop {
        let before = entries.last().map(|(id, _)| *id);
        let page = plane.store.audit(&bloom_store::AuditFilter::default(), &Page { limit: 1000, before }).await.unwrap();
        if page.is_empty() {
            return entries;
        }
        entries.extend(page.iter().map(|entry| (entry.id, entry.timestamp)));
    }
}

async fn what_is_old_enough_goes_and_nothing_else(on_postgres: bool) {
    let plane = Plane::keeping(on_postgres, 5, 2).await;
    let store = &plane.store;
    plane.register("w").await;
    let old = plane.create_many(600, |_| {}).await;
    cancel(&plane, &old).await;
    let unfinished = plane.create(|_| {}).await;
    let ran = plane.create(|_| {}).await;
    plane.engine.lease(ran, Some("w".into()), 300_000, Requester::default()).await.unwrap();
    plane.engine.writers.submit(success(ran, "done")).await.unwrap();
    plane.pass(DAY);
    // These are created before retention is due, and finish later than the others.
    let young = plane.create_many(3, |_| {}).await;
    cancel(&plane, &young).await;
    plane.has_run("retention").await;
    let before = trail(&plane).await;
    let later: Vec<_> = before.iter().copied().filter(|(_, at)| *at >= START + DAY).collect();
    assert!(before.len() - later.len() > 1200 && later.len() >= 6, "{} and {}", before.len(), later.len());

    // Entries that are exactly two days old are kept. Entries made within one millisecond have slightly rising times.
    plane.pass(DAY);
    plane.has_run("retention").await;
    assert_eq!(trail(&plane).await.iter().filter(|(_, at)| *at < START + 1_000).count(), before.len() - later.len());
    // Entries are selected by their ids, whose times may be some milliseconds late if many were made within one.
    plane.pass(1_000);
    plane.has_run("retention").await;
    let after = trail(&plane).await;
    assert_eq!(after.iter().filter(|(_, at)| *at < START + 1_000).count(), 0);
    // An entry about the worker going offline may have been added meanwhile.
    assert!(later.iter().all(|entry| after.contains(entry)), "younger entries are kept");
    assert_eq!(plane.task(old[0]).await.status, Status::Cancelled, "tasks have a retention of their own");

    plane.pass(3 * DAY - 1_000);
    plane.has_run("retention").await;
    assert_eq!(store.task_states(&old).await.unwrap().len(), old.len(), "the tasks are not older than five days yet");
    let mut changes = plane.engine.replica.subscribe();
    plane.pass(1);
    plane.has_run("retention").await;
    let mut removed = BTreeSet::new();
    while let Ok(change) = changes.try_recv() {
        assert!(change.removed_tasks.len() <= AT_ONCE, "{} tasks in one transaction", change.removed_tasks.len());
        removed.extend(change.removed_tasks.iter().copied());
    }
    assert_eq!(removed, old.iter().copied().chain([ran]).collect::<BTreeSet<_>>());
    assert!(store.task_states(&old).await.unwrap().is_empty() && store.specs(&old).await.unwrap().is_empty());
    assert!(store.task(ran).await.unwrap().is_none() && store.newest_result(ran).await.unwrap().is_none());
    assert_eq!(store.usage(&UsageFilter::default(), &[UsageBy::Day], 9, 0).await.unwrap()[0].sums.runs, 1, "usage outlives its task");
    assert_eq!(store.task_states(&young).await.unwrap().len(), young.len(), "younger tasks are kept");
    assert_eq!(plane.task(unfinished).await.status, Status::Queued, "unfinished tasks are kept at any age");
    assert_eq!(told(&plane.engine), [(Status::Queued, 1), (Status::Cancelled, 3)]);
    plane.engine.stop().await;
}

/// The counts of tasks by status, as the replica reports them.
fn told(engine: &Engine) -> Vec<(Status, i64)> {
    engine.replica.stats().tasks_by_status.into_iter().filter(|(_, n)| *n != 0).collect()
}

fn corrections(plane: &Plane) -> i64 {
    let text = plane.engine.metrics.render();
    text.lines().find_map(|line| line.strip_prefix("bloom_count_corrections_total ")?.parse().ok()).expect("the metric")
}

async fn checked(plane: &Plane) {
    plane.pass_leading(3_600_000).await;
    plane.has_run("counts").await;
}

async fn counts_that_do_not_fit_the_tables_are_put_right(on_postgres: bool) {
    let plane = Plane::start(on_postgres).await;
    let store = &plane.store;
    plane.register("w").await;
    let tasks = plane.create_many(5, |_| {}).await;
    plane.create_many(2, |spec| spec.agent_slug = "other".into()).await;
    cancel(&plane, &tasks[3..]).await;
    plane.engine.lease(tasks[0], Some("w".into()), 300_000, Requester::default()).await.unwrap();
    plane.engine.writers.submit(success(tasks[0], "done")).await.unwrap();
    let right = [(Status::Queued, 4), (Status::Completed, 1), (Status::Cancelled, 2)];
    plane.has_run("compaction").await;
    plane.has_run("counts").await;
    assert_eq!(told(&plane.engine), right);
    checked(&plane).await;
    assert_eq!((told(&plane.engine), corrections(&plane)), (right.to_vec(), 0), "correct counts are not changed");

    // Edits the counts: one is too high, one row is missing, one should not exist, and the number of leases is too low.
    for edit in [
        "UPDATE counts SET n = n + 1000 WHERE agent_slug = 'other' AND status = 'queued'",
        "DELETE FROM counts WHERE agent_slug = 'coder' AND status = 'cancelled'",
        "INSERT INTO counts (agent_slug, priority, status, n) VALUES ('nobody', 3, 'dead', 7)",
        "UPDATE counts SET n = 0 WHERE status = 'lease'",
    ] {
        execute(&plane.url, edit).await;
    }
    assert!(store.counts().await.unwrap().counts.tasks.values().sum::<i64>() > 1000);
    // Commits during the comparison change the counts and the tables alike.
    plane.create_many(2, |_| {}).await;
    checked(&plane).await;
    plane.create(|_| {}).await;
    let right = [(Status::Queued, 7), (Status::Completed, 1), (Status::Cancelled, 2)];
    assert_eq!(corrections(&plane), 4);
    assert_eq!(told(&plane.engine), right, "the counts of this replica were right and stay right");
    let CountDeltas { tasks: counts, leases } = store.counts().await.unwrap().counts;
    let of = |agent: &str, status| counts.get(&(agent.to_owned(), 5, status)).copied().unwrap_or(0);
    assert_eq!((of("coder", Status::Queued), of("other", Status::Queued), of("coder", Status::Cancelled)), (5, 2, 2));
    assert_eq!((counts.values().sum::<i64>(), leases, plane.engine.replica.stats().leases_total), (10, 1, 1));

    // Deletes tasks without changing the counts.
    execute(&plane.url, "DELETE FROM task_state WHERE status = 'cancelled'").await;
    checked(&plane).await;
    let right = [(Status::Queued, 7), (Status::Completed, 1)];
    assert_eq!((told(&plane.engine), corrections(&plane)), (right.to_vec(), 5));
    checked(&plane).await;
    assert_eq!(corrections(&plane), 5, "the correction is made once");
    plane.has_run("compaction").await;
    assert_eq!(store.counts().await.unwrap().counts.tasks.values().sum::<i64>(), 8, "the correction is compacted like other changes");
    plane.engine.stop().await;
}

#[test]
fn other_replicas_hear_of_a_correction() {
    run(async {
        let plane = Plane::start(true).await;
        plane.has_run("counts").await;
        plane.create_many(3, |_| {}).await;
        plane.has_run("compaction").await;
        let before = plane.replica().await;
        execute(&plane.url, "UPDATE counts SET n = n + 40").await;
        let after = plane.replica().await;
        assert_eq!(
            (told(&before), told(&after)),
            (vec![(Status::Queued, 3)], vec![(Status::Queued, 43)]),
            "replicas read nothing but the counts"
        );
        checked(&plane).await;
        // Both replicas must show the right counts. The new tasks show that the commits after the correction have arrived.
        plane.create_many(2, |_| {}).await;
        for engine in [&plane.engine, &before, &after] {
            eventually("the replica shows the right counts", || async { (told(engine) == [(Status::Queued, 5)]).then_some(()) }).await;
        }
        before.stop().await;
        after.stop().await;
        plane.engine.stop().await;
    });
}

on_both_clocks!(what_is_old_enough_goes_and_nothing_else, counts_that_do_not_fit_the_tables_are_put_right);
