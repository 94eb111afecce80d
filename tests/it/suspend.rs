//! Suspending and resuming tasks.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use crate::liveness::task_ids;
use crate::on_both;
use crate::replicas::replicas;
use crate::support::*;

impl Task<'_> {
    async fn suspend(&self) -> Answer {
        self.api.poke(&self.path("/suspend")).await
    }

    async fn resume(&self) -> Answer {
        self.api.poke(&self.path("/resume")).await
    }
}

/// A claim that waits for one task, and returns its id.
fn open_claim(api: &Api, worker: &Worker<'_>) -> tokio::task::JoinHandle<Value> {
    let (api, path) = (api.clone(), worker.path("/claim"));
    beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await.ok()["leases"][0]["task"]["id"].clone() })
}

on_both! {
    async fn no_worker_gets_a_suspended_task_until_it_is_resumed(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).with("url", json!("http://127.0.0.1:9")).register().await;
        let (task, other) = (crew.task().create().await, crew.task().create().await);
        let suspended = task.suspend().await.ok();
        assert_eq!((&suspended["id"], &suspended["status"], &suspended["suspend"]), (&json!(task.id), &json!("queued"), &json!(true)));
        assert_eq!(suspended["waiting"], json!({ "reason": "suspended", "message": "suspended until it is resumed" }));
        assert_eq!(task.now().await, suspended);
        assert_eq!(task.suspend().await.ok(), suspended, "a second call changes nothing");
        assert_eq!(task_ids(&worker.claim(8).await), [other.id.as_str()], "tasks behind it go on");
        assert!(worker.claim(8).await.is_empty());
        for (call, body) in [("/lease", json!({})), ("/lease", json!({ "worker_id": worker.name })), ("/dispatch", json!({}))] {
            let refused = server.post(&task.path(call), body).await;
            assert_eq!(refused.json()["code"], "not_ready");
            refused.fails(409, "Task is not ready: suspended");
        }
        // By the contract, this error comes before errors of content.
        task.lease(json!({ "ttl_seconds": "x" })).await.fails(409, "Task is not ready: suspended");
        assert_eq!(task.now().await, suspended);

        let claim = open_claim(server, &worker);
        let resumed = task.resume().await.ok();
        assert_eq!((&resumed["suspend"], &resumed["status"]), (&json!(false), &json!("queued")));
        assert_eq!(claim.await.unwrap(), json!(task.id), "a waiting claim is woken");
        let leased = task.now().await;
        assert_eq!(task.resume().await.ok(), leased, "a second call changes nothing");
        let entries = server.get(&format!("audit?task_id={}", task.id)).await.ok();
        let told: Vec<_> = entries.as_array().unwrap().iter().rev().map(|entry| [&entry["action"], &entry["actor"], &entry["detail"]]).collect();
        assert_eq!(told[1..3], [[&json!("task_suspended"), &json!("admin"), &json!("while queued")], [&json!("task_resumed"), &json!("admin"), &json!("while queued")]]);
        assert_eq!(told.len(), 4, "{told:?}");
    }

    async fn a_run_goes_on_and_its_task_is_suspended_when_it_is_queued_again(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let held = async |ttl| {
            let task = crew.task().with("session", json!("none")).create().await;
            let lease = task.lease_for(&worker, ttl).await;
            let shown = task.suspend().await.ok();
            assert_eq!((&shown["status"], &shown["suspend"], &shown["waiting"]), (&json!("leased"), &json!(true), &Value::Null));
            assert_eq!(task.suspend().await.ok(), shown);
            (task, lease)
        };
        let (done, lease) = held(300).await;
        lease.heartbeat().await.ok();
        assert_eq!(lease.complete("success", json!({})).await.ok()["task"]["status"], "completed");
        done.suspend().await.fails(409, "Cannot suspend task with status 'completed'");
        done.resume().await.fails(409, "Cannot resume task with status 'completed'");

        let (retried, lease) = held(300).await;
        let later = now_ms() + 3_600_000;
        lease.complete("error", json!({ "retryable": true, "retry_at": later })).await.ok();
        let (released, lease) = held(300).await;
        server.post(&released.path("/release"), json!({ "lease_id": lease.id, "reason": "shutdown" })).await.ok();
        let (expired, _) = held(1).await;
        expired.reaches("queued").await;
        for task in [&retried, &released, &expired] {
            let shown = task.now().await;
            assert_eq!((&shown["status"], &shown["waiting"]["reason"]), (&json!("queued"), &json!("suspended")), "{shown}");
        }
        assert!(worker.claim(8).await.is_empty());
        let shown = retried.resume().await.ok();
        assert_eq!((&shown["waiting"]["reason"], &shown["not_before"]), (&json!("not_before"), &json!(later)), "its backoff still counts");
        released.resume().await.ok();
        expired.resume().await.ok();
        let claimed = worker.claim(8).await;
        assert_eq!(task_ids(&claimed).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([released.id.clone(), expired.id.clone()]));

        let (resumed, lease) = held(300).await;
        assert_eq!(resumed.resume().await.ok()["status"], "leased");
        server.post(&resumed.path("/release"), json!({ "lease_id": lease.id, "reason": "shutdown" })).await.ok();
        assert_eq!(task_ids(&worker.claim(8).await), [resumed.id.as_str()], "the last wish counts");
    }

    async fn a_task_is_created_suspended(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let suspended = |key: &str| crew.task().with("suspend", json!(true)).with("idempotency_key", json!(key));
        let key = unique("key");
        let shown = suspended(&key).answer().await.created();
        assert_eq!((&shown["suspend"], &shown["waiting"]["reason"]), (&json!(true), &json!("suspended")));
        let bodies = [suspended(&unique("key")).json(), crew.task().json()];
        let batch = server.post("llm-tasks:batch", json!({ "tasks": bodies })).await.created();
        assert_eq!((&batch["tasks"][0]["suspend"], &batch["tasks"][1]["suspend"]), (&json!(true), &json!(false)));
        assert_eq!(task_ids(&worker.claim(8).await), [batch["tasks"][1]["id"].as_str().unwrap()]);
        // The key names the same task, whether it is suspended or not, and a repeat changes nothing.
        let again = crew.task().with("context_id", shown["context_id"].clone()).with("idempotency_key", json!(key)).answer().await.ok();
        assert_eq!(again, shown);
        let task = server.task(shown["id"].as_str().unwrap());
        task.resume().await.ok();
        let again = suspended(&key).with("context_id", shown["context_id"].clone()).answer().await.ok();
        assert_eq!((&again["id"], &again["suspend"]), (&shown["id"], &json!(false)));
        crew.task().with("suspend", json!("yes")).answer().await.refuses(&["suspend"]);
    }

    async fn later_tasks_of_its_context_wait_behind_a_suspended_one(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let context = unique("context");
        let first = crew.task().context(&context).with("suspend", json!(true)).create().await;
        let second = crew.task().context(&context).create().await;
        let alone = crew.task().context(&context).with("session", json!("none")).create().await;
        assert_eq!(second.waits_for().await, "session_order");
        assert_eq!(task_ids(&worker.claim(8).await), [alone.id.as_str()]);
        second.suspend().await.ok();
        first.resume().await.ok();
        assert_eq!(task_ids(&worker.claim(8).await), [first.id.as_str()]);
        first.succeed("x").await;
        assert_eq!(second.waits_for().await, "suspended");
        // The session is on this worker, so the task is reserved for it when it is resumed.
        let other = crew.worker().slots(8).register().await;
        second.resume().await.ok();
        assert!(other.claim(8).await.is_empty());
        assert_eq!(task_ids(&worker.claim(8).await), [second.id.as_str()]);
        second.fail("x").await;
        second.suspend().await.fails(409, "Cannot suspend task with status 'failed'");
    }

    async fn a_suspended_task_holds_no_key_and_heeds_its_dependencies(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let alone = || crew.task().with("session", json!("none"));
        let key = json!(unique("key"));
        let (keyed, other) = (alone().with("exclusive_key", key.clone()).create().await, alone().with("exclusive_key", key.clone()).create().await);
        keyed.suspend().await.ok();
        assert_eq!(task_ids(&worker.claim(8).await), [other.id.as_str()]);
        keyed.resume().await.ok();
        assert_eq!(keyed.waits_for().await, "exclusive_key");
        other.succeed("x").await;
        assert_eq!(task_ids(&worker.claim(8).await), [keyed.id.as_str()]);

        let later = now_ms() + 3_600_000;
        let first = alone().create().await;
        let waits = |on: &Task<'_>| alone().with("depends_on", json!([on.id])).with("suspend", json!(true));
        let (met, resumed, late) = (waits(&first).create().await, waits(&first).create().await, waits(&first).with("not_before", json!(later)).create().await);
        assert_eq!(met.waits_for().await, "suspended");
        assert_eq!(resumed.resume().await.ok()["waiting"]["reason"], "depends_on");
        worker.claim(1).await;
        first.succeed("x").await;
        // Its dependency was completed, and is not asked for again.
        server.delete(&first.path("")).await.ok();
        assert_eq!((met.waits_for().await.as_str(), late.waits_for().await.as_str()), ("suspended", "suspended"));
        assert_eq!(task_ids(&worker.claim(8).await), [resumed.id.as_str()]);
        met.resume().await.ok();
        assert_eq!(task_ids(&worker.claim(8).await), [met.id.as_str()]);
        assert_eq!(late.resume().await.ok()["waiting"]["reason"], "not_before");

        let failing = alone().create().await;
        let dependent = waits(&failing).create().await;
        failing.cancel().await.ok();
        let shown = dependent.now().await;
        assert_eq!((&shown["status"], &shown["failure"]["reason"]), (&json!("cancelled"), &json!("dependency_failed")));
    }

    async fn a_suspended_task_is_edited_cancelled_and_requeued(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let task = crew.task().with("suspend", json!(true)).create().await;
        for edit in [json!({ "priority": 9, "labels": { "team": "a" } }), json!({ "not_before": now_ms() + 3_600_000 }), json!({ "not_before": null })] {
            let shown = server.patch(&task.path(""), edit).await.ok();
            assert_eq!((&shown["priority"], &shown["waiting"]["reason"]), (&json!(9), &json!("suspended")), "{shown}");
        }
        server.delete(&task.path("")).await.fails(409, "Cannot delete task with status 'queued': cancel it first");
        let filter = json!({ "filter": { "status": "queued", "agent_slug": crew.slug } });
        assert_eq!(server.post("llm-tasks:cancel", filter).await.ok()["changed"], 1);
        task.suspend().await.fails(409, "Cannot suspend task with status 'cancelled'");
        task.resume().await.fails(409, "Cannot resume task with status 'cancelled'");
        let filter = json!({ "filter": { "status": "cancelled", "agent_slug": crew.slug } });
        assert_eq!(server.post("llm-tasks:requeue", filter).await.ok()["changed"], 1);
        assert_eq!(task.waits_for().await, "suspended", "a requeued task keeps its suspension");
        assert!(worker.claim(8).await.is_empty());
        task.cancel().await.ok();
        assert_eq!(task.requeue().await.ok()["suspend"], true);
        task.resume().await.ok();
        assert_eq!(task_ids(&worker.claim(8).await), [task.id.as_str()]);
        for call in ["suspend", "resume"] {
            server.poke(&format!("llm-tasks/{NO_ID}/{call}")).await.fails(404, "Task not found");
            server.poke(&format!("llm-tasks/x/{call}")).await.fails(404, "Task not found");
            server.post_bytes(&task.path(&format!("/{call}")), "{").await.fails(400, "Request body is not valid JSON");
        }
    }

    async fn watchers_see_suspensions(server) {
        let mut stream = sse::open(server, "watch", None).await;
        let task = server.crew().task().create().await;
        task.suspend().await.ok();
        let told = stream.find(|event| event.kind == "task" && event.json()["id"] == json!(task.id) && event.json()["suspend"] == true).await.json();
        assert_eq!(told["waiting"]["reason"], "suspended");
        task.resume().await.ok();
        stream.find(|event| event.kind == "task" && event.json()["id"] == json!(task.id) && event.json()["suspend"] == false).await;
    }
}

