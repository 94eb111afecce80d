//! What runs ask people, over the API.

use std::collections::BTreeSet;

use crate::key_limits::ids;
use crate::keys::{ADMIN, keyed, with_new_key};
use crate::on_both;
use crate::replicas::replicas;
use crate::support::*;

const ID: &str = "0190a0a0-0000-7000-8000-00000000000a";

fn asked(lease: &str, id: &str) -> Value {
    json!({ "lease_id": lease, "id": id, "question": { "tool": "Bash", "input": { "command": "ls" }, "limit_sec": 600 } })
}

impl Lease<'_> {
    async fn asks(&self, body: Value) -> Answer {
        self.task.api.post(&self.task.path("/question"), body).await
    }
}

on_both! {
    async fn an_answer_reaches_the_worker_by_heartbeats_and_claims(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        let task = crew.task().create().await;
        let lease = task.lease_to(&worker).await;
        assert_eq!(lease.asks(asked(&lease.id, ID)).await.ok(), json!({ "answer": null }));
        let first = server.get(&task.path("/question")).await.ok();
        assert_eq!(lease.asks(asked(&lease.id, ID)).await.ok(), json!({ "answer": null }));
        assert_eq!(server.get(&task.path("/question")).await.ok(), first, "repeating it changes nothing");
        assert_eq!(task.waits_for().await, "needs_human");
        let asking = async |query: &str| ids(&server.get(&format!("llm-tasks?asks=true&agent_slug={}{query}", crew.slug)).await.ok()).join(" ");
        let queued = crew.task().create().await;
        assert_eq!(asking("").await, task.id);
        assert_eq!(asking(&format!("&ids={},{}", task.id, queued.id)).await, task.id);
        for none in [format!("&ids={}", queued.id), "&status=queued".to_owned()] {
            assert_eq!(asking(&none).await, "", "{none}");
        }
        server.get("llm-tasks?asks=yes").await.refuses(&["asks"]);
        let all = async |asks: bool| {
            let filter = json!({ "filter": { "agent_slug": crew.slug, "asks": asks }, "dry_run": true });
            server.post("llm-tasks:cancel", filter).await.ok()["matched"].clone()
        };
        assert_eq!((all(true).await, all(false).await), (json!(1), json!(2)));
        queued.cancel().await;
        let answered = async || {
            let beat = server.post(&worker.path("/heartbeat"), json!({ "leases": [lease.id] })).await.ok();
            beat["directives"]["answered"].clone()
        };
        assert!(answered().await.is_null());
        let claim = beside({
            let (api, path) = ((*server).clone(), worker.path("/claim"));
            async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await.ok() }
        });
        let answer = json!({ "allow": false, "message": "no", "question_id": ID });
        let told = server.post(&task.path("/answer"), answer.clone()).await.ok();
        assert!(told["waiting"].is_null(), "{told}");
        assert_eq!(asking("").await, "");
        assert_eq!(claim.await.unwrap()["directives"]["answered"], json!([task.id]), "the answer ends a claim that waits");
        assert_eq!(answered().await, json!([task.id]));
        server.post(&task.path("/answer"), answer).await.fails(409, "Cannot answer task with status 'running': its question is answered already");
        let taken = json!({ "answer": { "allow": false, "message": "no", "answers": [] } });
        assert_eq!(lease.asks(asked(&lease.id, ID)).await.ok(), taken);
        assert_eq!(lease.asks(json!({ "lease_id": lease.id, "id": ID })).await.ok(), taken);
        assert_eq!(lease.asks(json!({ "lease_id": lease.id, "id": ID })).await.ok(), json!({ "answer": null }));
        assert!(answered().await.is_null(), "the question is over");
        server.get(&task.path("/question")).await.fails(404, "The task's run asks nothing now");
        server.post(&task.path("/answer"), json!({ "allow": true })).await.fails(409, "Cannot answer task with status 'running': its run asks nothing now");
    }

    async fn a_late_call_neither_asks_again_nor_drops_an_answer(server) {
        let (task, lease) = server.crew().leased_task().await;
        let over = json!({ "answer": null, "over": true });
        lease.asks(asked(&lease.id, ID)).await.ok();
        lease.asks(json!({ "lease_id": lease.id, "id": ID })).await.ok();
        assert_eq!(lease.asks(asked(&lease.id, ID)).await.ok(), over);
        server.get(&task.path("/question")).await.fails(404, "The task's run asks nothing now");
        server.post(&task.path("/answer"), json!({ "allow": true })).await.fails(409, "Cannot answer task with status 'leased': its run asks nothing now");
        assert_eq!(task.waits_for().await, "");
        lease.asks(asked(&lease.id, NO_ID)).await.ok();
        server.post(&task.path("/answer"), json!({ "allow": true })).await.ok();
        assert_eq!(lease.asks(asked(&lease.id, ID)).await.ok(), over);
        let taken = json!({ "answer": { "allow": true, "message": null, "answers": [] } });
        assert_eq!(lease.asks(asked(&lease.id, NO_ID)).await.ok(), taken);
    }

    async fn a_question_ends_with_its_lease_and_belongs_to_it(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let task = crew.task().create().await;
        let lease = task.lease_to(&worker).await;
        lease.asks(asked(NO_ID, ID)).await.fails(409, &format!("Lease '{NO_ID}' is not the task's active lease"));
        lease.asks(asked(&lease.id, ID)).await.ok();
        server.post(&task.path("/release"), json!({ "lease_id": lease.id })).await.ok();
        let again = task.now().await;
        assert_ne!(again["waiting"]["reason"], json!("needs_human"), "{again}");
        lease.asks(asked(&lease.id, ID)).await.fails(404, "Lease not found or already expired");
        server.post(&format!("llm-tasks/{NO_ID}/question"), asked(&lease.id, ID)).await.fails(404, "Task not found");
        server.post(&format!("llm-tasks/{NO_ID}/answer"), json!({ "allow": true })).await.fails(404, "Task not found");
        server.get(&format!("llm-tasks/{NO_ID}/question")).await.fails(404, "Task not found");
    }

    async fn no_answer_is_taken_after_the_time_limit(server) {
        let (task, lease) = server.crew().leased_task().await;
        let mut body = asked(&lease.id, ID);
        body["question"]["limit_sec"] = json!(1);
        lease.asks(body.clone()).await.ok();
        let until = server.get(&task.path("/question")).await.ok()["until"].as_i64().unwrap();
        eventually("the time limit is over", || async { (now_ms() > until + 50).then_some(()) }).await;
        server.post(&task.path("/answer"), json!({ "allow": true })).await.fails(409, "Cannot answer task with status 'leased': the time limit of its question is over");
        assert_eq!(lease.asks(body).await.ok(), json!({ "answer": null }));
    }

    async fn what_a_worker_asks_has_limits(server) {
        let (task, lease) = server.crew().leased_task().await;
        let with = |change: Value| {
            let mut body = asked(&lease.id, ID);
            body["question"].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            body
        };
        for wrong in [
            json!({ "tool": "" }),
            json!({ "tool": "x".repeat(129) }),
            json!({ "tool": "a\u{0}b" }),
            json!({ "input": "x".repeat(16 << 10) }),
            json!({ "questions": vec!["x"; 9] }),
            json!({ "questions": ["x".repeat(2_001)] }),
            json!({ "questions": [""] }),
            json!({ "limit_sec": 0 }),
            json!({ "limit_sec": 86_401 }),
        ] {
            lease.asks(with(wrong)).await.refuses(&["question"]);
        }
        lease.asks(json!({ "id": ID })).await.refuses(&["lease_id"]);
        assert_eq!(task.waits_for().await, "", "nothing was stored");
        lease.asks(with(json!({ "input": "x".repeat((16 << 10) - 2), "questions": vec!["x".repeat(2_000); 8], "limit_sec": 86_400 }))).await.ok();
        let answers = vec!["y".repeat(4_000); 8];
        for wrong in [json!({ "allow": true }), json!({ "allow": true, "answers": ["one"] }), json!({ "allow": false, "answers": answers })] {
            server.post(&task.path("/answer"), wrong).await.refuses(&["answers"]);
        }
        server.post(&task.path("/answer"), json!({ "answers": answers })).await.refuses(&["allow"]);
        server.post(&task.path("/answer"), json!({ "allow": false, "message": "x".repeat(4_001) })).await.refuses(&["message"]);
        server.post(&task.path("/answer"), json!({ "allow": true, "answers": answers })).await.ok();
        let answer = lease.asks(with(json!({}))).await.ok();
        assert_eq!(answer["answer"]["answers"], json!(answers));
        // Another id is another question.
        lease.asks(asked(&lease.id, NO_ID)).await.ok();
        assert_eq!(server.get(&task.path("/question")).await.ok()["id"], json!(NO_ID));
        server.post(&task.path("/answer"), json!({ "allow": true, "question_id": ID })).await.fails(409, "Cannot answer task with status 'leased': its run asks something else now");
    }
}

