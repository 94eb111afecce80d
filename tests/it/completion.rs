//! Completions: what is stored, who may complete, late and repeated completions, retries.

use crate::on_both;
use crate::support::*;

on_both! {
    async fn a_success_stores_artifact_and_result(server) {
        let (task, lease) = server.crew().leased_task().await;
        let answer = task.complete(json!({
            "status": "success", "output": "Hello", "metrics": { "duration_ms": 1234, "tokens_used": 56 }, "artifact_tags": ["a", "b"],
        })).await.ok();
        let (done, artifact, result) = (&answer["task"], &answer["artifact"], &answer["result"]);
        assert_eq!(done["status"], "completed");
        assert_eq!((&done["lease_id"], &done["worker_id"]), (&json!(lease.id), &lease.json["worker_id"]), "both are kept");
        assert_eq!(done["failure"], Value::Null);
        assert!(artifact.get("job_id").is_some() && artifact["finalized"].is_boolean(), "{artifact}");
        for (key, value) in [
            ("task_id", json!(task.id)), ("type", json!("LLM_RESULT")), ("url", Value::Null), ("entity_refs", json!([])),
            ("tags", json!(["a", "b"])), ("content", json!("Hello")),
        ] {
            assert_eq!(artifact[key], value, "{key}");
        }
        assert!(artifact["created_at"].is_i64() && result["completed_at"].is_i64());
        for (key, value) in [
            ("task_id", json!(task.id)), ("worker_id", lease.json["worker_id"].clone()), ("artifact_id", artifact["id"].clone()),
            ("status", json!("success")), ("output", json!("Hello")), ("error_message", Value::Null),
            ("metrics", json!({ "duration_ms": 1234, "tokens_used": 56 })),
        ] {
            assert_eq!(result[key], value, "{key}");
        }
        lease.reaches("released").await;
        assert_eq!(server.get(&task.path("/result")).await.ok(), *result);
        let listed = server.get(&format!("artifacts?task_id={}", task.id)).await.ok();
        assert_eq!(listed, json!([artifact]));
        assert_eq!(task.now().await, *done);
    }

    async fn an_error_is_stored_too(server) {
        let (task, lease) = server.crew().leased_task().await;
        let answer = task.complete(json!({
            "status": "error", "output": "half of it", "error_message": "broke", "metrics": { "duration_ms": 0, "tokens_used": null },
            "reason": "bad_output", "artifact_type": "REPORT",
        })).await.ok();
        assert_eq!(answer["task"]["status"], "failed");
        assert_eq!(answer["task"]["lease_id"], json!(lease.id));
        assert_eq!(answer["task"]["failure"]["reason"], "bad_output");
        assert_eq!(answer["task"]["failure"]["message"], "broke");
        assert!(answer["task"]["failure"]["at"].is_i64());
        assert_eq!((&answer["artifact"]["content"], &answer["artifact"]["type"]), (&Value::Null, &json!("REPORT")));
        assert_eq!((&answer["result"]["status"], &answer["result"]["error_message"]), (&json!("error"), &json!("broke")));
        assert_eq!(answer["result"]["metrics"]["duration_ms"], 0);
        lease.reaches("released").await;
    }

    async fn an_error_without_a_reason_has_one_all_the_same(server) {
        let (task, _) = server.crew().leased_task().await;
        let answer = task.fail("no idea").await;
        assert_eq!(answer["task"]["failure"]["reason"], "agent_error");
    }

    async fn only_a_held_task_can_be_completed(server) {
        let said = |status: &str| format!("Task status is '{status}', expected 'leased' or 'running'");
        let good = json!({ "status": "success", "metrics": { "duration_ms": 1 } });
        let crew = server.crew();
        server.post(&format!("llm-tasks/{NO_ID}/complete"), json!({})).await.fails(404, "Task not found");
        let task = crew.task().create().await;
        task.complete(good.clone()).await.fails(409, &said("queued"));
        task.complete(json!({})).await.fails(409, &said("queued"));
        task.cancel().await.ok();
        task.complete(good.clone()).await.fails(409, &said("cancelled"));
        let (task, _) = crew.leased_task().await;
        task.succeed("x").await;
        task.complete(good.clone()).await.fails(409, &said("completed"));
        let (task, _) = crew.leased_task().await;
        task.fail("x").await;
        task.complete(good).await.fails(409, &said("failed"));
    }

    async fn a_completion_is_checked_field_by_field(server) {
        let (task, _) = server.crew().leased_task().await;
        task.complete(json!({})).await.refuses(&["status", "metrics"]);
        let good = json!({ "status": "success", "metrics": { "duration_ms": 1 } });
        for (key, bad) in [
            ("status", json!("done")), ("status", json!(null)), ("output", json!(5)), ("output", json!("a\0")), ("error_message", json!(5)),
            ("metrics", json!({})), ("metrics", json!(null)), ("metrics", json!({ "duration_ms": -1 })), ("metrics", json!({ "duration_ms": 1.5 })),
            ("metrics", json!({ "duration_ms": "1" })), ("metrics", json!({ "duration_ms": 1, "tokens_used": -1 })),
            ("metrics", json!({ "duration_ms": 1, "tokens_used": 1.5 })), ("artifact_type", json!(5)), ("artifact_tags", json!("a")),
            ("artifact_tags", json!([1])), ("reason", json!("because")), ("retryable", json!("yes")), ("retry_at", json!("later")),
            ("keep_attempt", json!(1)), ("usage", json!(5)), ("session_id", json!(5)), ("model", json!(5)),
        ] {
            let mut body = good.clone();
            body[key] = bad.clone();
            let answer = task.complete(body).await;
            assert_eq!(answer.status, 400, "{key}: {bad}: {}", answer.text);
            answer.refuses(&[key]);
        }
        task.complete(good).await.ok();
    }

    async fn null_means_absent_in_a_completion_too(server) {
        let (task, _) = server.crew().leased_task().await;
        let answer = task.complete(json!({
            "status": "success", "output": null, "error_message": null, "metrics": { "duration_ms": 1, "tokens_used": null },
            "artifact_type": null, "artifact_tags": null, "lease_id": null, "worker_id": null, "reason": null, "retryable": null,
            "retry_at": null, "keep_attempt": null, "usage": null, "session_id": null, "model": null,
        })).await.ok();
        assert_eq!((&answer["result"]["output"], &answer["artifact"]["content"]), (&Value::Null, &Value::Null));
        assert_eq!(answer["artifact"]["type"], "LLM_RESULT");
    }

    async fn a_stale_name_changes_nothing(server) {
        let (task, lease) = server.crew().leased_task().await;
        let mut body = json!({ "status": "success", "lease_id": NO_ID, "metrics": { "duration_ms": 1 } });
        task.complete(body.clone()).await.fails(409, &format!("Lease '{NO_ID}' is not the task's active lease"));
        body.as_object_mut().unwrap().remove("lease_id");
        body["worker_id"] = json!("somebody-else");
        task.complete(body).await.error(409);
        assert_eq!(task.status().await, "leased");
        server.get(&task.path("/result")).await.fails(404, "Result not found");
        lease.complete("success", json!({})).await.ok();
    }

    async fn a_completion_may_name_the_worker(server) {
        let (task, lease) = server.crew().leased_task().await;
        let body = json!({ "status": "success", "worker_id": lease.json["worker_id"], "metrics": { "duration_ms": 1 } });
        assert_eq!(task.complete(body).await.ok()["task"]["status"], "completed");
    }

    async fn a_repeat_that_names_its_lease_gets_what_was_stored_first(server) {
        let (task, lease) = server.crew().leased_task().await;
        let first = lease.complete("success", json!({ "output": "first" })).await.ok();
        let again = lease.complete("error", json!({ "output": "second" })).await.ok();
        assert_eq!(first, again);
        assert_eq!(server.get(&format!("artifacts?task_id={}", task.id)).await.ok().as_array().unwrap().len(), 1);
    }

    async fn a_late_completion_counts_while_nobody_else_has_the_task(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let back = crew.task().create().await;
        let lease = back.lease_for(&worker, 1).await;
        let dead = crew.task().attempts(1).create().await;
        let last = dead.lease_for(&worker, 1).await;
        back.reaches("queued").await;
        dead.reaches("dead").await;
        back.complete(json!({ "status": "success", "metrics": { "duration_ms": 1 } })).await.expect(409);
        for (lease, task) in [(lease, back), (last, dead)] {
            let answer = lease.complete("success", json!({ "output": "late" })).await.ok();
            assert_eq!(answer["task"]["status"], "completed");
            assert_eq!(answer["task"]["lease_id"], json!(lease.id));
            assert_eq!(server.get(&task.path("/result")).await.ok()["output"], "late");
            lease.reaches("released").await;
        }
    }

    async fn a_dead_task_stays_dead_when_its_lost_run_is_reported_as_failed(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let usage = json!({ "input_tokens": 1, "output_tokens": 2, "cost_usd": 0.5 });
        for report in [
            json!({ "reason": "worker_lost", "error_message": "killed", "retryable": true, "keep_attempt": true, "usage": usage }),
            json!({ "reason": "agent_error", "error_message": "killed", "usage": usage }),
        ] {
            let dead = crew.task().attempts(1).create().await;
            let next = crew.task().with("depends_on", json!([dead.id])).create().await;
            let lease = dead.lease_for(&worker, 1).await;
            lease.heartbeat().await.ok();
            dead.reaches("dead").await;
            next.reaches("cancelled").await;
            let answer = lease.complete("error", report.clone()).await.ok();
            let now = &answer["task"];
            assert_eq!((&now["status"], &now["failure"]["reason"], &now["usage"]["cost_usd"]), (&json!("dead"), &report["reason"], &json!(0.5)));
            assert_eq!(server.get(&format!("leases?task_id={}", dead.id)).await.ok()[0]["message"], "killed");
            assert_eq!(server.get(&dead.path("/result")).await.ok()["error_message"], "killed");
            assert_eq!(next.status().await, "cancelled");
        }
    }

    async fn a_late_completion_loses_to_a_later_lease(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let task = crew.task().create().await;
        let old = task.lease_for(&worker, 1).await;
        task.reaches("queued").await;
        let new = task.lease_to(&worker).await;
        old.complete("success", json!({ "output": "old" })).await
            .fails(409, &format!("Lease '{}' is not the task's active lease", old.id));
        old.heartbeat().await.expect(409);
        new.complete("success", json!({ "output": "new" })).await.ok();
        old.complete("success", json!({ "output": "old" })).await.expect(409);
        assert_eq!(server.get(&task.path("/result")).await.ok()["output"], "new");
    }

    async fn a_requeued_task_keeps_its_earlier_results(server) {
        let (task, _) = server.crew().leased_task().await;
        task.fail("first").await;
        task.requeue().await.ok();
        assert_eq!(server.get(&task.path("/result")).await.ok()["error_message"], "first");
        let worker = server.task(&task.id).now().await;
        assert_eq!(worker["status"], "queued");
        task.lease(json!({})).await.created();
        task.succeed("second").await;
        assert_eq!(server.get(&task.path("/result")).await.ok()["output"], "second", "the newest result is shown");
        assert_eq!(server.get(&format!("artifacts?task_id={}", task.id)).await.ok().as_array().unwrap().len(), 2);
    }

    async fn a_retryable_error_goes_back_with_backoff_then_ends(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().attempts(2).create().await;
        let lease = task.lease_to(&worker).await;
        let answer = lease.complete("error", json!({ "retryable": true, "reason": "overloaded", "error_message": "busy" })).await.ok();
        assert_eq!(answer["task"]["status"], "queued");
        assert_eq!((&answer["task"]["attempts"], &answer["task"]["lease_id"]), (&json!(1), &Value::Null));
        assert!(answer["task"]["not_before"].as_i64().is_some(), "{}", answer["task"]);
        let again = eventually("the backoff ends", || async {
            let answer = task.lease(json!({ "worker_id": worker.name })).await;
            (answer.status == 201).then(|| answer.json())
        }).await;
        let lease = again["lease"]["id"].clone();
        let body = json!({ "status": "error", "lease_id": lease, "retryable": true, "metrics": { "duration_ms": 1 } });
        let end = task.complete(body).await.ok();
        assert_eq!((&end["task"]["status"], &end["task"]["attempts"]), (&json!("dead"), &json!(2)));
    }

    async fn a_retry_may_be_set_for_a_time_and_cost_no_attempt(server) {
        let (task, lease) = server.crew().leased_task().await;
        let at = now_ms() + 3_600_000;
        let more = json!({ "retryable": true, "retry_at": at, "keep_attempt": true, "reason": "rate_limited" });
        let back = lease.complete("error", more).await.ok()["task"].clone();
        assert_eq!((&back["status"], &back["not_before"]), (&json!("queued"), &json!(at)));
        assert_eq!((&back["attempts"], &back["infra_retries"]), (&json!(0), &json!(1)));
        task.lease(json!({})).await.fails(409, "Task is not ready: not_before");
        assert_eq!(task.waits_for().await, "not_before");
    }

    async fn usage_session_and_model_are_recorded(server) {
        let (task, lease) = server.crew().leased_task().await;
        let usage = json!({ "input_tokens": 100, "output_tokens": 20, "cost_usd": 0.5 });
        lease.complete("error", json!({ "usage": usage, "session_id": "s-1", "model": "opus", "retryable": true, "retry_at": 1 })).await.ok();
        let shown = task.now().await;
        assert_eq!(shown["usage"], usage, "usage of failed attempts counts");
        assert_eq!(shown["session_id"], "s-1");
        let again = eventually("the task can be leased again", || async {
            let answer = task.lease(json!({})).await;
            (answer.status == 201).then(|| answer.json())
        }).await;
        task.complete(json!({ "status": "success", "lease_id": again["lease"]["id"], "usage": usage, "metrics": { "duration_ms": 1 } })).await.ok();
        assert_eq!(task.now().await["usage"], json!({ "input_tokens": 200, "output_tokens": 40, "cost_usd": 1.0 }));
    }

    async fn a_large_output_is_taken_whole(server) {
        let (task, lease) = server.crew().leased_task().await;
        let output = "0123456789abcdef".repeat(15 * 65_536);
        lease.complete("success", json!({ "output": output })).await.ok();
        assert_eq!(server.get(&task.path("/result")).await.ok()["output"], json!(output));
    }

    async fn a_result_of_nothing_is_not_found(server) {
        server.get(&format!("llm-tasks/{NO_ID}/result")).await.expect(404);
        server.get(&server.crew().task().create().await.path("/result")).await.fails(404, "Result not found");
    }
}
