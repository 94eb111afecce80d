//! What keeps a queued task from running: its time, its dependencies, its exclusive key.

use crate::on_both;
use crate::support::*;

on_both! {
    async fn a_task_does_not_start_before_its_time(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let at = now_ms() + 700;
        let task = crew.task().with("not_before", json!(at)).create().await;
        task.lease(json!({})).await.fails(409, "Task is not ready: not_before");
        assert_eq!(task.waits_for().await, "not_before");
        let claimed = worker.claim_within(4, 20).await;
        assert_eq!(claimed[0]["task"]["id"], json!(task.id));
        let started = claimed[0]["lease"]["started_at"].as_i64().unwrap();
        assert!((at..at + 900).contains(&started), "started {} ms late", started - at);
    }

    async fn a_time_that_has_passed_is_no_hindrance(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        crew.task().with("not_before", json!(0)).create().await.lease_to(&worker).await;
    }

    async fn a_task_waits_for_what_it_depends_on(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let (first, second) = (crew.task().create().await, crew.task().create().await);
        let last = crew.task().with("depends_on", json!([first.id, second.id])).create().await;
        last.lease(json!({})).await.fails(409, "Task is not ready: depends_on");
        assert_eq!(last.waits_for().await, "depends_on");
        assert_eq!(worker.claim(4).await.len(), 2);
        first.succeed("x").await;
        assert_eq!(worker.claim(4).await.len(), 0);
        second.succeed("x").await;
        assert_eq!(worker.claim_within(4, 10).await[0]["task"]["id"], json!(last.id));
    }

    async fn what_is_done_already_is_not_waited_for(server) {
        let crew = server.crew();
        let (first, _) = crew.leased_task().await;
        first.succeed("x").await;
        let next = crew.task().with("depends_on", json!([first.id])).create().await;
        next.lease(json!({})).await.created();
    }

    async fn a_dependency_that_ends_otherwise_takes_the_dependents_along(server) {
        let crew = server.crew();
        let (first, _) = crew.leased_task().await;
        let second = crew.task().with("depends_on", json!([first.id])).create().await;
        let third = crew.task().with("depends_on", json!([second.id])).create().await;
        first.fail("x").await;
        for task in [&second, &third] {
            let end = task.reaches("cancelled").await;
            assert_eq!(end["failure"]["reason"], "dependency_failed", "{end}");
            assert!(end["failure"]["at"].is_i64() && end["failure"]["message"].is_string());
        }
    }

    async fn a_cancelled_dependency_counts_as_ended_otherwise(server) {
        let crew = server.crew();
        let first = crew.task().create().await;
        let second = crew.task().with("depends_on", json!([first.id])).create().await;
        first.cancel().await.ok();
        assert_eq!(second.reaches("cancelled").await["failure"]["reason"], "dependency_failed");
        let late = crew.task().with("depends_on", json!([first.id])).create().await;
        assert_eq!(late.reaches("cancelled").await["failure"]["reason"], "dependency_failed");
    }

    async fn a_dependency_that_was_removed_is_not_said_to_have_failed(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let first = crew.task().with("ttl_after_finished_sec", json!(0)).create().await;
        let second = crew.task().with("depends_on", json!([first.id])).create().await;
        second.cancel().await.ok();
        first.lease_to(&worker).await;
        first.succeed("x").await;
        eventually("the dependency is removed", || async {
            (server.get(&first.path("")).await.status == 404).then_some(())
        }).await;
        let told = format!("Cannot requeue it: it depends on task {}, which was removed; submit this task again without it", first.id);
        second.requeue().await.fails(409, &told);
    }

    async fn a_task_is_not_requeued_before_what_it_depends_on(server) {
        let crew = server.crew();
        let first = crew.task().create().await;
        let second = crew.task().with("depends_on", json!([first.id])).create().await;
        first.cancel().await.ok();
        second.reaches("cancelled").await;
        let told = format!("Cannot requeue it: it depends on task {}, which did not complete; requeue that one first", first.id);
        second.requeue().await.fails(409, &told);
        let of_both = json!({ "ids": [second.id, first.id] });
        assert_eq!(server.post("llm-tasks:requeue", of_both).await.ok()["changed"], 2, "together, in their order");
        assert_eq!(second.now().await["status"], "queued");
    }

    async fn an_unknown_dependency_is_refused(server) {
        let crew = server.crew();
        let known = crew.task().create().await;
        let complaint = crew.task().with("depends_on", json!([known.id, NO_ID])).answer().await.refuses(&["depends_on"]);
        assert!(complaint["depends_on"][0].as_str().unwrap().contains(NO_ID), "{complaint}");
    }

    async fn an_exclusive_key_lets_one_run_at_a_time(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let key = json!(unique("key"));
        let mut tasks = Vec::new();
        for _ in 0..3 {
            tasks.push(crew.task().with("exclusive_key", key.clone()).create().await);
        }
        let mut done = Vec::new();
        for round in 0..3 {
            let claimed = worker.claim_within(8, 10).await;
            assert_eq!(claimed.len(), 1, "round {round}");
            let id = claimed[0]["task"]["id"].as_str().unwrap().to_owned();
            let waiting = tasks.iter().filter(|task| task.id != id && !done.contains(&task.id));
            for task in waiting {
                task.lease(json!({})).await.fails(409, "Task is not ready: exclusive_key");
                assert_eq!(task.waits_for().await, "exclusive_key");
            }
            server.task(&id).succeed("x").await;
            done.push(id);
        }
        assert_eq!(done, tasks.iter().map(|task| task.id.clone()).collect::<Vec<_>>(), "the tasks run in order of creation");
    }

    async fn an_expired_lease_gives_the_key_back(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let key = json!(unique("key"));
        let first = crew.task().attempts(1).with("exclusive_key", key.clone()).create().await;
        let second = crew.task().with("exclusive_key", key).create().await;
        first.lease_for(&worker, 1).await;
        second.lease(json!({})).await.expect(409);
        first.reaches("dead").await;
        assert_eq!(worker.claim_within(8, 10).await[0]["task"]["id"], json!(second.id));
    }

    async fn a_lease_call_may_take_a_free_key_out_of_order(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let key = json!(unique("key"));
        let first = crew.task().with("exclusive_key", key.clone()).create().await;
        let second = crew.task().with("exclusive_key", key).create().await;
        let answers = futures_util::future::join_all([&first, &second].map(|task| task.lease(json!({ "worker_id": worker.name })))).await;
        let taken = answers.iter().filter(|answer| answer.status == 201).count();
        assert_eq!(taken, 1, "one of the calls gets the lease: {answers:?}");
    }

    async fn the_reason_for_waiting_is_told(server) {
        let crew = server.crew();
        let task = crew.task().create().await;
        assert_eq!(task.waits_for().await, "no_worker");
        let worker = crew.worker().slots(1).register().await;
        let other = crew.task().create().await;
        other.lease_to(&worker).await;
        assert_eq!(task.waits_for().await, "no_capacity");
        other.succeed("x").await;
        worker.cordon().await;
        assert_eq!(task.waits_for().await, "cordoned");
        let waiting = task.now().await["waiting"].clone();
        assert!(waiting["message"].as_str().is_some_and(|text| !text.is_empty()), "{waiting}");
    }
}
