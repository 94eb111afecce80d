//! Session tasks of a context run one at a time, in order, on the worker that has the session.

use crate::on_both;
use crate::support::*;

/// The ids of the tasks that a claim delivered.
fn tasks(claimed: &[Value]) -> Vec<String> {
    claimed.iter().map(|entry| entry["task"]["id"].as_str().unwrap().to_owned()).collect()
}

on_both! {
    async fn tasks_of_a_context_run_one_at_a_time_in_order(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let context = unique("context");
        let mut wanted = Vec::new();
        // The later tasks are more urgent, but the order of the context counts.
        for priority in [1, 5, 9] {
            wanted.push(crew.task().context(&context).with("priority", json!(priority)).create().await.id);
        }
        let mut ran = Vec::new();
        for _ in 0..3 {
            let now = tasks(&worker.claim(8).await);
            assert_eq!(now.len(), 1, "one task of the context runs at a time");
            assert_eq!(worker.claim(8).await.len(), 0);
            server.task(&now[0]).succeed("x").await;
            ran.extend(now);
        }
        assert_eq!(ran, wanted);
    }

    async fn a_turn_that_fails_makes_room_for_the_next(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let context = unique("context");
        let first = crew.task().context(&context).create().await;
        let second = crew.task().context(&context).create().await;
        assert_eq!(tasks(&worker.claim(8).await), [first.id.as_str()]);
        first.fail("x").await;
        assert_eq!(tasks(&worker.claim(8).await), [second.id.as_str()]);
    }

    async fn a_cancelled_turn_is_no_hindrance(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let context = unique("context");
        let first = crew.task().context(&context).create().await;
        let second = crew.task().context(&context).create().await;
        first.cancel().await.ok();
        assert_eq!(tasks(&worker.claim_within(8, 10).await), [second.id.as_str()]);
    }

    async fn tasks_without_a_session_run_side_by_side(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let context = unique("context");
        for _ in 0..3 {
            crew.task().context(&context).with("session", json!("none")).create().await;
        }
        assert_eq!(worker.claim(8).await.len(), 3);
    }

    async fn other_contexts_do_not_wait(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let context = unique("context");
        for _ in 0..2 {
            crew.task().context(&context).create().await;
        }
        crew.task().create().await;
        assert_eq!(worker.claim(8).await.len(), 2);
    }

    async fn the_lease_call_is_not_restricted(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let context = unique("context");
        let first = crew.task().context(&context).create().await;
        let second = crew.task().context(&context).create().await;
        first.lease_to(&worker).await;
        second.lease_to(&worker).await;
    }

    async fn the_next_turn_waits_for_the_worker_that_has_the_session(server) {
        let crew = server.crew();
        let (home, other) = (crew.worker().slots(1).register().await, crew.worker().slots(8).register().await);
        let context = unique("context");
        crew.task().context(&context).create().await;
        let first = tasks(&home.claim(1).await);
        server.task(&first[0]).succeed("x").await;
        // Another task takes the only slot of that worker.
        let busy = crew.task().create().await;
        busy.lease_to(&home).await;
        let next = crew.task().context(&context).create().await;
        assert_eq!(other.claim(8).await.len(), 0, "the reservation lasts 30 s");
        assert_eq!(next.waits_for().await, "session_worker");
        busy.succeed("x").await;
        assert_eq!(tasks(&home.claim_within(1, 10).await), [next.id]);
    }

    async fn a_worker_that_lost_the_task_is_not_waited_for(server) {
        let crew = server.crew();
        let (home, other) = (crew.worker().slots(1).register().await, crew.worker().slots(8).register().await);
        let context = unique("context");
        crew.task().context(&context).create().await;
        let first = tasks(&home.claim(1).await);
        server.task(&first[0]).succeed("x").await;
        let next = crew.task().context(&context).create().await;
        // A short lease that is not renewed.
        next.lease_for(&home, 1).await;
        next.reaches("queued").await;
        assert_eq!(tasks(&other.claim_within(8, 5).await), [next.id]);
    }
}

on_both! { alone:
    async fn after_a_while_the_next_turn_goes_elsewhere(database) {
        let server = Server::on(database).env("SESSION_WAIT_SECONDS", 1).start();
        let crew = server.crew();
        let (home, other) = (crew.worker().slots(1).register().await, crew.worker().slots(8).register().await);
        let context = unique("context");
        crew.task().context(&context).create().await;
        let first = tasks(&home.claim(1).await);
        server.task(&first[0]).succeed("x").await;
        crew.task().create().await.lease_to(&home).await;
        let next = crew.task().context(&context).create().await;
        let ready = next.now().await["created_at"].as_i64().unwrap();
        assert_eq!(tasks(&other.claim_within(8, 20).await), [next.id.as_str()]);
        let waited = now_ms() - ready;
        assert!((900..4000).contains(&waited), "{waited} ms");
    }

    async fn an_offline_worker_is_not_waited_for(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let (home, other) = (crew.worker().slots(1).register().await, crew.worker().slots(8).register().await);
        let context = unique("context");
        crew.task().context(&context).create().await;
        let first = tasks(&home.claim(1).await);
        server.task(&first[0]).succeed("x").await;
        home.set_status("offline").await;
        let next = crew.task().context(&context).create().await;
        assert_eq!(tasks(&other.claim_within(8, 5).await), [next.id]);
    }
}
