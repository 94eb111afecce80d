//! Tasks are kept for a while for the workers that name their agent, before one that serves all agents gets them.

use crate::liveness::task_ids;
use crate::on_both;
use crate::replicas::replicas_of;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

/// A server on which tasks are kept for longer than a test takes.
fn patient(database: Database) -> Server {
    Server::on(database).env("NAMED_AGENT_WAIT_SECONDS", 3600).start()
}

/// A claim that waits for one task, and returns its id.
fn open_claim(worker: &Worker<'_>) -> tokio::task::JoinHandle<Value> {
    let (api, path) = (worker.api.clone(), worker.path("/claim"));
    beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await.ok()["leases"][0]["task"]["id"].clone() })
}

async fn picked(task: &Task<'_>) -> Value {
    task.lease(json!({})).await.created()["worker"]["id"].clone()
}

on_both! { alone:
    async fn workers_that_name_the_agent_come_first(database) {
        let server = patient(database);
        let crew = server.crew();
        let general = server.worker().slots(32).register().await;
        let named = crew.worker().slots(2).register().await;
        let tasks = [crew.task().create().await, crew.task().create().await, crew.task().create().await];
        assert!(general.claim(32).await.is_empty(), "a worker that names the agent has room");
        assert_eq!(picked(&tasks[0]).await, named.name, "although the other one has more room");
        assert_eq!(task_ids(&named.claim(1).await), [tasks[1].id.as_str()]);

        let waiting = tasks[2].now().await["waiting"].clone();
        let message = waiting["message"].as_str().unwrap();
        assert_eq!(waiting["reason"], "no_capacity");
        assert!(message.starts_with(&format!("every worker that names agent '{}' is full; at ", crew.slug)), "{message}");
        assert!(waiting["until"].as_i64().unwrap() > now_ms(), "{waiting}");
        assert!(general.claim(32).await.is_empty());
        tasks[2].lease(json!({})).await.fails(503, "No available worker with free capacity");

        let other = server.crew().task().create().await;
        assert_eq!(task_ids(&general.claim(32).await), [other.id.as_str()], "no worker names the agent of this one");
        tasks[2].lease_to(&general).await;
    }

    async fn a_worker_that_serves_all_agents_is_paused_for_some(database) {
        let server = Server::on(database).start();
        let (paused, open) = (server.crew(), server.crew());
        let general = server.worker().slots(4).register().await;
        let tell = async |agents: &[&str]| {
            let pause = |slug: &&str| json!({
                "kind": "account", "name": "x", "cause": "quota", "since": now_ms(), "until": now_ms() + 600_000, "message": "paused", "agents": [slug],
            });
            let pauses: Vec<Value> = agents.iter().map(pause).collect();
            server.post("workers", json!({ "name": general.name, "status": "online", "pauses": pauses })).await.ok();
        };
        tell(&[&paused.slug]).await;
        let (waits, runs) = (paused.task().create().await, open.task().create().await);
        assert_eq!(task_ids(&general.claim(4).await), [runs.id.as_str()], "only what is not paused");
        assert_eq!(waits.waits_for().await, "worker_paused");
        waits.lease(json!({})).await.fails(503, "No available worker with free capacity");

        let claim = open_claim(&general);
        let another = open.task().create().await;
        assert_eq!(claim.await.unwrap(), json!(another.id));
        let claim = open_claim(&general);
        tell(&[]).await;
        assert_eq!(claim.await.unwrap(), json!(waits.id), "the end of the pause wakes the claim");
    }

    async fn a_worker_that_takes_no_tasks_is_not_waited_for(database) {
        let server = patient(database);
        for change in ["offline", "cordon", "drain", "removal", "other agents", "a namespace"] {
            let crew = server.crew();
            let named = crew.worker().register().await;
            let general = server.worker().register().await;
            let task = crew.task().create().await;
            assert!(general.claim(1).await.is_empty());
            let claim = open_claim(&general);
            let capabilities = match change {
                "other agents" => Some(json!({ "agents": [unique("other")] })),
                "a namespace" => Some(json!({ "agents": [crew.slug], "namespaces": ["team"] })),
                _ => None,
            };
            match (change, capabilities) {
                (_, Some(capabilities)) => drop(server.post("workers", json!({ "name": named.name, "capabilities": capabilities })).await.ok()),
                ("offline", _) => named.set_status("offline").await,
                ("removal", _) => drop(server.delete(&named.path("")).await),
                (call, _) => drop(server.post(&named.path(&format!("/{call}")), json!({})).await.ok()),
            }
            assert_eq!(claim.await.unwrap(), json!(task.id), "{change}");
            assert_eq!(task.waits_for().await, "");
        }
    }

    async fn a_worker_that_is_back_is_kept_for_again(database) {
        let server = patient(database);
        let crew = server.crew();
        let named = crew.worker().register().await;
        let general = server.worker().slots(2).register().await;
        named.set_status("offline").await;
        let first = crew.task().create().await;
        assert_eq!(picked(&first).await, general.name);
        named.set_status("online").await;
        let second = crew.task().create().await;
        assert!(general.claim(1).await.is_empty());
        assert_eq!(task_ids(&named.claim(1).await), [second.id.as_str()]);
    }

    async fn after_the_wait_a_worker_that_serves_all_agents_gets_the_task(database) {
        let server = Server::on(database).env("NAMED_AGENT_WAIT_SECONDS", 1).start();
        let crew = server.crew();
        crew.worker().register().await;
        let general = server.worker().register().await;
        let task = crew.task().create().await;
        let created = task.now().await["created_at"].as_i64().unwrap();
        assert_eq!(open_claim(&general).await.unwrap(), json!(task.id));
        assert!(now_ms() - created >= 1_000);

        let stub = Stub::start().await;
        stub.always("/health", Reply::new(200, "{}"));
        stub.always("/execute-task", Reply::new(202, r#"{"accepted":true}"#));
        server.worker().with("url", json!(stub.url)).with("dispatch", json!("push")).register().await;
        let pushed = crew.task().create().await;
        assert_eq!(stub.has_got(1).await[0]["task_id"], json!(pushed.id));
        assert!(now_ms() - pushed.now().await["created_at"].as_i64().unwrap() >= 1_000);
    }

    async fn without_a_wait_all_are_equal(database) {
        let server = Server::on(database).env("NAMED_AGENT_WAIT_SECONDS", 0).start();
        let crew = server.crew();
        crew.worker().register().await;
        let general = server.worker().register().await;
        let task = crew.task().create().await;
        assert_eq!(task_ids(&general.claim(1).await), [task.id.as_str()]);
    }
}

#[test]
fn a_worker_of_another_replica_is_kept_for() {
    let url = postgres::database();
    let servers = replicas_of(2, || Server::on_url(&url).env("NAMED_AGENT_WAIT_SECONDS", 3600));
    run(async {
        let (here, there) = crew_on_both(&servers);
        let named = here.worker().register().await;
        let general = servers[1].worker().register().await;
        eventually("the other replica knows both workers", || async {
            (there.api.get("stats").await.ok()["workers"]["total"] == 2).then_some(())
        })
        .await;
        let task = here.task().create().await;
        assert!(general.claim(1).await.is_empty());
        let claim = open_claim(&general);
        named.cordon().await;
        assert_eq!(claim.await.unwrap(), json!(task.id));
    });
}
