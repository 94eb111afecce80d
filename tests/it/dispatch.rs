//! Dispatch calls: a task is pushed to a worker's agent once, whatever the agent does.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::on_both;
use crate::support::pushed::{Mute, nowhere};
use crate::support::stub::{Reply, Stub};
use crate::support::*;

const KEY: &str = "the-agents-common-key";

/// An agent that answers every push like this.
async fn agent(status: u16, body: &str) -> Stub {
    let stub = Stub::start().await;
    stub.always("/execute-task", Reply::new(status, body));
    stub
}

fn slow(after: Duration) -> Reply {
    Reply { after, ..Reply::new(200, r#"{"done":true}"#) }
}

/// The audit actions about the task and its leases, oldest first.
async fn actions(server: &Api, task: &str) -> Vec<String> {
    let entries = server.get(&format!("audit?limit=1000&task_id={task}")).await.ok();
    let is_of = |entry: &&Value| entry["entity_id"] == task || entry["detail"].as_str().is_some_and(|detail| detail.contains(task));
    let mut actions: Vec<String> =
        entries.as_array().unwrap().iter().filter(is_of).map(|entry| entry["action"].as_str().unwrap().to_owned()).collect();
    actions.reverse();
    actions
}

/// The status of a lease.
async fn lease_status(server: &Api, task: &Task<'_>, id: &Value) -> String {
    let lease = Lease { task: server.task(&task.id), id: id.as_str().unwrap().to_owned(), json: Value::Null };
    lease.now().await["status"].as_str().unwrap().to_owned()
}

/// The lease id in the push that the agent got.
fn told_lease(stub: &Stub) -> Value {
    stub.pushed()[0]["lease_id"].clone()
}

on_both! {
    async fn an_answer_that_nobody_could_read_is_shown_as_text(server) {
        let deep = format!("{}{}", "[".repeat(99_999), "]".repeat(99_999));
        let stub = agent(202, &deep).await;
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).register().await;
        let answer = crew.task().create().await.dispatch(json!({ "worker_id": worker.name })).await.ok();
        assert_eq!(answer["execution"], deep);
    }

    async fn the_agent_gets_the_task_and_its_answer_is_shown(server) {
        let stub = agent(202, r#"{"accepted": true, "note": "ü"}"#).await;
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).register().await;
        let task = crew.task().with("policy", json!({ "timeout_sec": 90, "budget": 1.5 })).with("context_hints", json!(["a.md"])).create().await;
        let answer = task.dispatch(json!({ "worker_id": worker.name })).await.ok();
        let lease = answer["lease_id"].clone();
        let expected = json!({
            "dispatched": true, "task_id": task.id, "worker_id": worker.name, "lease_id": lease,
            "execution": { "accepted": true, "note": "ü" },
        });
        assert_eq!(answer, expected);

        let request = &stub.seen("/execute-task")[0];
        assert_eq!(request.method, reqwest::Method::POST);
        assert!(request.headers.get("x-membridge-agent").is_none(), "no key is configured");
        let body: Value = serde_json::from_str(&request.body).unwrap();
        let now = task.now().await;
        for field in ["prompt", "context_id", "agent_slug", "desired_format", "context_hints", "policy"] {
            assert_eq!(body[field], now[field], "{field}");
        }
        assert_eq!((&body["task_id"], &body["runtime_url"]), (&json!(task.id), &json!(server.base())));
        assert_eq!((&now["status"], &now["lease_id"], &now["attempts"]), (&json!("leased"), &lease, &json!(1)));

        let heartbeat = task.heartbeat(json!({ "lease_id": lease })).await.ok();
        let (start, end) = (heartbeat["lease"]["started_at"].as_i64().unwrap(), heartbeat["expires_at"].as_i64().unwrap());
        assert_eq!(end, start + 150_000, "the lease ends 60 s after the run's time limit");
        task.complete(json!({ "status": "success", "output": "hi", "lease_id": lease, "metrics": { "duration_ms": 1 } })).await.ok();
        assert_eq!(actions(server, &task.id).await, ["task_created", "task_leased", "task_dispatched", "task_completed"]);
        assert_eq!(stub.pushed().len(), 1);
    }

    async fn an_agent_that_refuses_fails_the_task(server) {
        for (status, body) in [(500, r#"{"error":"no such agent"}"#), (409, "[]"), (401, "null"), (302, "{}")] {
            let stub = agent(status, body).await;
            let crew = server.crew();
            let worker = crew.worker_at(&stub.url).register().await;
            let task = crew.task().create().await;
            let answer = task.dispatch(json!({ "worker_id": worker.name })).await.ok();
            assert_eq!(answer["execution"], serde_json::from_str::<Value>(body).unwrap());
            assert_eq!(answer["dispatched"], true);
            let now = task.now().await;
            assert_eq!((&now["status"], &now["attempts"], &now["failure"]["reason"]), (&json!("failed"), &json!(1), &json!("agent_error")));
            let message = now["failure"]["message"].as_str().unwrap();
            assert!(message.starts_with(&format!("Agent returned {status}: ")), "{message}");
            assert_eq!(lease_status(server, &task, &answer["lease_id"]).await, "failed");
            assert_eq!(actions(server, &task.id).await, ["task_created", "task_leased", "task_dispatched", "dispatch_failed"]);
            assert_eq!(stub.pushed().len(), 1);
            assert_eq!(task.requeue().await.ok()["status"], "queued");
        }
    }

    async fn an_agent_that_says_nothing_sensible_gives_the_task_back(server) {
        let garbage = [(500, "Internal Server Error"), (200, "<html>"), (200, ""), (204, ""), (302, "moved")];
        let mut agents = Vec::new();
        for (status, body) in garbage {
            let stub = agent(status, body).await;
            agents.push((stub.url.clone(), Some(stub)));
        }
        agents.push((nowhere(), None));
        agents.push(("not a url".to_owned(), None));
        for (url, stub) in agents {
            let crew = server.crew();
            let worker = crew.worker_at(&url).register().await;
            let task = crew.task().create().await;
            let answer = task.dispatch(json!({ "worker_id": worker.name })).await.expect(502).json();
            let error = answer["error"].as_str().unwrap();
            assert!(!error.is_empty() && !error.contains(KEY), "{answer}");
            let (id, worker) = (&task.id, &worker.name);
            let expected = json!({ "dispatched": false, "task_id": id, "worker_id": worker, "error": error, "code": "unavailable" });
            assert_eq!(answer, expected);
            let now = task.now().await;
            let expected = (&json!("queued"), &json!(0), &json!(1), &Value::Null);
            assert_eq!((&now["status"], &now["attempts"], &now["infra_retries"], &now["lease_id"]), expected, "{url}");
            assert_eq!(now["failure"]["reason"], "worker_lost");
            assert_eq!(actions(server, &task.id).await, ["task_created", "task_leased", "task_dispatched", "dispatch_failed"]);
            if let Some(stub) = stub {
                assert_eq!(lease_status(server, &task, &told_lease(&stub)).await, "failed");
                assert_eq!(stub.pushed().len(), 1);
            }
        }
    }

    async fn nobody_waits_longer_than_asked(server) {
        let stub = Stub::start().await;
        stub.always("/execute-task", slow(Duration::from_secs(600)));
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).slots(2).register().await;
        for wait_sec in [0, 1] {
            let task = crew.task().create().await;
            let answer = task.dispatch(json!({ "worker_id": worker.name, "wait_sec": wait_sec })).await.ok();
            assert_eq!(answer["dispatched"], true);
            assert!(answer.get("execution").is_none(), "{answer}");
            assert_eq!(task.status().await, "leased", "the run continues");
            stub.has_got(wait_sec + 1).await;
            task.succeed("done").await;
        }
    }

    async fn the_answer_of_a_run_that_ends_meanwhile_is_shown(server) {
        let stub = Stub::start().await;
        stub.always("/execute-task", slow(Duration::from_millis(700)));
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).register().await;
        let task = crew.task().create().await;
        let dispatched = async {
            let answer = task.dispatch(json!({ "worker_id": worker.name })).await.ok();
            assert_eq!(answer["execution"], json!({ "done": true }));
        };
        let run = async {
            stub.has_got(1).await;
            task.succeed("done").await;
        };
        tokio::join!(dispatched, run);
        assert_eq!(task.now().await["status"], "completed");
    }

    async fn a_completion_counts_whatever_the_agent_answers_after_it(server) {
        let mute = Mute::start("HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops").await;
        let crew = server.crew();
        let worker = crew.worker_at(&mute.url).register().await;
        let task = crew.task().create().await;
        let dispatched = async {
            let answer = task.dispatch(json!({ "worker_id": worker.name })).await.ok();
            assert!(answer["dispatched"] == true && answer.get("execution").is_none(), "{answer}");
        };
        let run = async {
            mute.has_a_request().await;
            task.succeed("done").await;
            mute.let_go();
        };
        tokio::join!(dispatched, run);
        assert_eq!((task.status().await.as_str(), mute.requests.load(Ordering::SeqCst)), ("completed", 1));
        assert!(!actions(server, &task.id).await.contains(&"dispatch_failed".to_owned()));
    }

    async fn a_run_that_gives_signs_of_life_outlives_its_connection(server) {
        let mute = Mute::start("").await;
        let crew = server.crew();
        let worker = crew.worker_at(&mute.url).register().await;
        let task = crew.task().create().await;
        let dispatched = async {
            let answer = task.dispatch(json!({ "worker_id": worker.name })).await.ok();
            assert!(answer["dispatched"] == true && answer.get("execution").is_none(), "{answer}");
            answer["lease_id"].clone()
        };
        let run = async {
            mute.has_a_request().await;
            task.heartbeat(json!({})).await.ok();
            mute.let_go();
        };
        let (lease, ()) = tokio::join!(dispatched, run);
        let now = task.now().await;
        assert_eq!((&now["status"], &now["lease_id"]), (&json!("running"), &lease));
        task.succeed("done").await;
    }

    async fn a_connection_that_breaks_without_any_gives_the_task_back(server) {
        let mute = Mute::start("").await;
        let crew = server.crew();
        let worker = crew.worker_at(&mute.url).register().await;
        let task = crew.task().create().await;
        let dispatched = async { task.dispatch(json!({ "worker_id": worker.name })).await.expect(502) };
        let run = async {
            mute.has_a_request().await;
            mute.let_go();
        };
        tokio::join!(dispatched, run);
        assert_eq!((task.status().await.as_str(), mute.requests.load(Ordering::SeqCst)), ("queued", 1), "and it is not sent again");
    }

    async fn a_push_goes_on_without_the_one_who_asked_for_it(server) {
        let mute = Mute::start("HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\n{}").await;
        let crew = server.crew();
        let worker = crew.worker_at(&mute.url).register().await;
        let task = crew.task().create().await;
        let (api, path, body) = (Api::clone(server), task.path("/dispatch"), json!({ "worker_id": worker.name }));
        let asked = beside(async move { api.post(&path, body).await });
        mute.has_a_request().await;
        asked.abort();
        let _ = asked.await;
        mute.let_go();
        task.reaches("failed").await;
    }

    async fn what_can_not_be_dispatched(server) {
        let stub = agent(202, "{}").await;
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).register().await;
        let without = crew.worker().register().await;
        let task = crew.task().create().await;
        let to = |name: &str| json!({ "worker_id": name });
        server.task(NO_ID).dispatch(json!({})).await.fails(404, "Task not found");
        task.dispatch(to("nobody-of-this-name")).await.fails(404, "Worker not found");
        task.dispatch(to(&without.name)).await.fails(400, &format!("Worker \"{}\" has no URL configured", without.name));
        task.dispatch(json!({ "wait_sec": 61 })).await.refuses(&["wait_sec"]);
        task.dispatch(json!({ "wait_sec": -1, "worker_id": 5 })).await.refuses(&["wait_sec", "worker_id"]);
        server.post_bytes(&task.path("/dispatch"), "{").await.error(400);
        let later = crew.task().with("not_before", json!(now_ms() + 600_000)).create().await;
        later.dispatch(to(&worker.name)).await.fails(409, "Task is not ready: not_before");
        assert_eq!((task.now().await["attempts"].as_i64(), stub.pushed().len()), (Some(0), 0), "nothing was changed or sent");
        task.dispatch(to(&worker.name)).await.ok();
        task.dispatch(to(&worker.name)).await.fails(409, "Task status is 'leased', expected 'queued'");
        task.dispatch(json!({ "wait_sec": 61 })).await.fails(409, "Task status is 'leased', expected 'queued'");
        crew.task().create().await.dispatch(to(&worker.name)).await.fails(503, "No available worker with free capacity");
        worker.cordon().await;
        crew.task().create().await.dispatch(to(&worker.name)).await.fails(503, "No available worker with free capacity");
        assert_eq!(stub.pushed().len(), 1);
    }

    async fn a_task_of_a_context_may_be_dispatched_beside_another(server) {
        let stub = agent(202, "{}").await;
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).slots(2).register().await;
        let context = unique("context");
        for _ in 0..2 {
            crew.task().context(&context).create().await.dispatch(json!({ "worker_id": worker.name })).await.ok();
        }
        // Claims deliver neither of them.
        assert!(worker.claim(2).await.is_empty());
    }
}