on_both! { alone:
    async fn a_suspension_survives_a_restart(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let (task, running) = (crew.task().create().await, crew.task().create().await);
        task.suspend().await.ok();
        let lease = running.lease_to(&worker).await;
        running.suspend().await.ok();
        server.kill9();
        server.start_again();
        assert_eq!(task.waits_for().await, "suspended");
        assert!(worker.claim(8).await.is_empty());
        server.post(&running.path("/release"), json!({ "lease_id": lease.id, "reason": "shutdown" })).await.ok();
        assert_eq!(running.waits_for().await, "suspended");
        task.resume().await.ok();
        assert_eq!(task_ids(&worker.claim(8).await), [task.id.as_str()]);
    }
}

#[test]
fn a_suspension_counts_on_all_replicas() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let (here, there) = crew_on_both(&servers);
        let worker = there.worker().slots(32).register().await;
        let mut tasks = Vec::new();
        for _ in 0..16 {
            tasks.push(here.task().create().await);
        }
        // The other replica gives out tasks while they are suspended here: of each task, either its lease or its suspension comes first.
        let claims = join_all((0..16).map(|_| worker.claim(1)));
        let suspends = join_all(tasks.iter().map(Task::suspend));
        let (claimed, suspended) = futures_util::future::join(claims, suspends).await;
        let leased: BTreeSet<String> = claimed.iter().flat_map(|claimed| task_ids(claimed)).collect();
        for (task, answer) in tasks.iter().zip(suspended) {
            let shown = answer.ok();
            assert_eq!(leased.contains(&task.id), shown["status"] == "leased", "{shown}");
        }
        let free = here.task().create().await;
        free.suspend().await.ok();
        assert!(worker.claim(32).await.is_empty(), "no lease is made after a suspension was acknowledged");
        let claim = open_claim(&servers[1], &worker);
        free.resume().await.ok();
        assert_eq!(claim.await.unwrap(), json!(free.id), "a claim that waits at the other replica is woken");
    });
}
