//! Tokens and costs of runs.

use crate::on_both;
use crate::support::*;

async fn run_once(crew: &Crew<'_>, model: &str, context: &str) {
    let worker = crew.worker().register().await;
    let task = crew.task().context(context).create().await;
    let lease = task.lease_to(&worker).await;
    let usage = json!({ "input_tokens": 100, "output_tokens": 10, "cost_usd": 0.25 });
    lease.complete("success", json!({ "usage": usage, "model": model })).await.ok();
}

/// The row with this key.
fn row(rows: &Value, key: &str) -> Value {
    let rows = rows.as_array().expect("rows");
    let found = rows.iter().find(|row| row.as_object().unwrap().values().any(|value| value == key));
    found.unwrap_or_else(|| panic!("there is no row of {key}: {rows:?}")).clone()
}

on_both! {
    async fn usage_is_summed_by_what_is_asked_for(server) {
        let crew = server.crew();
        let (model, context) = (unique("model"), unique("context"));
        run_once(&crew, &model, &context).await;
        run_once(&crew, &model, &context).await;
        for (by, key) in [("agent_slug", &crew.slug), ("model", &model), ("context_id", &context)] {
            let found = row(&server.get(&format!("usage?by={by}")).await.ok(), key);
            assert_eq!(found["runs"], 2, "{by}: {found}");
            assert_eq!((&found["input_tokens"], &found["output_tokens"], &found["cost_usd"]), (&json!(200), &json!(20), &json!(0.5)), "{by}");
        }
        let by_day = server.get("usage?by=day").await.ok();
        assert!(by_day[0]["runs"].as_i64().unwrap() >= 2, "{by_day}");
        let day = now_ms() / 86_400_000 * 86_400_000;
        let recent = server.get(&format!("usage?by=agent_slug&from={day}&to={}", day + 2 * 86_400_000)).await.ok();
        row(&recent, &crew.slug);
        let older = server.get(&format!("usage?by=agent_slug&to={}", day - 86_400_000)).await.ok();
        assert_eq!(older, json!([]));
    }

    async fn usage_outlives_its_task(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().with("ttl_after_finished_sec", json!(0)).create().await;
        let lease = task.lease_to(&worker).await;
        let usage = json!({ "input_tokens": 7, "output_tokens": 3, "cost_usd": 1.5 });
        lease.complete("error", json!({ "usage": usage, "model": unique("model") })).await.ok();
        eventually("the task is removed", || async { (server.get(&task.path("")).await.status == 404).then_some(()) }).await;
        let found = row(&server.get("usage?by=agent_slug").await.ok(), &crew.slug);
        assert_eq!((&found["runs"], &found["input_tokens"], &found["cost_usd"]), (&json!(1), &json!(7), &json!(1.5)));
    }
}
