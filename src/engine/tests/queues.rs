//! Paused and limited queues: a replica's view of them, and how its waiting claims learn of changes by other replicas.

use bloom_core::command::QueueChange;
use bloom_core::task::{Outcome, TaskState};
use bloom_test_database::scripted::Call;
use bloom_test_world::world::completion;
use tokio::time::Instant;

use super::*;

async fn two() -> (Engine, ScriptedDatabase, Engine) {
    let here = ScriptedDatabase::default();
    let there = here.beside();
    (engine(&here, 1).await, there.clone(), engine(&there, 2).await)
}

async fn set(engine: &Engine, change: QueueChange) {
    engine.writers.submit(op::ChangeQueue { agent_slug: "coder".into(), change }).await.unwrap();
}

async fn complete(engine: &Engine, task: &TaskState) {
    let lease = task.lease.as_ref().unwrap().id;
    engine.writers.submit(completion(task.id, Some(lease), Outcome::Success)).await.unwrap();
}

/// Checks that a waiting claim gets a task soon after the change, which is made between two of its own checks.
async fn is_woken(engine: &Engine, worker: &str, change: impl Future<Output = ()>) {
    let (leased, changed_at) = tokio::join!(engine.claims.claim(claim_of(worker, 1, 10_000)), async {
        tokio::time::sleep(Duration::from_millis(2_300)).await;
        change.await;
        Instant::now()
    });
    assert_eq!(leased.unwrap().len(), 1);
    assert!(changed_at.elapsed() < Duration::from_millis(500), "{:?}", changed_at.elapsed());
}

fn claim_of(worker: &str, max: i64, wait_ms: i64) -> ClaimRequest {
    ClaimRequest { max, ..claim(worker, wait_ms) }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_has_not_heard_of_a_pause_does_not_try_in_a_loop() {
    let (one, there, other) = two().await;
    register(&other, "w").await;
    read_queue(&other).await;
    for _ in 0..50 {
        created(&other).await;
    }
    let mut feed = there.hold(Call::Feed);
    set(&one, QueueChange::Pause).await;
    feed.is_found().await;
    let loads = there.asked(Call::Load);
    assert_eq!(other.claims.claim(claim_of("w", 1, 900)).await.unwrap(), []);
    let tries = there.asked(Call::Load) - loads;
    // Once at first, and once each time the refusal is forgotten.
    assert!((1..=4).contains(&tries), "{tries} loads");
    feed.let_go();
    set(&one, QueueChange::Resume).await;
    assert_eq!(other.claims.claim(claim_of("w", 1, 10_000)).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_read_of_queues_before_does_not_replace_what_was_read_later() {
    let (one, there, other) = two().await;
    register(&other, "w").await;
    created(&one).await;
    let mut late = there.hold(Call::Queues);
    set(&one, QueueChange::Pause).await;
    late.is_found().await;
    set(&other, QueueChange::Resume).await;
    late.let_go();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(other.claims.claim(claim_of("w", 1, 0)).await.unwrap().len(), 1);
    assert!(other.replica.queues().iter().all(|queue| queue.paused_at.is_none()));
}

#[tokio::test(start_paused = true)]
async fn claims_of_other_replicas_are_woken_before_their_next_check() {
    let (one, _, other) = two().await;
    register(&one, "w").await;
    register(&other, "x").await;
    set(&one, QueueChange::Limit(Some(1))).await;
    for _ in 0..4 {
        created(&one).await;
    }
    let held = one.claims.claim(claim_of("w", 2, 0)).await.unwrap();
    assert_eq!(held.len(), 1);
    is_woken(&other, "x", complete(&one, &held[0])).await;
    is_woken(&other, "x", set(&one, QueueChange::Limit(Some(2)))).await;
    set(&one, QueueChange::Limit(None)).await;
    set(&one, QueueChange::Pause).await;
    register(&other, "y").await;
    is_woken(&other, "y", set(&one, QueueChange::Resume)).await;
}
