//! Two agents under one name: the server tells them apart by their instances.

use crate::on_both;
use crate::support::*;

/// The ids of two agents.
const FIRST: &str = "019a0000-0000-7000-8000-000000000001";
const SECOND: &str = "019a0000-0000-7000-8000-000000000002";

/// A registration of the worker by this instance.
fn registration(worker: &Worker<'_>, instance: &str) -> Value {
    json!({ "name": worker.name, "instance": instance, "status": "online" })
}

/// A claim by an agent that has no leases.
fn claim(instance: &str) -> Value {
    json!({ "max": 4, "held": [], "instance": instance })
}

on_both! {
    async fn a_second_agent_of_a_name_gets_neither_the_name_nor_its_tasks(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let shown = server.post("workers", registration(&worker, FIRST)).await.ok();
        assert_eq!(shown["instance"], json!(FIRST));
        assert!(shown["instance_since"].as_i64() >= shown["registered_at"].as_i64(), "{shown}");
        let task = crew.task().create().await;
        let given = server.post(&worker.path("/claim"), claim(FIRST)).await.ok();
        assert_eq!(given["leases"][0]["task"]["id"], json!(task.id));

        crew.task().create().await;
        for (path, body) in [("workers".to_owned(), registration(&worker, SECOND)), (worker.path("/claim"), claim(SECOND))] {
            let said = server.post(&path, body).await.error(409);
            assert!(said.contains(&format!("Another agent runs as worker '{}'", worker.name)) && said.contains("--name"), "{said}");
            assert!(said.contains(&format!("worker remove {}", worker.name)), "{said}");
        }
        assert_eq!(worker.now().await["instance"], json!(FIRST));
        // The same agent gets what was lost on the way, and registers again.
        let again = server.post(&worker.path("/claim"), claim(FIRST)).await.ok();
        assert_eq!(again["leases"].as_array().unwrap().len(), 2, "{again}");
        server.post("workers", registration(&worker, FIRST)).await.ok();
    }

    async fn the_name_of_an_agent_that_is_gone_is_free_and_its_runs_end_where_they_are(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        server.post("workers", registration(&worker, FIRST)).await.ok();
        let task = crew.task().create().await;
        let given = server.post(&worker.path("/claim"), claim(FIRST)).await.ok();
        let lease = given["leases"][0]["lease"]["id"].clone();
        server.post("workers", json!({ "name": worker.name, "status": "offline" })).await.ok();
        let shown = server.post("workers", registration(&worker, SECOND)).await.ok();
        assert_eq!(shown["instance"], json!(SECOND));

        let other = crew.task().create().await;
        let given = server.post(&worker.path("/claim"), claim(SECOND)).await.ok();
        assert_eq!(given["leases"].as_array().unwrap().iter().map(|one| &one["task"]["id"]).collect::<Vec<_>>(), [&json!(other.id)]);
        // The first agent learns that it was replaced, and ends its run.
        server.post("workers", registration(&worker, FIRST)).await.error(409);
        server.post(&worker.path("/claim"), claim(FIRST)).await.error(409);
        let renewed = server.post(&worker.path("/heartbeat"), json!({ "leases": [lease] })).await.ok();
        assert_eq!(renewed["renewed"], json!([lease]));
        let done = json!({ "task_id": task.id, "lease_id": lease, "status": "success", "metrics": { "duration_ms": 1 } });
        let ended = server.post(&worker.path("/complete"), json!({ "completions": [done] })).await.ok();
        assert_eq!(ended["results"][0]["status"], json!(200));
        assert_eq!(task.now().await["status"], json!("completed"));
    }

    async fn clients_without_an_instance_share_a_worker_as_before(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let task = crew.task().create().await;
        let ids = |claimed: &Value| claimed["leases"].as_array().unwrap().iter().map(|one| one["task"]["id"].clone()).collect::<Vec<_>>();
        for _ in 0..2 {
            server.post("workers", json!({ "name": worker.name })).await.ok();
            let given = server.post(&worker.path("/claim"), json!({ "max": 1, "held": [] })).await.ok();
            assert_eq!(ids(&given), [json!(task.id)]);
        }
        assert_eq!(worker.now().await.get("instance"), None);
        server.post("workers", json!({ "name": worker.name, "instance": "me" })).await.refuses(&["instance"]);
        server.post(&worker.path("/claim"), json!({ "max": 1, "instance": "me" })).await.refuses(&["instance"]);
        // What an agent with an instance was given is not delivered to a client without one.
        server.post("workers", registration(&worker, FIRST)).await.ok();
        let second = crew.task().create().await;
        assert_eq!(ids(&server.post(&worker.path("/claim"), json!({ "max": 1, "instance": FIRST })).await.ok()), [json!(second.id)]);
        assert_eq!(ids(&server.post(&worker.path("/claim"), json!({ "max": 1, "held": [] })).await.ok()), [json!(task.id)]);
    }
}
