//! Whatever a task, a run or a worker says is shown as text.

use super::browser::Browser;
use crate::on_both;
use crate::support::*;

const ATTACK: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>";

on_both! {
    async fn attacks_are_shown_as_text(server) {
        let browser = Browser::of(server);
        let name = unique("<i>\"'w");
        let worker = json!({
            "name": name, "agent_version": ATTACK, "os_info": ATTACK, "ip_addrs": [ATTACK],
            "capabilities": { "max_concurrency": 4, "agents": [ATTACK] },
        });
        server.post("workers", worker).await.created();
        let task = json!({
            "context_id": ATTACK, "agent_slug": ATTACK, "prompt": ATTACK, "model": ATTACK, "exclusive_key": unique(ATTACK),
            "labels": { ATTACK: ATTACK }, "session": "none",
        });
        let first = server.post("llm-tasks", task.clone()).await.created();
        let id = first["id"].as_str().unwrap();
        let lease = server.post(&format!("llm-tasks/{id}/lease"), json!({ "worker_id": name })).await.created();
        let lease_id = &lease["lease"]["id"];
        let event = |seq: i64, kind: &str, data: Value| json!({ "seq": seq, "kind": kind, "at": 1, "data": data });
        let events = json!({ "lease_id": lease_id, "events": [
            event(1, "text", json!({ "text": ATTACK })),
            event(2, "tool_use", json!({ "name": ATTACK, "input": { ATTACK: ATTACK } })),
            event(3, "lifecycle", json!({ ATTACK: ATTACK })),
        ] });
        server.post(&format!("llm-tasks/{id}/events"), events).await.ok();
        let question = json!({ "tool": ATTACK, "input": { "x": ATTACK }, "questions": [ATTACK], "limit_sec": 600 });
        let asked = json!({ "lease_id": lease_id, "id": NO_ID, "question": question });
        server.post(&format!("llm-tasks/{id}/question"), asked).await.ok();
        let while_asking = browser.ok(&format!("/tasks/{id}")).await;
        harmless(&while_asking.text);
        while_asking.has("The run asks you");
        harmless(&browser.ok("/").await.text);
        let done = json!({
            "lease_id": lease_id, "status": "success", "output": format!("{{\"a\": {}}}", json!(ATTACK)), "metrics": { "duration_ms": 5 },
            "artifact_type": ATTACK, "artifact_tags": [ATTACK],
        });
        server.post(&format!("llm-tasks/{id}/complete"), done).await.ok();
        let second = server.post("llm-tasks", json!({ "context_id": "c", "agent_slug": ATTACK, "prompt": ATTACK })).await.created();
        let failed = second["id"].as_str().unwrap();
        let lease = server.post(&format!("llm-tasks/{failed}/lease"), json!({ "worker_id": name })).await.created();
        let body = json!({ "lease_id": lease["lease"]["id"], "status": "error", "error_message": ATTACK, "metrics": { "duration_ms": 5 } });
        server.post(&format!("llm-tasks/{failed}/complete"), body).await.ok();
        let in_query = ATTACK.replace('<', "%3C").replace('>', "%3E").replace('"', "%22").replace(' ', "%20");
        let in_path = name.replace('<', "%3C").replace('>', "%3E").replace('"', "%22").replace('/', "%2F");
        for page in [
            "/".to_owned(),
            "/tasks".to_owned(),
            format!("/tasks?agent_slug={in_query}&label={in_query}&id="),
            format!("/tasks?context_id={in_query}"),
            "/contexts".to_owned(),
            format!("/contexts?project={in_query}"),
            format!("/contexts/{}", in_query.replace('/', "%2F")),
            format!("/contexts/{}/confirm-reset", in_query.replace('/', "%2F")),
            format!("/tasks/{id}"),
            format!("/tasks/{failed}"),
            format!("/tasks/{id}/events"),
            format!("/tasks/{id}/confirm-delete"),
            format!("/tasks/new?like={id}"),
            "/queues".to_owned(),
            format!("/usage?by=agent&by=label:{in_query}&project="),
            format!("/usage?agent_slug={in_query}&context_id={in_query}"),
            "/workers".to_owned(),
            format!("/workers/{in_path}"),
            format!("/workers/{in_path}/confirm-remove"),
            "/leases".to_owned(),
            format!("/leases?worker_id={in_query}"),
            "/artifacts".to_owned(),
            format!("/audit?actor={in_query}"),
            "/audit".to_owned(),
            "/reconcilers".to_owned(),
        ] {
            for language in ["en", "uk"] {
                let shown = browser.send(reqwest::Method::GET, &page, None, &[("accept-language", language)]).await.expect(200);
                harmless(&shown.text);
                let policy = shown.header("content-security-policy");
                assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{page}: {policy}");
            }
        }
        for field in ["since", "until", "by"] {
            harmless(&browser.get(&format!("/usage?{field}={in_query}")).await.expect(400).text);
        }
        for page in ["/tasks?status", "/tasks?since", "/leases?status", "/audit?action", "/artifacts?task_id", "/workers?x"] {
            harmless(&browser.get(&format!("{page}={in_query}")).await.expect(400).text);
            harmless(&browser.get(&format!("/tasks?{in_query}")).await.expect(400).text);
        }
        let typed = [("prompt", ATTACK), ("agent_slug", ATTACK), ("labels", ATTACK), ("priority", ATTACK)];
        harmless(&browser.send_form("/tasks/new", "/tasks/new", &typed).await.expect(400).text);
        let typed = [("action", "limit"), ("agent_slug", ATTACK), ("max_concurrency", ATTACK)];
        harmless(&browser.send_form("/queues", "/queues", &typed).await.expect(400).text);
        let whole = browser.ok(&format!("/tasks/{id}/output")).await;
        assert!(whole.header("content-type").starts_with("text/plain") && whole.header("content-disposition").starts_with("attachment"));
        assert_eq!(whole.header("x-content-type-options"), "nosniff");
        assert!(browser.ok(&format!("/tasks/{id}/prompt")).await.header("content-type").starts_with("text/plain"));
    }

    async fn pages_have_no_scripts_or_styles_in_them(server) {
        let browser = Browser::of(server);
        let task = server.crew().task().create().await;
        for page in ["/", "/tasks", "/tasks/new", "/contexts", "/workers", "/queues", "/usage", "/keys", "/leases", "/artifacts", "/audit", "/reconcilers", "/membridge", &format!("/tasks/{}", task.id), "/nothing"] {
            let shown = browser.get(page).await;
            let text = &shown.text;
            assert_eq!(text.matches("<script").count(), text.matches("<script src=\"/assets/").count(), "{page}: {text}");
            for word in ["<style", " style=", " onclick", "javascript:", "http://cdn", "https://"] {
                assert!(!text.contains(word), "{page}: {word}: {text}");
            }
            assert_eq!((shown.header("cache-control"), shown.header("referrer-policy")), ("no-store", "same-origin"), "{page}");
        }
    }
}

/// All that is said of the attack is escaped.
#[track_caller]
fn harmless(text: &str) {
    for word in ["<script>alert", "<img", "<i>", "\"'>", "onerror=alert(2)>"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}
