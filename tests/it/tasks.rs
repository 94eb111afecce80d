//! Creating and reading tasks.

use crate::on_both;
use crate::support::*;

/// The task without a warning of its agent: whether a worker of another test knows a name that is like it is chance.
fn without_agent(mut task: Value) -> Value {
    let others: Vec<Value> = task["warnings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|text| !text.as_str().unwrap().starts_with("no worker "))
        .cloned()
        .collect();
    let fields = task.as_object_mut().unwrap();
    fields.remove("warnings");
    if !others.is_empty() {
        fields.insert("warnings".into(), json!(others));
    }
    task
}

on_both! {
    async fn a_created_task_has_the_documented_shape_and_defaults(server) {
        let before = now_ms();
        let body = json!({ "context_id": "c", "agent_slug": unique("agent"), "prompt": "p" });
        let task = server.post("llm-tasks", body.clone()).await.created();
        let id = task["id"].as_str().unwrap();
        assert_eq!(uuid::Uuid::parse_str(id).unwrap().get_version_num(), 7);
        assert_eq!(id, id.to_lowercase());
        let created_at = task["created_at"].as_i64().expect("integer milliseconds");
        assert!((before - 1000..=now_ms() + 1000).contains(&created_at), "{created_at}");
        let wanted = json!({
            "id": id, "context_id": "c", "agent_slug": body["agent_slug"], "prompt": "p", "context_hints": [],
            "policy": { "timeout_sec": 120, "timeout_is_default": true, "budget": 0 }, "desired_format": "text", "status": "queued",
            "created_at": created_at, "updated_at": created_at, "started_at": null, "finished_at": null, "lease_id": null, "worker_id": null, "attempts": 0, "max_attempts": 3,
            "priority": 5, "not_before": null, "depends_on": [], "exclusive_key": null, "idempotency_key": null, "labels": {},
            "session": "context", "model": null, "ttl_after_finished_sec": null,
            "infra_retries": 0, "cancel_requested": false, "suspend": false, "session_id": null, "failure": null, "usage": null,
            "project": null, "ref": null, "push": "never",
            "inputs": [], "outputs": [],
        });
        let mut shown = without_agent(task.clone());
        assert_eq!(shown["policy"]["budget"].as_f64(), Some(0.0));
        shown["policy"]["budget"] = json!(0);
        let waiting = shown.as_object_mut().unwrap().remove("waiting").expect("waiting is shown");
        assert_eq!(shown, wanted);
        assert!(waiting["message"].as_str().is_some_and(|text| !text.is_empty()), "{waiting}");
    }

    async fn a_task_keeps_what_was_asked_for(server) {
        let other = server.crew().task().create().await;
        let project = unique("project");
        server.post("projects", json!({ "name": project, "repo_url": "https://git.example.com/p.git" })).await.created();
        let asked = json!({
            "context_id": unique("context"), "agent_slug": unique("agent"), "prompt": "Grüße, 世界 \u{1F33C}\n\t\"quoted\"",
            "context_hints": ["a", ""], "policy": { "timeout_sec": 3600, "timeout_is_default": true, "budget": 1.25 }, "desired_format": "json", "max_attempts": 10,
            "priority": 9, "not_before": now_ms() + 3_600_000, "depends_on": [other.id], "exclusive_key": unique("key"),
            "idempotency_key": unique("idempotency"), "labels": { "team": "blue", "empty": "" }, "session": "none", "model": "opus",
            "ttl_after_finished_sec": 86400, "suspend": true, "project": project, "ref": "v1.2", "push": "branch", "outputs": ["out/**", "*.txt"],
        });
        let created = server.post("llm-tasks", asked.clone()).await.created();
        let read = server.task(created["id"].as_str().unwrap()).now().await;
        for (key, value) in asked.as_object().unwrap() {
            assert_eq!(&created[key], value, "{key}");
            assert_eq!(&read[key], value, "{key}");
        }
    }

    async fn reading_shows_what_creating_answered(server) {
        let created = without_agent(server.crew().task().answer().await.created());
        assert_eq!(server.get(&format!("llm-tasks/{}", created["id"].as_str().unwrap())).await.ok(), created);
    }

    async fn null_means_absent_where_a_value_is_optional(server) {
        let mut task = server.crew().task();
        for key in [
            "context_hints", "policy", "desired_format", "max_attempts", "priority", "not_before", "depends_on", "exclusive_key",
            "idempotency_key", "labels", "session", "model", "ttl_after_finished_sec", "suspend", "project", "ref", "push", "inputs", "outputs",
        ] {
            task = task.with(key, Value::Null);
        }
        let created = task.answer().await.created();
        assert_eq!(created["max_attempts"], 3);
        assert_eq!(created["policy"]["timeout_sec"], 120);
        let nulls = server.crew().task().with("policy", json!({ "timeout_sec": null, "budget": null }));
        assert_eq!(nulls.answer().await.created()["policy"]["timeout_sec"], 120);
    }

    async fn a_policy_may_name_one_of_its_parts(server) {
        let created = server.crew().task().with("policy", json!({ "timeout_sec": 1 })).answer().await.created();
        assert_eq!((created["policy"]["timeout_sec"].as_i64(), created["policy"]["budget"].as_f64()), (Some(1), Some(0.0)));
        let created = server.crew().task().with("policy", json!({ "budget": 0.5 })).answer().await.created();
        assert_eq!((created["policy"]["timeout_sec"].as_i64(), created["policy"]["budget"].as_f64()), (Some(120), Some(0.5)));
    }

    async fn unknown_keys_are_ignored(server) {
        let task = server.crew().task().with("nobody_knows", json!({ "deep": [1] })).with("status", json!("completed"));
        assert_eq!(task.answer().await.created()["status"], "queued");
    }

    async fn an_unknown_task_is_not_found(server) {
        server.get(&format!("llm-tasks/{NO_ID}")).await.fails(404, "Task not found");
        server.get("llm-tasks/not-an-id").await.fails(404, "Task not found");
    }

    async fn every_missing_field_is_named(server) {
        server.post("llm-tasks", json!({})).await.refuses(&["context_id", "agent_slug", "prompt"]);
        server.post("llm-tasks", json!({ "context_id": null, "agent_slug": "", "prompt": 5 })).await
            .refuses(&["context_id", "agent_slug", "prompt"]);
    }

    async fn every_field_has_its_limits(server) {
        let forty_labels = (0..33).map(|i| (format!("k{i}"), json!("v"))).collect::<serde_json::Map<_, _>>();
        let ids = (0..101).map(|_| json!(NO_ID)).collect::<Vec<_>>();
        for (key, bad) in [
            ("context_id", json!("")), ("context_id", json!(1)), ("agent_slug", json!("")), ("prompt", json!("")), ("prompt", json!(["p"])),
            ("prompt", json!("a\0b")), ("context_hints", json!("hint")), ("context_hints", json!([1])), ("context_hints", json!(["\0"])),
            ("desired_format", json!("xml")), ("desired_format", json!(1)),
            ("max_attempts", json!(0)), ("max_attempts", json!(11)), ("max_attempts", json!(1.5)), ("max_attempts", json!("3")),
            ("priority", json!(-1)), ("priority", json!(10)), ("priority", json!(0.5)), ("not_before", json!("soon")),
            ("depends_on", json!([5])), ("depends_on", json!(["not-an-id"])), ("depends_on", json!(ids)), ("depends_on", json!([NO_ID])),
            ("exclusive_key", json!(7)), ("idempotency_key", json!("")), ("idempotency_key", json!("k".repeat(256))),
            ("labels", json!(forty_labels)), ("labels", json!({ "k".repeat(64): "v" })), ("labels", json!({ "k": "v".repeat(256) })),
            ("labels", json!({ "k": 1 })), ("labels", json!([])), ("session", json!("forever")), ("model", json!(3)),
            ("ttl_after_finished_sec", json!(-1)), ("ttl_after_finished_sec", json!("1")),
            ("policy", json!("fast")),
        ] {
            let complaint = server.crew().task().with(key, bad.clone()).answer().await;
            assert_eq!(complaint.status, 400, "{key}: {bad}: {}", complaint.text);
            complaint.refuses(&[key]);
        }
    }

    async fn limits_themselves_are_allowed(server) {
        let labels = (0..32).map(|i| (format!("{i:k<63}"), json!("v".repeat(255)))).collect::<serde_json::Map<_, _>>();
        let task = server.crew().task().with("labels", json!(labels)).with("idempotency_key", json!(format!("{:i<255}", unique("i"))))
            .with("max_attempts", json!(1)).with("priority", json!(0)).with("policy", json!({ "timeout_sec": 86_400, "budget": 0 }));
        task.answer().await.created();
    }

    async fn a_nested_field_is_reported_under_its_parent(server) {
        for (policy, named) in [
            (json!({ "timeout_sec": 0 }), "timeout_sec"), (json!({ "timeout_sec": 86_401 }), "timeout_sec"), (json!({ "timeout_sec": 604_801 }), "timeout_sec"),
            (json!({ "timeout_is_default": 1 }), "timeout_is_default"), (json!({ "timeout_sec": 1.5 }), "timeout_sec"), (json!({ "timeout_sec": "60" }), "timeout_sec"),
            (json!({ "budget": -0.01 }), "budget"), (json!({ "budget": "1" }), "budget"),
        ] {
            let complaints = server.crew().task().with("policy", policy.clone()).answer().await.refuses(&["policy"]);
            assert!(complaints["policy"][0].as_str().unwrap().contains(named), "{policy}: {complaints}");
        }
    }

    async fn all_mistakes_are_reported_at_once(server) {
        server.post("llm-tasks", json!({ "context_id": "c", "agent_slug": "a", "prompt": "", "priority": 10, "policy": { "timeout_sec": 0 } })).await
            .refuses(&["prompt", "priority", "policy"]);
    }

    async fn what_is_not_a_json_object_is_refused(server) {
        for body in ["", "{", "[]", "5", "null", "\"text\"", "{\"prompt\": }", "\u{feff}{}x"] {
            let answer = server.post_bytes("llm-tasks", body).await.expect(400);
            assert!(!answer.json()["error"].is_null(), "{body}: {}", answer.text);
        }
        server.post_bytes("llm-tasks", vec![b'{', b'"', 0xff, b'"', b':', b'1', b'}']).await.expect(400);
        let answer = server.post_bytes("llm-tasks", "{").await;
        answer.error(400);
    }

    async fn a_body_needs_no_content_type(server) {
        let body = server.crew().task().json().to_string();
        let answer = server.request(reqwest::Method::POST, "llm-tasks").body(body).send().await.unwrap();
        assert_eq!(answer.status(), 201);
    }

    async fn an_idempotency_key_makes_a_repeat_harmless(server) {
        let task = server.crew().task().with("idempotency_key", json!(unique("once"))).json();
        let first = server.post("llm-tasks", task.clone()).await.created();
        let again = server.post("llm-tasks", task.clone()).await.ok();
        assert_eq!(first["id"], again["id"]);
        for key in ["context_id", "agent_slug", "prompt"] {
            let mut other = task.clone();
            other[key] = json!("other");
            server.post("llm-tasks", other).await.error(409);
        }
        let mut same = task.clone();
        same["priority"] = json!(1);
        assert_eq!(server.post("llm-tasks", same).await.ok()["priority"], 5, "the first task is unchanged");
    }

    async fn an_idempotency_key_may_come_as_a_header(server) {
        let key = unique("header");
        let keyed = server.with_header("Idempotency-Key", &key);
        let task = server.crew().task().json();
        let first = keyed.post("llm-tasks", task.clone()).await.created();
        assert_eq!(first["idempotency_key"], json!(key));
        assert_eq!(keyed.post("llm-tasks", task.clone()).await.ok()["id"], first["id"]);
        let mut named = task.clone();
        named["idempotency_key"] = json!(key);
        assert_eq!(server.post("llm-tasks", named).await.ok()["id"], first["id"], "the header and the field are the same key");
        server.with_header("Idempotency-Key", &"k".repeat(256)).post("llm-tasks", task).await.expect(400);
    }

    async fn parallel_repeats_make_one_task(server) {
        let task = server.crew().task().with("idempotency_key", json!(unique("race"))).json();
        let answers = futures_util::future::join_all((0..16).map(|_| server.post("llm-tasks", task.clone()))).await;
        assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 15);
        let ids = answers.iter().map(|answer| answer.json()["id"].to_string()).collect::<std::collections::HashSet<_>>();
        assert_eq!(ids.len(), 1);
    }

    async fn a_task_shows_how_long_it_may_wait_for(server) {
        let crew = server.crew();
        let task = crew.task().create().await;
        assert_eq!(task.waits_for().await, "no_worker");
    }

    async fn wait_answers_when_the_task_ends_or_when_time_is_up(server) {
        let (task, _) = server.crew().leased_task().await;
        let at_once = server.get(&task.path("/wait?timeout_sec=0")).await.ok();
        assert_eq!(at_once["status"], "leased", "at the time limit, the unfinished task is returned");
        let path = task.path("/wait?timeout_sec=60");
        let waiting = beside({ let api = (**server).clone(); async move { api.get(&path).await.ok() } });
        task.succeed("done").await;
        assert_eq!(waiting.await.unwrap()["status"], "completed");
        assert_eq!(server.get(&task.path("/wait")).await.ok()["status"], "completed", "a finished task is returned at once");
        server.get(&format!("llm-tasks/{NO_ID}/wait")).await.fails(404, "Task not found");
    }

    async fn a_task_removes_itself_when_it_was_asked_to(server) {
        let task = server.crew().task().with("ttl_after_finished_sec", json!(0)).create().await;
        task.cancel().await.ok();
        eventually("the task is removed", || async {
            (server.get(&task.path("")).await.status == 404).then_some(())
        }).await;
        server.get(&task.path("/result")).await.expect(404);
    }

    async fn unknown_fields_are_ignored_and_told(server) {
        let crew = server.crew();
        let odd = || crew.task().with("timeout_sec", json!(60)).with("policy", json!({ "budgt": 1 })).with("zz\n", json!(null));
        let made = odd().answer().await.created();
        let told = json!([
            "unknown field 'timeout_sec' was ignored; did you mean policy.timeout_sec?",
            "unknown field 'zz\\n' was ignored",
            "unknown field 'policy.budgt' was ignored; did you mean policy.budget?",
        ]);
        assert_eq!(without_agent(made.clone())["warnings"], told);
        assert!(server.get(&format!("llm-tasks/{}", made["id"].as_str().unwrap())).await.ok().get("warnings").is_none());
        assert!(without_agent(crew.task().answer().await.created()).get("warnings").is_none());
        let batch = server.post("llm-tasks:batch", json!({ "tasks": [crew.task().json(), odd().json()] })).await.created();
        assert!(without_agent(batch["tasks"][0].clone()).get("warnings").is_none());
        assert_eq!(batch["tasks"][1]["warnings"], told);
    }
}
