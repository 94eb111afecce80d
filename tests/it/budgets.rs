//! Budgets: what all attempts of a task may cost together.

use crate::on_both;
use crate::support::*;

fn used(cost_usd: f64) -> Value {
    json!({ "input_tokens": 100, "output_tokens": 20, "cost_usd": cost_usd })
}

/// The end of an attempt that may be repeated at once.
fn again(usage: Value) -> Value {
    json!({ "reason": "timeout", "error_message": "too slow", "retryable": true, "retry_at": 1, "usage": usage })
}

on_both! {
    async fn each_attempt_gets_what_the_earlier_ones_left(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        let policy = json!({ "timeout_sec": 60, "budget": 0.5 });
        let task = crew.task().with("policy", policy).create().await;
        let mut ends = vec![];
        for (left, cost) in [(0.5, 0.2), (0.3, 0.2), (0.1, 0.2)] {
            let claimed = worker.claim(1).await;
            let lease = &claimed[0]["lease"];
            assert_eq!((&lease["budget_left"], &claimed[0]["task"]["policy"]["budget"]), (&json!(left), &json!(0.5)), "{claimed:?}");
            let renewed = task.heartbeat(json!({ "lease_id": lease["id"], "with_task": true })).await.ok();
            assert_eq!(renewed["lease"]["budget_left"], json!(left), "a pushed agent asks for it");
            let mut end = again(used(cost));
            end.as_object_mut().unwrap().extend([
                ("status".to_owned(), json!("error")), ("lease_id".to_owned(), lease["id"].clone()),
                ("metrics".to_owned(), json!({ "duration_ms": 1 })),
            ]);
            ends.push(task.complete(end).await.ok()["task"].clone());
        }
        assert_eq!(ends.iter().map(|end| end["status"].clone()).collect::<Vec<_>>(), [json!("queued"), json!("queued"), json!("dead")]);
        assert_eq!((&ends[2]["attempts"], &ends[2]["failure"]["reason"]), (&json!(3), &json!("budget_exceeded")));
        let message = ends[2]["failure"]["message"].as_str().unwrap();
        assert!(message.contains("cost 0.6000 USD") && message.contains("budget of 0.5000 USD; the last one: timeout: too slow"), "{message}");

        task.requeue().await.ok();
        let claimed = worker.claim(1).await;
        assert_eq!(claimed[0]["lease"]["budget_left"], json!(0.5), "a requeued task has its whole budget");
        let free = crew.task().create().await;
        let claimed = worker.claim(1).await;
        assert_eq!((claimed[0]["task"]["id"].as_str(), &claimed[0]["lease"]["budget_left"]), (Some(free.id.as_str()), &Value::Null));
    }

    async fn estimates_are_marked_wherever_the_cost_is_shown(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().with("ttl_after_finished_sec", json!(2)).create().await;
        let first = task.lease_to(&worker).await;
        let mut estimated = used(0.25);
        estimated["cost_estimated"] = json!(true);
        first.complete("error", again(estimated.clone())).await.ok();
        let second = eventually("the task can be leased again", || async {
            let answer = task.lease(json!({})).await;
            (answer.status == 201).then(|| answer.json()["lease"]["id"].clone())
        }).await;
        task.complete(json!({ "status": "success", "lease_id": second, "usage": used(0.25), "metrics": { "duration_ms": 1 } })).await.ok();
        assert_eq!(task.now().await["usage"], json!({ "input_tokens": 200, "output_tokens": 40, "cost_usd": 0.5, "cost_estimated": true }));
        let leases = server.get(&format!("leases?task_id={}", task.id)).await.ok();
        let marks: Vec<&Value> = leases.as_array().unwrap().iter().map(|lease| &lease["usage"]["cost_estimated"]).collect();
        assert_eq!(marks, [&Value::Null, &json!(true)], "newest first: {leases}");
        let by_agent = async || {
            let rows = server.get("usage?by=agent_slug").await.ok();
            rows.as_array().unwrap().iter().find(|row| row["key"] == json!(crew.slug)).cloned()
        };
        let expected = json!({
            "key": crew.slug, "keys": { "agent_slug": crew.slug }, "runs": 2, "input_tokens": 200, "output_tokens": 40, "cost_usd": 0.5, "cost_estimated": true,
        });
        assert_eq!(by_agent().await, Some(expected.clone()));
        eventually("the task is removed", || async { (server.get(&task.path("")).await.status == 404).then_some(()) }).await;
        assert_eq!(by_agent().await, Some(expected), "the mark outlives the task");
    }

    async fn a_lost_run_costs_what_it_cost(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let lost = task.lease_for(&worker, 1).await;
        eventually("the lease expires", || async { (task.status().await == "queued").then_some(()) }).await;
        task.lease_to(&worker).await;
        let model = unique("model");
        let end = json!({ "usage": used(0.5), "model": model });
        for _ in 0..2 {
            let refused = lost.complete("error", end.clone()).await.error(409);
            assert!(refused.ends_with("is not the task's active lease"), "{refused}");
        }
        let one = json!({ "task_id": task.id, "lease_id": lost.id, "status": "error", "usage": used(0.5), "metrics": { "duration_ms": 1 } });
        let many = server.post(&worker.path("/complete"), json!({ "completions": [one] })).await.ok();
        assert_eq!(many["results"][0]["status"], json!(409), "{many}");
        let now = task.now().await;
        assert_eq!((&now["status"], &now["usage"]), (&json!("leased"), &used(0.5)), "it counts once");
        let rows = server.get("usage?by=model").await.ok();
        let row = rows.as_array().unwrap().iter().find(|row| row["key"] == json!(model)).cloned().expect("the model");
        assert_eq!((&row["runs"], &row["cost_usd"]), (&json!(1), &json!(0.5)));
    }
}
