//! Tokens and costs of runs.

use crate::keys::{ADMIN, keyed, with_new_key};
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
        let now = now_ms();
        for (from, to) in [(now, now), (now, now - 1)] {
            let within = server.get(&format!("usage?by=agent_slug&agent_slug={}&from={from}&to={to}", crew.slug)).await.ok();
            assert_eq!(within, json!([]), "no time is between {from} and {to}");
        }
    }

    async fn usage_comes_in_pages(server) {
        let crew = server.crew();
        let contexts = ["a", "b", "c"].map(unique);
        for context in &contexts {
            run_once(&crew, "m", context).await;
        }
        let mut path = Some(format!("usage?by=context_id&limit=2&agent_slug={}", crew.slug));
        let mut keys = Vec::new();
        while let Some(page) = path.take() {
            let answer = server.get(&page).await;
            path = answer.next_page();
            let rows = answer.ok();
            keys.push(rows.as_array().expect("rows").iter().map(|row| row["key"].as_str().expect("a key").to_owned()).collect::<Vec<_>>());
        }
        assert_eq!(keys, [&contexts[..2], &contexts[2..]]);
        for (wrong, field) in [
            ("by=moon", "by"), ("by=label:", "by"), ("by=day,day", "by"), ("by=day,model,project", "by"), ("cursor=x", "cursor"),
            ("label=team", "label"), ("owner=ci", "query"),
        ] {
            server.get(&format!("usage?{wrong}")).await.refuses(&[field]);
        }
    }
}

on_both! { alone:
    async fn usage_is_told_by_project_worker_creator_and_label_also_of_removed_tasks(database) {
        let running = keyed(database);
        let server = running.with_key(ADMIN);
        let (name, project) = ("team", unique("project"));
        let submitter = with_new_key(&server, &running, name, "submit", json!({})).await;
        server.post("projects", json!({ "name": project, "repo_url": "https://git.example/docs.git" })).await.created();
        let crew = server.crew();
        let worker = crew.worker().able("git", json!(true)).register().await;
        let run = |team: &'static str, ttl: Value| {
            let (server, crew, worker, submitter, project) = (&server, &crew, &worker, &submitter, &project);
            async move {
                let body = crew.task().with("labels", json!({ "team": team, "a\"b.c": "1" })).with("project", json!(project));
                let body = body.with("ttl_after_finished_sec", ttl).context("same").json();
                let task = submitter.post("llm-tasks", body).await.created();
                let lease = server.task(task["id"].as_str().expect("an id")).lease_to(worker).await;
                let usage = json!({ "input_tokens": 5, "output_tokens": 1, "cost_usd": 0.5 });
                lease.complete("success", json!({ "usage": usage })).await.ok();
                lease.task
            }
        };
        let own = format!("agent_slug={}", crew.slug);
        let by = |what: &'static str| {
            let (server, path) = (&server, format!("usage?{own}&by={what}"));
            async move {
                let rows = server.get(&path).await.ok();
                let rows = rows.as_array().expect("rows").iter().map(|row| (row["keys"].to_string(), row["runs"].as_i64().expect("runs")));
                rows.collect::<Vec<_>>()
            }
        };
        for gone in [json!(null), json!(0)] {
            for team in ["blue", "blue", "red"] {
                let task = run(team, gone.clone()).await;
                if gone == 0 {
                    eventually("the task is removed", || async { (server.get(&task.path("")).await.status == 404).then_some(()) }).await;
                }
            }
            let times = if gone == 0 { 2 } else { 1 };
            let row = |word: &str, value: &str, runs: i64| (json!({ word: value }).to_string(), runs * times);
            assert_eq!(by("project").await, [row("project", &project, 3)]);
            assert_eq!(by("worker_id").await, [row("worker_id", &worker.name, 3)]);
            assert_eq!(by("created_by").await, [row("created_by", &format!("key:{name}"), 3)]);
            let week = by("week").await;
            assert!(week.len() <= 2 && week.iter().map(|(_, runs)| runs).sum::<i64>() == 3 * times, "{week:?}");
            assert_eq!(by("label:team").await, [row("label:team", "blue", 2), row("label:team", "red", 1)]);
            assert_eq!(by("label:a%22b.c").await, [row("label:a\"b.c", "1", 3)]);
            assert_eq!(by("label:none").await, [row("label:none", "", 3)]);
            let pair = |team: &str, runs: i64| (json!({ "label:team": team, "project": project }).to_string(), runs * times);
            assert_eq!(by("label:team,project").await, [pair("blue", 2), pair("red", 1)]);
            for (filter, runs) in [
                (format!("project={project}"), 3),
                (format!("worker_id={}", worker.name), 3),
                (format!("created_by=key:{name}"), 3),
                ("label=team=red".to_owned(), 1),
                ("label=team=red&label=a%22b.c=1".to_owned(), 1),
            ] {
                let rows = server.get(&format!("usage?by=agent_slug&{own}&{filter}")).await.ok();
                assert_eq!((&rows[0]["key"], &rows[0]["runs"]), (&json!(crew.slug), &json!(runs * times)), "{filter}");
            }
            for filter in ["project=other", "worker_id=other", "created_by=key:other", "context_id=other", "label=team=green", "label=other=red"] {
                assert_eq!(server.get(&format!("usage?by=agent_slug&{own}&{filter}")).await.ok(), json!([]), "{filter}");
            }
        }
    }
}
