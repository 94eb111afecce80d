//! Deadlines, on a clock that the test sets.

use bloom_core::command::{Claim, Grace, Holder, Loss, Op, Reply, Requester};
use bloom_core::op;
use bloom_core::reply;
use bloom_core::reply::Due;
use bloom_core::task::{Outcome, Parked, Reason, Status, TaskState};

use bloom_test_world::world::completion;

use crate::on_both_clocks;
use crate::support::plane::{Plane, START};

async fn a_lease_ends_with_its_time(on_postgres: bool) {
    let plane = Plane::start(on_postgres).await;
    plane.register("w").await;
    let id = plane.create(|_| {}).await;
    let task = plane.engine.lease(id, Some("w".into()), 300_000, Requester::default()).await.unwrap().task;
    let lease = task.lease.unwrap();
    assert_eq!(lease.expires_at, START + 300_000);

    plane.pass(299_999);
    plane.engine.writers.submit(Op::Heartbeat(op::Heartbeat { task: id, holder: Holder::default() })).await.unwrap();
    // Without the heartbeat, the lease would have expired by now.
    plane.pass(299_999);
    let due =
        plane.engine.writers.submit(Op::ExpireLease(op::ExpireLease { task: id, lease: lease.id, grace: Grace::default() })).await.unwrap();
    assert!(matches!(due, Reply::Due(Due::Later(at)) if at == START + 299_999 + 300_000), "{due:?}");
    assert_eq!(plane.task(id).await.status, Status::Running);

    plane.pass(1);
    let task = plane.reaches(id, "the lease ends", |task| task.status == Status::Queued).await;
    assert_eq!((task.attempts, task.lease.is_none()), (1, true));

    // The second attempt is the last one. The worker registers again, because it was not seen for long.
    plane.register("w").await;
    plane.engine.lease(id, Some("w".into()), 1_000, Requester::default()).await.unwrap();
    plane.pass(1_000);
    let task = plane.reaches(id, "the last lease ends", |task| task.status.is_final()).await;
    assert_eq!((task.status, task.failure.unwrap().reason), (Status::Dead, Reason::WorkerLost));
    plane.engine.stop().await;
}

async fn a_silent_worker_turns_offline(on_postgres: bool) {
    let plane = Plane::start(on_postgres).await;
    plane.register("w").await;
    plane.pass(60_000);
    let early = plane
        .engine
        .writers
        .submit(Op::MarkOffline(op::MarkOffline {
            worker: "w".into(),
            cause: Loss::Silent { for_ms: 60_000, served_since: 0, has_started: false },
        }))
        .await
        .unwrap();
    assert!(matches!(early, Reply::Due(Due::Later(at)) if at == START + 60_001), "{early:?}");
    plane.shows("w", true).await;
    plane.pass(1);
    plane.shows("w", false).await;
    plane.engine.last_seen.record("w", None);
    plane.shows("w", true).await;
    plane.engine.stop().await;
}

async fn a_task_waits_for_its_time(on_postgres: bool) {
    let plane = Plane::start(on_postgres).await;
    plane.register("w").await;
    let id = plane.create(|spec| spec.not_before = Some(START + 3_600_000)).await;
    assert_eq!(plane.task(id).await.parked, Some(Parked::NotBefore));
    plane.pass(3_599_999);
    plane.engine.writers.submit(Op::Reevaluate(op::Reevaluate { tasks: vec![id], progress: None })).await.unwrap();
    assert_eq!(plane.task(id).await.parked, Some(Parked::NotBefore));
    plane.pass(1);
    plane.reaches(id, "the task becomes due", TaskState::is_ready).await;
    plane.engine.stop().await;
}

async fn a_claimed_run_ends_at_its_limit_whatever_it_says(on_postgres: bool) {
    let plane = Plane::start(on_postgres).await;
    plane.register("w").await;
    let id = plane.create(|_| {}).await;
    let claim = Claim { worker: "w".into(), candidates: vec![id], max: 1, held: None, instance: None, ttl_ms: 300_000 };
    let Reply::Claimed(reply::Claimed { leased, .. }) = plane.engine.writers.submit(Op::Claim(claim)).await.unwrap() else { panic!() };
    // 120 s for the run, and 60 s of slack.
    assert_eq!(leased[0].lease.as_ref().unwrap().expires_at, START + 180_000);
    plane.pass(170_000);
    plane.engine.writers.submit(Op::Heartbeat(op::Heartbeat { task: id, holder: Holder::default() })).await.unwrap();
    plane.pass(10_000);
    plane.reaches(id, "the lease ends at its hard end", |task| task.status == Status::Queued).await;

    // A late completion is accepted.
    let lease = leased[0].lease.as_ref().unwrap().id;
    let completion = completion(id, Some(lease), Outcome::Success);
    plane.engine.writers.submit(Op::Complete(Box::new(completion))).await.unwrap();
    assert_eq!(plane.task(id).await.status, Status::Completed);
    plane.engine.stop().await;
}

on_both_clocks!(
    a_lease_ends_with_its_time,
    a_silent_worker_turns_offline,
    a_task_waits_for_its_time,
    a_claimed_run_ends_at_its_limit_whatever_it_says,
);