on_both! { alone:
    async fn only_those_who_may_change_a_task_answer_its_run(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let key = async |name: &str, scope: &str, more: Value| with_new_key(&admin, &server, name, scope, more).await;
        let (red, blue, read) = (key("red", "submit", json!({})).await, key("blue", "submit", json!({})).await, key("read", "read", json!({})).await);
        let worker = admin.worker().slots(4).register().await;
        let (own, other) = (key("own", "worker", json!({ "worker": worker.name })).await, key("other", "worker", json!({ "worker": "another" })).await);
        let task = Crew { api: &red, slug: "coder".into() }.task().create().await;
        let lease = admin.task(&task.id).lease_to(&worker).await;
        let (question, answer) = (task.path("/question"), task.path("/answer"));
        other.post(&question, asked(&lease.id, ID)).await.expect(403);
        red.post(&question, asked(&lease.id, ID)).await.expect(403);
        own.post(&question, asked(&lease.id, ID)).await.ok();
        blue.get(&question).await.fails(404, "Task not found");
        blue.post(&answer, json!({ "allow": true })).await.fails(404, "Task not found");
        for api in [&read, &own, &other] {
            api.post(&answer, json!({ "allow": true })).await.expect(403);
        }
        assert_eq!((&read.get(&question).await.ok()["tool"], &red.get(&question).await.ok()["tool"]), (&json!("Bash"), &json!("Bash")));
        red.post(&answer, json!({ "allow": true })).await.ok();
        let trail = admin.get(&format!("audit?task_id={}", task.id)).await.ok();
        let actors: BTreeSet<String> = trail.as_array().unwrap().iter().map(|entry| format!("{} {}", entry["action"], entry["actor"]).replace('"', "")).collect();
        assert!(actors.contains("task_asked key:own") && actors.contains("task_answered key:red"), "{actors:?}");
    }

    async fn a_question_and_its_answer_survive_the_server(database) {
        let server = Server::on(database).start();
        let (task, lease) = server.crew().leased_task().await;
        lease.asks(asked(&lease.id, ID)).await.ok();
        let question = server.get(&task.path("/question")).await.ok();
        server.kill9();
        server.start_again();
        assert_eq!(server.get(&task.path("/question")).await.ok(), question);
        eventually("the metric tells it", || async { server.get("/metrics").await.text.contains("bloom_tasks_needing_human 1\n").then_some(()) }).await;
        server.post(&task.path("/answer"), json!({ "allow": true })).await.ok();
        server.kill9();
        server.start_again();
        assert_eq!(lease.asks(asked(&lease.id, ID)).await.ok()["answer"]["allow"], json!(true));
    }
}

#[test]
fn an_answer_on_one_replica_reaches_the_worker_of_another() {
    let servers = replicas(&postgres::database(), 2);
    run(async {
        let (here, there) = crew_on_both(&servers);
        let worker = there.worker().slots(2).register().await;
        let task = there.task().create().await;
        let lease = task.lease_to(&worker).await;
        lease.asks(asked(&lease.id, ID)).await.ok();
        let path = |rest: &str| task.path(rest);
        assert_eq!(here.api.get(&path("")).await.ok()["waiting"]["reason"], json!("needs_human"));
        assert_eq!(here.api.get(&path("/question")).await.ok(), there.api.get(&path("/question")).await.ok());
        let claim = beside({
            let (api, path) = ((**servers[1]).clone(), worker.path("/claim"));
            async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await.ok() }
        });
        here.api.post(&path("/answer"), json!({ "allow": true })).await.ok();
        assert_eq!(claim.await.unwrap()["directives"]["answered"], json!([task.id]));
        assert_eq!(lease.asks(asked(&lease.id, ID)).await.ok()["answer"]["allow"], json!(true));
        let said = there.api.post(&path("/answer"), json!({ "allow": true })).await;
        said.fails(409, "Cannot answer task with status 'leased': its question is answered already");
    });
}
