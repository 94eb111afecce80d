//! Cancelling a task in every state.

use crate::on_both;
use crate::support::*;

on_both! {
    async fn a_queued_task_is_cancelled_at_once(server) {
        let task = server.crew().task().create().await;
        let cancelled = task.cancel().await.ok();
        assert_eq!((&cancelled["id"], &cancelled["status"]), (&json!(task.id), &json!("cancelled")));
        assert_eq!(task.now().await, cancelled);
        server.poke(&format!("llm-tasks/{NO_ID}/cancel")).await.fails(404, "Task not found");
    }

    async fn a_held_task_is_asked_to_end(server) {
        let (task, _) = server.crew().leased_task().await;
        let asked = task.cancel().await.ok();
        assert_eq!((&asked["status"], &asked["cancel_requested"]), (&json!("leased"), &json!(true)));
        assert_eq!(task.cancel().await.ok(), asked, "a second cancel changes nothing");
        task.heartbeat(json!({})).await.ok();
        let asked = task.cancel().await.ok();
        assert_eq!((&asked["status"], &asked["cancel_requested"]), (&json!("running"), &json!(true)));
    }

    async fn a_success_that_arrives_is_kept(server) {
        let (task, _) = server.crew().leased_task().await;
        task.cancel().await.ok();
        let answer = task.succeed("paid for").await;
        assert_eq!(answer["task"]["status"], "completed");
        assert_eq!(server.get(&task.path("/result")).await.ok()["output"], "paid for");
    }

    async fn any_other_end_of_the_lease_cancels(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let held = async || {
            let task = crew.task().create().await;
            let lease = task.lease_to(&worker).await;
            task.cancel().await.ok();
            (task, lease)
        };
        let (task, _) = held().await;
        assert_eq!(task.fail("x").await["task"]["status"], "cancelled");
        let (task, lease) = held().await;
        let retry = lease.complete("error", json!({ "retryable": true, "keep_attempt": true })).await.ok();
        assert_eq!(retry["task"]["status"], "cancelled");
        assert_eq!(task.status().await, "cancelled");
        let (task, lease) = held().await;
        server.post(&task.path("/release"), json!({ "lease_id": lease.id, "reason": "shutdown" })).await.ok();
        assert_eq!(task.status().await, "cancelled");
        let task = crew.task().create().await;
        task.lease_for(&worker, 1).await;
        task.cancel().await.ok();
        task.reaches("cancelled").await;
        let last = crew.task().attempts(1).create().await;
        last.lease_for(&worker, 1).await;
        last.cancel().await.ok();
        last.reaches("cancelled").await;
        let (task, _) = held().await;
        server.delete(&worker.path("")).await.ok();
        assert_eq!(task.status().await, "cancelled");
    }

    async fn a_finished_task_cannot_be_cancelled(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let (task, _) = crew.leased_task().await;
        task.succeed("x").await;
        task.cancel().await.fails(409, "Cannot cancel task with status 'completed'");
        let (task, _) = crew.leased_task().await;
        task.fail("x").await;
        task.cancel().await.fails(409, "Cannot cancel task with status 'failed'");
        let dead = crew.task().attempts(1).create().await;
        dead.lease_for(&worker, 1).await;
        dead.reaches("dead").await;
        dead.cancel().await.fails(409, "Cannot cancel task with status 'dead'");
    }

    async fn a_task_waiting_for_anything_can_be_cancelled(server) {
        let crew = server.crew();
        let first = crew.task().create().await;
        for condition in [json!({ "depends_on": [first.id] }), json!({ "not_before": now_ms() + 3_600_000 }), json!({ "exclusive_key": unique("k") })] {
            let mut task = crew.task();
            for (key, value) in condition.as_object().unwrap() {
                task = task.with(key, value.clone());
            }
            assert_eq!(task.create().await.cancel().await.ok()["status"], "cancelled");
        }
    }
}
