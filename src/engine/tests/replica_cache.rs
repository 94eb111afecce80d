//! A replica's cache after its own commits and those of others.

use bloom_core::op;
use bloom_core::task::Status;
use bloom_database::Maintenance;
use bloom_test_database::scripted::Call;
use tokio::time::Instant;

use super::*;

async fn two() -> (ScriptedDatabase, Engine, ScriptedDatabase, Engine) {
    let here = ScriptedDatabase::default();
    let there = here.beside();
    let (one, other) = (engine(&here, 1).await, engine(&there, 2).await);
    (here, one, there, other)
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_this_replica_is_known_when_its_call_returns() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    register(&engine, "w").await;
    read_queue(&engine).await;
    let id = created(&engine).await;
    assert_eq!(engine.replica.shown_tasks(), [(id, 1)]);
    let leased = engine.claims.claim(claim("w", 0)).await.unwrap();
    assert_eq!(leased[0].id, id);
    assert!(engine.replica.holds(id, leased[0].lease.as_ref().unwrap().id));
    assert_eq!((engine.replica.active_leases("w"), engine.replica.stats().leases_active), (1, 1));
    assert_cache_is_true(&engine, &database);
}

#[tokio::test(start_paused = true)]
async fn commits_of_others_come_by_the_feed() {
    let (database, one, _, other) = two().await;
    let mut changes = other.replica.subscribe();
    read_queue(&other).await;
    let id = created(&one).await;
    heard(&mut changes, |change| change.tasks.iter().any(|task| task.id == id)).await;
    assert_eq!(other.replica.shown_tasks(), [(id, 1)]);
    one.writers.submit(op::Cancel { task: id }).await.unwrap();
    heard(&mut changes, |change| change.tasks.iter().any(|task| task.status.is_final())).await;
    assert_eq!(other.replica.shown_tasks(), []);
    assert_cache_is_true(&other, &database);
}

#[tokio::test(start_paused = true)]
async fn an_open_claim_gets_what_another_replica_creates() {
    let (_, one, _, other) = two().await;
    register(&other, "w").await;
    let (leased, (id, created_at)) = tokio::join!(other.claims.claim(claim("w", 10_000)), async {
        // At this time the claim is between two of its own checks.
        tokio::time::sleep(Duration::from_millis(2_300)).await;
        (created(&one).await, Instant::now())
    });
    assert_eq!(leased.unwrap()[0].id, id);
    assert!(created_at.elapsed() < Duration::from_millis(500), "the claim is woken before its next check");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_the_feed_brings_late_does_not_replace_a_newer_one_and_is_not_told() {
    let (_, one, there, other) = two().await;
    read_queue(&other).await;
    let mut changes = other.replica.subscribe();
    let mut hold = there.hold(Call::TaskStates);
    let id = created(&one).await;
    hold.is_found().await;
    other.writers.submit(op::Cancel { task: id }).await.unwrap();
    hold.let_go();
    let last = created(&one).await;
    let mut told = Vec::new();
    heard(&mut changes, |change| {
        told.extend(change.tasks.iter().map(|task| (task.id, task.status)));
        change.tasks.iter().any(|task| task.id == last)
    })
    .await;
    assert_eq!(told, [(id, Status::Cancelled), (last, Status::Queued)]);
    assert_eq!(other.replica.shown_tasks(), [(last, 1)]);
    assert_cache_is_true(&other, &there);
}

#[tokio::test(start_paused = true)]
async fn a_page_of_the_queue_that_comes_late_shows_nothing_that_is_over() {
    let (_, one, there, other) = two().await;
    register(&other, "w").await;
    let id = created(&one).await;
    let mut hold = there.hold(Call::ReadyPage);
    let loads = there.asked(Call::Load);
    let (leased, ()) = tokio::join!(other.claims.claim(claim("w", 0)), async {
        hold.is_found().await;
        other.writers.submit(op::Cancel { task: id }).await.unwrap();
        hold.let_go();
    });
    assert_eq!(leased.unwrap(), []);
    assert_eq!(there.asked(Call::Load) - loads, 1, "only the cancellation went to the database");
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_in_the_feed_everything_is_read_anew() {
    let (database, one, there, other) = two().await;
    let mut changes = other.replica.subscribe();
    read_queue(&other).await;
    register(&one, "gone").await;
    let over = created(&one).await;
    heard(&mut changes, |change| !change.tasks.is_empty()).await;
    assert_eq!((other.replica.shown_tasks().len(), other.replica.stats().workers_total), (1, 2));

    there.set_unavailable(true);
    one.writers.submit(op::Cancel { task: over }).await.unwrap();
    one.writers.submit(op::RemoveWorker { worker: "gone".into() }).await.unwrap();
    register(&one, "new").await;
    for _ in 0..3 {
        created(&one).await;
    }
    one.writers.maintain(Maintenance::CompactCounts).await.unwrap();
    one.writers.maintain(Maintenance::PruneBatches { older_than_ms: -1 }).await.unwrap();
    there.set_unavailable(false);

    let change = heard(&mut changes, |change| change.reset).await;
    assert!(change.settings, "settings may have changed as well");
    assert_cache_is_true(&other, &database);
    assert_eq!(other.replica.shown_tasks(), [], "windows are read when they are asked for");
    let leased = other.claims.claim(claim("new", 0)).await.unwrap();
    assert_eq!(leased.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_removed_worker_stays_away_until_its_name_comes_again() {
    let (database, one, there, other) = two().await;
    let mut changes = other.replica.subscribe();
    let mut hold = there.hold(Call::WorkersById);
    register(&one, "w").await;
    hold.is_found().await;
    // The feed's read of the worker is in progress.
    other.writers.submit(op::RemoveWorker { worker: "w".into() }).await.unwrap();
    hold.let_go();
    let change = heard(&mut changes, |change| !change.workers.is_empty() || !change.removed_workers.is_empty()).await;
    assert_eq!((&change.workers[..], &change.removed_workers[..]), (&[][..], &["w".to_owned()][..]), "the older row is not told after it");
    register(&one, "last").await;
    heard(&mut changes, |change| change.workers.iter().any(|worker| worker.id == "last")).await;
    assert_eq!(other.replica.stats().workers_total, 1);

    register(&one, "w").await;
    heard(&mut changes, |change| change.workers.iter().any(|worker| worker.id == "w")).await;
    assert_eq!((other.replica.stats().workers_total, other.replica.worker_url("w")), (2, Some("http://w".into())));

    one.writers.submit(op::RemoveWorker { worker: "w".into() }).await.unwrap();
    let change = heard(&mut changes, |change| !change.removed_workers.is_empty()).await;
    assert_eq!(change.removed_workers, ["w"]);
    assert_cache_is_true(&other, &database);
}

#[tokio::test(start_paused = true)]
async fn tasks_that_maintenance_removes_are_forgotten_everywhere() {
    let (database, one, _, other) = two().await;
    let mut changes = other.replica.subscribe();
    let id = created(&one).await;
    one.writers.submit(op::Cancel { task: id }).await.unwrap();
    let done = one.writers.maintain(Maintenance::RemoveTasks { finished_for_ms: Some(0), limit: 10 }).await.unwrap();
    assert_eq!(done.removed, [id]);
    assert_cache_is_true(&one, &database);
    heard(&mut changes, |change| change.removed_tasks == [id]).await;
    assert_cache_is_true(&other, &database);
    assert_eq!(other.specs.by_id(&[id]).await.unwrap(), []);
}