on_both! { alone:
    async fn the_best_worker_with_a_url_is_chosen(database) {
        let server = Server::on(database).start();
        let (first, second) = (agent(202, "{}").await, agent(202, "{}").await);
        let crew = server.crew();
        crew.task().create().await.dispatch(json!({})).await.fails(503, "No available worker with free capacity");
        let without = crew.worker().slots(32).register().await;
        let missing = format!("Worker \"{}\" has no URL configured", without.name);
        crew.task().create().await.dispatch(json!({})).await.fails(400, &missing);
        let small = crew.worker_at(&first.url).slots(1).register().await;
        let large = crew.worker_at(&second.url).slots(2).register().await;
        let chosen = async |context: &str| {
            let answer = crew.task().context(context).create().await.dispatch(json!({})).await.ok();
            answer["worker_id"].as_str().unwrap().to_owned()
        };
        assert_eq!(chosen("x").await, large.name, "it has the most free slots");
        assert_eq!(chosen("x").await, large.name, "it runs a task of the context");
        assert_eq!(chosen("y").await, small.name, "only this one has a free slot");
        crew.task().create().await.dispatch(json!({})).await.fails(400, &missing);
    }

    async fn the_key_goes_to_agents_and_nowhere_else(database) {
        let server = Server::on(database).env("MEMBRIDGE_AGENT_KEY", KEY).env("PUBLIC_URL", "https://bloom.example/base/").start();
        let stub = agent(202, "{}").await;
        let elsewhere = Stub::start().await;
        let crew = server.crew();
        let worker = crew.worker_at(&format!("{}/sub/", stub.url)).slots(4).register().await;
        stub.always("/sub/execute-task", Reply::new(202, "{}"));
        let task = crew.task().create().await;
        task.dispatch(json!({ "worker_id": worker.name })).await.ok();
        let request = &stub.seen("/sub/execute-task")[0];
        assert_eq!(request.headers["x-membridge-agent"], KEY);
        assert_eq!(serde_json::from_str::<Value>(&request.body).unwrap()["runtime_url"], "https://bloom.example/base");

        let moved = format!("HTTP/1.1 307 Moved\r\nlocation: {}/execute-task\r\ncontent-length: 2\r\n\r\n{{}}", elsewhere.url);
        let mute = Mute::start(moved.leak()).await;
        let lured = crew.worker_at(&mute.url).register().await;
        let task = crew.task().create().await;
        tokio::join!(
            async {
                task.dispatch(json!({ "worker_id": lured.name })).await.ok();
            },
            async {
                mute.has_a_request().await;
                mute.let_go();
            }
        );
        assert_eq!(task.status().await, "failed", "a redirect is a refusal");
        assert!(elsewhere.seen("/execute-task").is_empty(), "the redirect is not followed");
        let audit = server.get("audit?limit=1000").await.ok().to_string();
        assert!(!server.log().contains(KEY) && !audit.contains(KEY));
    }

    async fn a_killed_server_does_not_send_again(database) {
        let server = Server::on(database).env("LEASE_TTL_SECONDS", 2).start();
        let stub = Stub::start().await;
        stub.always("/execute-task", slow(Duration::from_secs(600)));
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).register().await;
        let task = crew.task().create().await;
        task.dispatch(json!({ "worker_id": worker.name, "wait_sec": 0 })).await.ok();
        stub.has_got(1).await;
        server.kill9();
        server.start_again();
        let back = task.reaches("queued").await;
        assert_eq!((&back["attempts"], &back["infra_retries"]), (&json!(0), &json!(1)), "without a heartbeat it may never have arrived");
        assert_eq!(stub.pushed().len(), 1);
        // The agent may still complete the task, because no later lease was made.
        let lease = told_lease(&stub);
        task.complete(json!({ "status": "success", "lease_id": lease, "metrics": { "duration_ms": 1 } })).await.ok();
    }

    async fn keys_of_workers_and_readers_dispatch_nothing(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", "admin").env("RUNTIME_WORKER_KEY", "worker").env("RUNTIME_READ_KEY", "read").start();
        let path = format!("llm-tasks/{NO_ID}/dispatch");
        server.with_key("admin").post(&path, json!({})).await.expect(404);
        for key in ["worker", "read"] {
            server.with_key(key).post(&path, json!({})).await.fails(403, &format!("This key has the scope {key}, and this call needs admin"));
        }
        server.post(&path, json!({})).await.fails(401, "Unauthorized");
    }
}
