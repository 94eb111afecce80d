//! Workers that serve only some Kubernetes namespaces: which tasks their claims look at, and which of the workers are woken.

use bloom_core::command::{QueueChange, WorkerChange};
use bloom_core::namespace::{KubernetesObject, qualified};
use bloom_test_database::scripted::Call;
use tokio::time::Instant;

use super::*;

async fn serving(engine: &Engine, worker: &str, namespace: &str) {
    let change = WorkerChange { namespaces: Some(vec![namespace.to_owned()]), ..registration(worker, 2) };
    engine.writers.submit(change).await.unwrap();
}

fn of(namespace: &str, uid: u128) -> TaskSpec {
    let object = KubernetesObject { namespace: namespace.into(), name: "o".into(), uid: TaskId::from_u128(uid) };
    TaskSpec { object: Some(object), session: Session::None, ..spec(&qualified(namespace, "c")) }
}

async fn created_in(engine: &Engine, namespace: &str, uids: std::ops::Range<u128>) {
    engine.writers.submit(op::Create { tasks: uids.map(|uid| of(namespace, uid)).collect() }).await.unwrap();
}

/// Checks that a waiting claim gets a task as soon as the change is made, before it would look again by itself.
async fn is_woken(engine: &Engine, worker: &str, change: impl Future<Output = ()>) {
    let (leased, changed_at) = tokio::join!(engine.claims.claim(claim(worker, 10_000)), async {
        tokio::time::sleep(Duration::from_millis(2_300)).await;
        change.await;
        Instant::now()
    });
    assert_eq!(leased.unwrap().len(), 1);
    assert!(changed_at.elapsed() < Duration::from_millis(500), "{:?}", changed_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_claim_gets_the_task_of_its_namespace_from_behind_ten_thousand_others() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    for at in 0..10 {
        created_in(&engine, "crowd", at * 1_000 + 1..(at + 1) * 1_000 + 1).await;
    }
    created_in(&engine, "team", 20_000..20_001).await;
    serving(&engine, "w", "team").await;
    let pages = database.asked(Call::Other);
    let leased = engine.claims.claim(claim("w", 0)).await.unwrap();
    assert_eq!(leased[0].namespace.as_deref(), Some("team"));
    assert!(engine.claims.claim(claim("w", 0)).await.unwrap().is_empty());
    assert!(database.asked(Call::Other) - pages < 12, "{} reads", database.asked(Call::Other) - pages);
    assert!(engine.replica.shown_tasks().len() < 9, "the tasks of others were read");
}

#[tokio::test(start_paused = true)]
async fn new_tasks_wake_the_claims_that_can_have_them() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    serving(&engine, "a", "a").await;
    serving(&engine, "b", "b").await;
    register(&engine, "all").await;
    is_woken(&engine, "a", created_in(&engine, "a", 1..2)).await;
    is_woken(&engine, "all", created_in(&engine, "b", 2..3)).await;
    // A task of another namespace is not for this worker.
    let (leased, ()) = tokio::join!(engine.claims.claim(claim("a", 3_000)), created_in(&engine, "b", 3..4));
    assert!(leased.unwrap().is_empty());
    assert_eq!(engine.claims.claim(claim("b", 0)).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_opened_wakes_the_claims_of_each_namespace() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    // The worker with the most free slots is not the one that may have the task.
    engine.writers.submit(WorkerChange { namespaces: Some(vec!["b".into()]), ..registration("b", 9) }).await.unwrap();
    let set = async |change| {
        engine.writers.submit(op::ChangeQueue { agent_slug: "coder".into(), change }).await.unwrap();
    };
    set(QueueChange::Pause).await;
    created_in(&engine, "a", 1..2).await;
    serving(&engine, "a", "a").await;
    let (_, leased) = tokio::join!(engine.claims.claim(claim("b", 6_000)), async {
        is_woken(&engine, "a", set(QueueChange::Resume)).await;
        true
    });
    assert!(leased);
}

#[tokio::test(start_paused = true)]
async fn closed_queues_are_left_out_in_each_namespace() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    serving(&engine, "w", "team").await;
    created_in(&engine, "team", 1..50).await;
    let open = TaskSpec { agent_slug: "writer".into(), ..of("team", 99) };
    engine.writers.submit(op::Create { tasks: vec![open, TaskSpec { agent_slug: "writer".into(), ..of("other", 98) }] }).await.unwrap();
    engine.writers.submit(op::ChangeQueue { agent_slug: "coder".into(), change: QueueChange::Pause }).await.unwrap();
    let leased = engine.claims.claim(ClaimRequest { max: 2, ..claim("w", 0) }).await.unwrap();
    assert_eq!(leased.iter().map(|task| (&task.agent_slug[..], task.namespace.as_deref())).collect::<Vec<_>>(), [("writer", Some("team"))]);
    assert!(engine.claims.claim(claim("w", 0)).await.unwrap().is_empty());
}
