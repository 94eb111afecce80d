//! Another program, such as psql with an open transaction, keeps rows locked. Only commands that need these rows wait.

use std::collections::BTreeMap;

use bloom_core::command::{Op, Reply, Requester};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::op;
use bloom_core::reply;
use bloom_core::task::{Outcome, Session, Status, TaskState};
use bloom_engine::{ClaimRequest, Error};
use bloom_test_world::world::completion;
use sqlx::{Connection, PgConnection};

use crate::support::plane::{Plane, START};
use crate::support::{eventually, run};

async fn lease_to(plane: &Plane, task: TaskId, worker: &str) -> LeaseId {
    let task = plane.engine.lease(task, Some(worker.into()), 60_000, Requester::default()).await.unwrap().task;
    task.lease.unwrap().id
}

async fn seen(plane: &Plane, worker: &str) -> i64 {
    plane.store.worker(worker).await.unwrap().unwrap().last_seen
}

#[test]
fn a_row_that_is_kept_locked_delays_no_other() {
    run(async {
        let plane = Plane::start(true).await;
        for worker in ["holder", "claimer", "locked"] {
            plane.register(worker).await;
        }
        // The first task of each kind is locked.
        let mut pairs: BTreeMap<&str, [TaskId; 2]> = BTreeMap::new();
        for kind in ["leased", "renewed", "ready", "asleep", "dependent"] {
            let parent = if kind == "dependent" { plane.create(|_| {}).await } else { TaskId::nil() };
            let mut pair = [TaskId::nil(); 2];
            for (priority, task) in (0..).zip(&mut pair) {
                *task = plane
                    .create(|spec| {
                        spec.agent_slug = kind.into();
                        spec.priority = 9 - priority;
                        spec.not_before = (kind == "asleep").then_some(START + 60_000);
                        spec.depends_on.extend((kind == "dependent").then_some(parent));
                    })
                    .await;
            }
            if kind == "dependent" {
                pairs.insert("parent", [parent; 2]);
            }
            pairs.insert(kind, pair);
        }
        let parent = pairs["parent"][0];
        let parent_lease = lease_to(&plane, parent, "claimer").await;
        lease_to(&plane, pairs["leased"][0], "holder").await;
        lease_to(&plane, pairs["leased"][1], "holder").await;
        let renewed = [lease_to(&plane, pairs["renewed"][0], "locked").await, lease_to(&plane, pairs["renewed"][1], "locked").await];

        let mut outsider = PgConnection::connect(&plane.url).await.unwrap();
        let locked: Vec<TaskId> = ["leased", "renewed", "ready", "asleep", "dependent"].map(|kind| pairs[kind][0]).to_vec();
        sqlx::raw_sql("BEGIN").execute(&mut outsider).await.unwrap();
        sqlx::query("SELECT 1 FROM task_state WHERE id = ANY($1) FOR UPDATE").bind(&locked).execute(&mut outsider).await.unwrap();
        sqlx::raw_sql("SELECT 1 FROM workers WHERE id = 'locked' FOR UPDATE").execute(&mut outsider).await.unwrap();

        let claim = ClaimRequest {
            worker: "claimer".into(),
            max: 1,
            wait_ms: 0,
            held: None,
            instance: None,
            ttl_ms: 60_000,
            by: Requester::default(),
        };
        let leased = plane.engine.claims.claim(claim.clone()).await.unwrap();
        assert_eq!(leased[0].id, pairs["ready"][1], "the first task that is not locked");
        let renew = Op::RenewLeases(op::RenewLeases { worker: "locked".into(), leases: renewed.to_vec() });
        let Reply::RenewedLeases(reply::RenewedLeases { renewed: done, lost, .. }) = plane.engine.writers.submit(renew).await.unwrap()
        else {
            panic!()
        };
        assert_eq!((done, lost), (vec![renewed[1]], vec![]), "a locked lease is neither renewed nor lost");
        let refused = plane.engine.writers.submit(Op::Cancel(op::Cancel { task: pairs["ready"][0] })).await;
        assert!(matches!(refused, Err(Error::Locked(_))), "{refused:?}");
        plane.engine.writers.submit(Op::Complete(Box::new(completion(parent, Some(parent_lease), Outcome::Success)))).await.unwrap();

        plane.pass(60_000);
        for worker in ["claimer", "holder", "locked"] {
            plane.engine.last_seen.record(worker, None);
        }
        let is_ready = |task: &TaskState| task.is_ready();
        plane.reaches(pairs["leased"][1], "a lease ends beside a locked one", |task| task.status == Status::Queued).await;
        plane.reaches(pairs["asleep"][1], "a task becomes due beside a locked one", is_ready).await;
        plane.reaches(pairs["dependent"][1], "a dependent becomes ready beside a locked one", is_ready).await;
        eventually("`last_seen` is stored beside that of a locked worker", || async {
            (seen(&plane, "holder").await > START).then_some(())
        })
        .await;
        assert_eq!(seen(&plane, "locked").await, START);
        let claimed = plane.engine.claims.claim(claim.clone()).await.unwrap();
        assert!(claimed.iter().all(|task| !locked.contains(&task.id)), "{claimed:?}");

        sqlx::raw_sql("COMMIT").execute(&mut outsider).await.unwrap();
        // After a second, every reconciler runs again.
        plane.pass(1_000);
        plane.reaches(pairs["leased"][0], "the lease that was locked ends", |task| task.status == Status::Queued).await;
        plane.reaches(pairs["asleep"][0], "a task becomes due after the lock", is_ready).await;
        plane.reaches(pairs["dependent"][0], "a dependent becomes ready after the lock", is_ready).await;
        plane.engine.stop().await;
    });
}

