//! Requeue: a finished task is queued again.

use crate::liveness::task_ids;
use crate::on_both;
use crate::support::*;

on_both! {
    async fn a_failed_task_starts_over(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        task.lease_to(&worker).await;
        task.fail("x").await;
        let back = task.requeue().await.ok();
        assert_eq!((&back["status"], &back["attempts"]), (&json!("queued"), &json!(0)));
        for key in ["lease_id", "worker_id", "failure", "not_before"] {
            assert_eq!(back[key], Value::Null, "{key}");
        }
        task.lease_to(&worker).await;
    }

    async fn a_dead_task_starts_over(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().attempts(1).create().await;
        task.lease_for(&worker, 1).await;
        task.reaches("dead").await;
        let back = task.requeue().await.ok();
        assert_eq!((&back["status"], &back["attempts"], &back["failure"]), (&json!("queued"), &json!(0), &Value::Null));
        task.lease_to(&worker).await;
    }

    async fn a_task_that_starts_over_goes_before_later_ones_of_its_context(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let context = json!(unique("context"));
        let of_context = |priority: i64| crew.task().attempts(1).with("context_id", context.clone()).with("priority", json!(priority));
        let (first, second) = (of_context(1).create().await, of_context(9).create().await);
        first.lease_to(&worker).await;
        first.fail("x").await;
        assert_ne!(second.waits_for().await, "session", "the task may run");
        first.requeue().await.ok();
        assert_eq!(task_ids(&worker.claim(4).await), [first.id.as_str()], "the earlier task runs first, whatever the priorities");
        first.succeed("x").await;
        assert_eq!(task_ids(&worker.claim(4).await), [second.id.as_str()]);
    }

    async fn a_cancelled_task_starts_over(server) {
        let task = server.crew().task().with("not_before", json!(now_ms() + 3_600_000)).create().await;
        task.cancel().await.ok();
        let back = task.requeue().await.ok();
        assert_eq!((&back["status"], &back["cancel_requested"], &back["not_before"]), (&json!("queued"), &json!(false), &Value::Null));
    }

    async fn only_a_task_that_did_not_succeed_can_start_over(server) {
        server.poke(&format!("llm-tasks/{NO_ID}/requeue")).await.fails(404, "Task not found");
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        task.requeue().await.fails(409, "Cannot requeue task with status 'queued'");
        task.lease_to(&worker).await;
        task.requeue().await.fails(409, "Cannot requeue task with status 'leased'");
        task.heartbeat(json!({})).await.ok();
        task.requeue().await.fails(409, "Cannot requeue task with status 'running'");
        task.succeed("x").await;
        task.requeue().await.fails(409, "Cannot requeue task with status 'completed'");
    }

    async fn a_completion_of_before_the_requeue_does_not_count(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().attempts(1).create().await;
        let lease = task.lease_for(&worker, 1).await;
        task.reaches("dead").await;
        task.requeue().await.ok();
        // The task was queued again by a client, not because of that expiry.
        lease.complete("success", json!({})).await.expect(409);
        assert_eq!(task.status().await, "queued");
    }
}
