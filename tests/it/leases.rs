//! Lease calls, heartbeats, expiry and release.

use crate::on_both;
use crate::support::*;

on_both! {
    async fn a_lease_has_the_documented_shape(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        let task = crew.task().create().await;
        let answer = task.lease(json!({})).await.created();
        let lease = &answer["lease"];
        let (started, expires) = (lease["started_at"].as_i64().unwrap(), lease["expires_at"].as_i64().unwrap());
        assert!((now_ms() - 5000..=now_ms() + 1000).contains(&started));
        assert_eq!(expires - started, 300_000, "the default TTL is 300 s");
        let shown = task.now().await;
        let wanted = json!({
            "id": lease["id"], "task_id": task.id, "worker_id": worker.name, "started_at": started, "expires_at": expires,
            "ttl_seconds": 300, "status": "active", "last_heartbeat": started, "context_id": shown["context_id"],
        });
        assert_eq!(lease, &wanted);
        assert_eq!(answer["worker"]["id"], json!(worker.name));
        assert_eq!(answer["worker"]["active_leases"], 1);
        assert_eq!((&shown["status"], &shown["attempts"]), (&json!("leased"), &json!(1)));
        assert_eq!((&shown["lease_id"], &shown["worker_id"]), (&lease["id"], &json!(worker.name)));
        assert_eq!(shown["waiting"], Value::Null);
    }

    async fn a_task_tells_when_its_lease_began(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let first = task.lease_to(&worker).await;
        assert_eq!(task.now().await["started_at"], first.json["started_at"]);
        server.post(&task.path("/release"), json!({ "lease_id": first.id, "reason": "shutdown" })).await.ok();
        let between = task.now().await;
        assert_eq!((&between["status"], &between["started_at"]), (&json!("queued"), &Value::Null));
        let second = task.lease_to(&worker).await;
        let started = &second.json["started_at"];
        task.succeed("done").await;
        let ended = task.now().await;
        assert_eq!((&ended["lease_id"], &ended["started_at"]), (&json!(second.id), started));
        assert!(ended["finished_at"].as_i64() >= started.as_i64(), "{ended}");
    }

    async fn a_lease_tells_how_its_run_ended(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let handed_back = task.lease_to(&worker).await;
        server.post(&task.path("/release"), json!({ "lease_id": handed_back.id, "reason": "shutdown" })).await.ok();
        let long = "x".repeat(600);
        let failure = json!({ "reason": "timeout", "error_message": long, "retryable": true, "retry_at": 1 });
        task.lease_to(&worker).await.complete("error", failure).await.ok();
        server.patch(&task.path(""), json!({ "not_before": null })).await;
        task.lease_to(&worker).await;
        let ends = async || -> Vec<Value> {
            let leases = server.get(&format!("leases?task_id={}", task.id)).await.ok();
            leases.as_array().expect("leases").iter().map(|lease| json!([lease["outcome"], lease["reason"], lease["message"]])).collect()
        };
        let failed = json!(["error", "timeout", "x".repeat(500)]);
        let interrupted = json!(["interrupted", "worker_lost", "handed back: shutdown"]);
        assert_eq!(ends().await, [json!([null, null, null]), failed.clone(), interrupted.clone()]);
        task.succeed("done").await;
        assert_eq!(ends().await, [json!(["success", null, null]), failed, interrupted]);
        // A run that ends late has its own outcome, no longer that of its worker's silence.
        let late = crew.task().create().await.lease_for(&worker, 1).await;
        late.reaches("expired").await;
        let of_late = async || server.get(&format!("leases?task_id={}", late.task.id)).await.ok()[0].clone();
        let lost = of_late().await;
        assert_eq!((&lost["outcome"], &lost["reason"]), (&json!("interrupted"), &json!("worker_lost")));
        assert_eq!(lost["message"], json!(format!("lease on worker {} expired", worker.name)));
        late.complete("success", json!({ "output": "late" })).await.ok();
        let ended = of_late().await;
        assert_eq!((&ended["outcome"], &ended["reason"], &ended["message"]), (&json!("success"), &Value::Null, &Value::Null));
    }

    async fn a_lease_call_needs_no_body(server) {
        let crew = server.crew();
        crew.worker().slots(3).register().await;
        let task = crew.task().create().await;
        server.poke(&task.path("/lease")).await.created();
        let task = crew.task().create().await;
        task.lease(json!({ "worker_id": null, "ttl_seconds": null })).await.created();
    }

    async fn a_lease_runs_as_long_as_asked(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        for ttl in [1, 86_400] {
            let lease = crew.task().create().await.lease_for(&worker, ttl).await.json;
            assert_eq!(lease["ttl_seconds"], json!(ttl));
            assert_eq!(lease["expires_at"].as_i64().unwrap() - lease["started_at"].as_i64().unwrap(), ttl * 1000);
        }
    }

    async fn checks_come_in_their_order(server) {
        let nonsense = json!({ "ttl_seconds": 0 });
        server.post(&format!("llm-tasks/{NO_ID}/lease"), nonsense.clone()).await.fails(404, "Task not found");
        server.post_bytes(&format!("llm-tasks/{NO_ID}/lease"), "{").await.error(400);
        let crew = server.crew();
        let task = crew.task().create().await;
        for bad in [json!(0), json!(86_401), json!(1.5), json!("60")] {
            task.lease(json!({ "ttl_seconds": bad })).await.refuses(&["ttl_seconds"]);
        }
        task.lease(json!({ "worker_id": 5 })).await.refuses(&["worker_id"]);
        task.lease(json!({})).await.fails(503, "No available worker with free capacity");
        task.lease(json!({ "worker_id": "nobody-of-this-name" })).await.fails(404, "Worker not found");
        let worker = crew.worker().slots(2).register().await;
        task.lease_to(&worker).await;
        task.lease(nonsense).await.fails(409, "Task status is 'leased', expected 'queued'");
        task.lease(json!({ "worker_id": "nobody-of-this-name" })).await.expect(409);
    }

    async fn only_a_queued_task_can_be_leased(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let said = |status: &str| format!("Task status is '{status}', expected 'queued'");
        let task = crew.task().create().await;
        task.lease_to(&worker).await;
        task.lease(json!({})).await.fails(409, &said("leased"));
        task.heartbeat(json!({})).await.ok();
        task.lease(json!({})).await.fails(409, &said("running"));
        task.succeed("x").await;
        task.lease(json!({})).await.fails(409, &said("completed"));
        let (task, _) = crew.leased_task().await;
        task.fail("x").await;
        task.lease(json!({})).await.fails(409, &said("failed"));
        let task = crew.task().create().await;
        task.cancel().await.ok();
        task.lease(json!({})).await.fails(409, &said("cancelled"));
        let task = crew.task().attempts(1).create().await;
        task.lease_for(&worker, 1).await;
        task.reaches("dead").await;
        task.lease(json!({})).await.fails(409, &said("dead"));
    }

    async fn a_heartbeat_makes_the_task_run_and_the_lease_last(server) {
        let (task, lease) = server.crew().leased_task().await;
        let answer = task.heartbeat(json!({})).await.ok();
        assert_eq!(answer["lease"]["id"], json!(lease.id));
        assert_eq!(answer["expires_at"], answer["lease"]["expires_at"]);
        let (heartbeat, expires) = (answer["lease"]["last_heartbeat"].as_i64().unwrap(), answer["expires_at"].as_i64().unwrap());
        assert!(heartbeat >= lease.json["started_at"].as_i64().unwrap());
        assert_eq!(expires - heartbeat, 300_000, "the lease lasts another TTL");
        assert_eq!(task.status().await, "running");
        assert_eq!(task.now().await["attempts"], 1);
        task.heartbeat(json!({ "lease_id": lease.id })).await.ok();
        server.poke(&task.path("/heartbeat")).await.ok();
    }

    async fn a_heartbeat_may_ask_for_the_task(server) {
        let (task, lease) = server.crew().leased_task().await;
        let answer = task.heartbeat(json!({ "lease_id": lease.id, "with_task": true })).await.ok();
        assert_eq!((&answer["lease"]["id"], &answer["task"]), (&json!(lease.id), &task.now().await));
        assert_eq!(task.heartbeat(json!({ "lease_id": lease.id })).await.ok().get("task"), None);
        task.heartbeat(json!({ "lease_id": NO_ID, "with_task": true })).await.error(409);
        task.heartbeat(json!({ "with_task": "yes" })).await.refuses(&["with_task"]);
    }

    async fn a_heartbeat_may_name_its_lease_or_worker(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let lease = task.lease_to(&worker).await;
        task.heartbeat(json!({ "worker_id": worker.name })).await.ok();
        lease.heartbeat().await.ok();
        let said = format!("Lease '{NO_ID}' is not the task's active lease");
        task.heartbeat(json!({ "lease_id": NO_ID })).await.fails(409, &said);
        task.heartbeat(json!({ "worker_id": "somebody-else" })).await.error(409);
        let before = lease.now().await;
        assert_eq!(before, lease.now().await, "refused heartbeats change nothing");
        for bad in [json!({ "lease_id": 1 }), json!({ "lease_id": "no-uuid" })] {
            let answer = task.heartbeat(bad).await;
            assert!(matches!(answer.status, 400 | 409), "{}", answer.text);
        }
    }

    async fn a_heartbeat_without_a_lease_is_not_found(server) {
        let never = "Task or lease not found";
        let over = "Lease not found or already expired";
        server.post(&format!("llm-tasks/{NO_ID}/heartbeat"), json!({})).await.fails(404, never);
        let crew = server.crew();
        crew.task().create().await.heartbeat(json!({})).await.fails(404, never);
        let (task, lease) = crew.leased_task().await;
        task.fail("x").await;
        task.heartbeat(json!({})).await.fails(404, over);
        lease.heartbeat().await.fails(404, over);
        task.heartbeat(json!({ "lease_id": NO_ID })).await.fails(404, over);
        task.requeue().await.ok();
        task.heartbeat(json!({})).await.fails(404, over);
    }

    async fn an_expired_lease_puts_its_task_back(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        let quiet = crew.task().create().await;
        let lease = quiet.lease_for(&worker, 1).await;
        let running = crew.task().create().await;
        let run = running.lease_for(&worker, 1).await;
        running.heartbeat(json!({})).await.ok();
        for (task, lease) in [(&quiet, &lease), (&running, &run)] {
            let back = task.reaches("queued").await;
            assert_eq!((&back["lease_id"], &back["worker_id"], &back["attempts"]), (&Value::Null, &Value::Null, &json!(1)));
            let over = lease.reaches("expired").await;
            let late = back["updated_at"].as_i64().unwrap() - over["expires_at"].as_i64().unwrap();
            assert!((0..900).contains(&late), "expired {late} ms late");
        }
        assert_eq!(worker.now().await["active_leases"], 0);
        lease.heartbeat().await.fails(404, "Lease not found or already expired");
    }

    async fn heartbeats_keep_a_lease_from_expiring(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let lease = task.lease_for(&worker, 1).await;
        let started = lease.json["started_at"].as_i64().unwrap();
        eventually("the lease outlives its first TTL", || async {
            let expires = lease.heartbeat().await.ok()["expires_at"].as_i64().unwrap();
            (expires > started + 2500).then_some(())
        }).await;
        assert_eq!(task.now().await["attempts"], 1);
        assert_eq!(lease.now().await["status"], "active");
    }

    async fn the_last_attempt_that_expires_is_the_end(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().attempts(1).create().await;
        let lease = task.lease_for(&worker, 1).await;
        let dead = task.reaches("dead").await;
        assert_eq!((&dead["lease_id"], &dead["worker_id"]), (&json!(lease.id), &json!(worker.name)), "lease and worker are kept");
        assert_eq!(dead["failure"]["reason"], "worker_lost");
        lease.reaches("expired").await;
    }

    async fn a_task_on_its_second_lease_counts_two_attempts(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().attempts(2).create().await;
        task.lease_for(&worker, 1).await;
        task.reaches("queued").await;
        let second = task.lease_for(&worker, 1).await;
        assert_eq!(task.now().await["attempts"], 2);
        task.reaches("dead").await;
        assert_eq!(task.now().await["lease_id"], json!(second.id));
    }

    async fn a_release_hands_the_task_back_unharmed(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let lease = task.lease_to(&worker).await;
        task.heartbeat(json!({})).await.ok();
        server.post(&task.path("/release"), json!({ "lease_id": NO_ID, "reason": "shutdown" })).await
            .fails(409, &format!("Lease '{NO_ID}' is not the task's active lease"));
        server.post(&task.path("/release"), json!({ "reason": "shutdown" })).await.refuses(&["lease_id"]);
        server.post(&task.path("/release"), json!({ "lease_id": lease.id, "reason": "shutdown" })).await.ok();
        let back = task.now().await;
        assert_eq!((&back["status"], &back["attempts"], &back["infra_retries"]), (&json!("queued"), &json!(0), &json!(1)));
        assert_eq!((&back["lease_id"], &back["worker_id"]), (&Value::Null, &Value::Null));
        lease.reaches("released").await;
        server.post(&format!("llm-tasks/{NO_ID}/release"), json!({ "lease_id": NO_ID, "reason": "x" })).await.expect(404);
        task.lease_to(&worker).await;
    }

    async fn attempts_given_back_are_counted_and_bounded(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        for round in 1..=20 {
            let lease = task.lease_to(&worker).await;
            server.post(&task.path("/release"), json!({ "lease_id": lease.id, "reason": "again" })).await.ok();
            let back = task.now().await;
            assert_eq!((&back["status"], &back["infra_retries"]), (&json!("queued"), &json!(round)));
        }
        let lease = task.lease_to(&worker).await;
        server.post(&task.path("/release"), json!({ "lease_id": lease.id, "reason": "again" })).await.ok();
        let end = task.now().await;
        assert_eq!(end["status"], "dead");
        assert!(end["failure"]["message"].is_string(), "{end}");
    }
}