/// A transaction of another program that keeps these tasks locked until it commits.
async fn lock(plane: &Plane, tasks: &[TaskId]) -> PgConnection {
    let mut outsider = PgConnection::connect(&plane.url).await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut outsider).await.unwrap();
    sqlx::query("SELECT 1 FROM task_state WHERE id = ANY($1) FOR UPDATE").bind(tasks).execute(&mut outsider).await.unwrap();
    outsider
}

async fn unlock(mut outsider: PgConnection) {
    sqlx::raw_sql("COMMIT").execute(&mut outsider).await.unwrap();
}

#[test]
fn a_dependent_that_was_locked_is_not_forgotten_behind_those_of_later_pages() {
    run(async {
        let plane = Plane::start(true).await;
        plane.register("w").await;
        let parent = plane.create(|_| {}).await;
        let dependents = plane
            .create_many(250, |spec| {
                spec.session = Session::None;
                spec.depends_on.push(parent);
            })
            .await;
        let lease = lease_to(&plane, parent, "w").await;
        let outsider = lock(&plane, &dependents[10..11]).await;
        plane.engine.writers.submit(completion(parent, Some(lease), Outcome::Success)).await.unwrap();
        plane.reaches(dependents[249], "a task of the last page becomes ready", TaskState::is_ready).await;
        assert!(!plane.task(dependents[10]).await.is_ready());
        unlock(outsider).await;
        eventually("the task that was locked becomes ready", || async {
            plane.pass(1_000);
            plane.task(dependents[10]).await.is_ready().then_some(())
        })
        .await;
        plane.engine.stop().await;
    });
}

#[test]
fn a_page_of_locked_rows_hides_none_that_are_due() {
    run(async {
        let plane = Plane::start(true).await;
        let locked = plane
            .create_many(600, |spec| {
                spec.session = Session::None;
                spec.not_before = Some(START + 60_000);
            })
            .await;
        let free = plane.create(|spec| spec.not_before = Some(START + 60_001)).await;
        let outsider = lock(&plane, &locked).await;
        plane.pass(60_001);
        plane.reaches(free, "a task becomes due behind a page of locked ones", TaskState::is_ready).await;
        assert!(!plane.task(locked[0]).await.is_ready());
        unlock(outsider).await;
        plane.pass(1_000);
        plane.reaches(locked[599], "a task becomes due after the lock", TaskState::is_ready).await;
        plane.engine.stop().await;
    });
}

#[test]
fn a_claim_among_many_locked_tasks_comes_to_an_end() {
    run(async {
        let plane = Plane::start(true).await;
        plane.register("w").await;
        let locked = plane.create_many(2_000, |spec| spec.priority = 9).await;
        let free = plane.create(|spec| spec.priority = 0).await;
        let outsider = lock(&plane, &locked).await;
        let claim =
            ClaimRequest { worker: "w".into(), max: 1, wait_ms: 0, held: None, instance: None, ttl_ms: 60_000, by: Requester::default() };
        // Each claim searches further, because tasks that were found locked are hidden for a while.
        let leased =
            eventually("the free task is claimed", || async { plane.engine.claims.claim(claim.clone()).await.unwrap().pop() }).await;
        assert_eq!(leased.id, free);
        unlock(outsider).await;
        plane.engine.stop().await;
    });
}
