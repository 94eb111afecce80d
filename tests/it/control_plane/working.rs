//! The documented path: an agent registers at the control plane and nowhere else, and tasks run on it.

use super::*;
use crate::on_both;
use crate::support::agent::AgentPlan;
use crate::support::claude::Anthropic;

/// A server with a control plane inside, and that one's address.
fn served(database: Database) -> (Server, Api) {
    let server = Server::on(database)
        .env("WITH_MEMBRIDGE", "true")
        .env("MEMBRIDGE_PORT", 0)
        .env("MEMBRIDGE_ADMIN_KEY", KEY)
        .env("MEMBRIDGE_AGENT_KEY", AGENT_KEY)
        .env("WORKER_SYNC_SECONDS", 1)
        .start();
    let log = server.log();
    let line = log.lines().find_map(|line| line.trim().strip_prefix("membridge ")).unwrap_or_else(|| panic!("no address: {log}"));
    let plane = admin(line.trim());
    (server, plane)
}

fn agent(server: &Server, plane: &Api, name: &str) -> AgentPlan {
    agent_without_url(server, plane, name).arg(&["--listen", "127.0.0.1:0"])
}

fn agent_without_url(server: &Server, plane: &Api, name: &str) -> AgentPlan {
    let agent = server.agent(name).env("MEMBRIDGE_AGENT_KEY", AGENT_KEY).env("MEMBRIDGE_ADMIN_KEY", KEY);
    agent.arg(&["--membridge", plane.base()])
}

async fn worker(server: &Server, name: &str) -> Value {
    eventually("the server has taken the worker over", || async {
        let answer = server.get(&format!("workers/{name}")).await;
        (answer.status == 200).then(|| answer.ok())
    })
    .await
}

on_both! { alone:
    async fn a_control_plane_of_the_server_itself_is_shown_as_such(database) {
        let (server, plane) = served(database);
        let config = server.get("config").await.ok();
        assert_eq!(config["built_in_url"], plane.base());
    }

    async fn one_registration_is_enough_for_a_task_to_run(database) {
        let (server, plane) = served(database);
        let api = Anthropic::start().await;
        let _agent = agent(&server, &plane, "box").claude(&api, "").arg(&["--push-only"]).start();
        let found = worker(&server, "box").await;
        assert_eq!((&found["status"], &found["dispatch"], &found["install_method"]), (&json!("online"), &json!("manual"), &json!("agent")));
        assert_eq!((&found["capabilities"]["claude_cli"], &found["capabilities"]["git"]), (&json!(true), &json!(true)));
        let audit = server.get("audit?worker_id=box").await.ok();
        let registered: Vec<_> = audit.as_array().unwrap().iter().filter(|entry| entry["action"] == "worker_registered").collect();
        assert_eq!((registered.len(), &registered[0]["actor"]), (1, &json!("reconciler")), "{audit}");
        let crew = server.crew();
        let task = crew.task().prompt("say SAY:hello").create().await;
        let dispatched = task.dispatch(json!({})).await.ok();
        assert_eq!((&dispatched["dispatched"], &dispatched["worker_id"]), (&json!(true), &json!("box")));
        let done = task.reaches("completed").await;
        let artifacts = server.get(&format!("artifacts?task_id={}", task.id)).await.ok();
        assert_eq!((artifacts.as_array().unwrap().len(), &done["worker_id"]), (1, &json!("box")));
        assert!(!api.seen().is_empty(), "the real CLI has called its API");
    }

    async fn an_agent_that_claims_works_by_the_same_registration(database) {
        let (server, plane) = served(database);
        let _agent = agent(&server, &plane, "box").echo().start();
        let crew = server.crew();
        let task = crew.task().prompt("hello").create().await;
        assert_eq!(task.reaches("completed").await["worker_id"], "box");
        let through = server.get("/api/membridge/projects").await.ok();
        assert_eq!(through[0]["name"], "default", "the server asks its own control plane: {through}");
        assert_eq!(server.post("test-connection", json!({})).await.ok()["connected"], true);
        let id = through[0]["canonical_id"].as_str().unwrap();
        let selection = json!({ "primary_node_id": "box", "lease_seconds": 60 });
        server.post(&format!("/api/membridge/projects/{id}/leadership/select"), selection).await.ok();
        assert_eq!(leadership(&plane, "default").await["preferred_primary"], "box");
    }
}

#[test]
fn a_name_is_free_when_its_agent_has_stopped() {
    run(async {
        let (server, plane) = served(Database::Sqlite);
        let first = agent_without_url(&server, &plane, "box").echo().start();
        let crew = server.crew();
        assert_eq!(crew.task().create().await.reaches("completed").await["worker_id"], "box");
        // Another one in another directory, with no more of a URL than the first one.
        let (code, said) = agent_without_url(&server, &plane, "box").echo().start_in_vain();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("registered already"), "{said}");
        assert_eq!(crew.task().create().await.reaches("completed").await["worker_id"], "box", "the first one goes on");
        first.stop();
        let _second = agent_without_url(&server, &plane, "box").echo().start();
        assert_eq!(crew.task().create().await.reaches("completed").await["worker_id"], "box");
    });
}

#[test]
fn an_agent_of_the_server_is_not_disturbed_by_a_registration_of_its_name() {
    run(async {
        let (server, plane) = served(Database::Sqlite);
        let _first = server.agent("box").echo().arg(&["--max-concurrency", "2"]).start();
        let known = worker(&server, "box").await;
        let _second = agent(&server, &plane, "box").echo().start();
        eventually("the server has seen the registration", || async { server.log().contains("was not taken over").then_some(()) }).await;
        let shown = server.get("workers/box").await.ok();
        assert_eq!((&shown["status"], &shown["url"], &shown["capabilities"]), (&json!("online"), &known["url"], &known["capabilities"]));
        assert_eq!(server.crew().task().create().await.reaches("completed").await["worker_id"], "box");
    });
}

#[test]
fn a_registration_that_is_lost_is_made_again() {
    run(async {
        let (server, plane) = served(Database::Sqlite);
        let _agent = agent_without_url(&server, &plane, "box").echo().start();
        let registered = || async { plane.get("/agents").await.ok().as_array().unwrap().iter().any(|agent| agent["name"] == "box") };
        eventually("it is registered", || async { registered().await.then_some(()) }).await;
        plane.delete("/agents/box").await.expect(204);
        eventually("it is registered again", || async { registered().await.then_some(()) }).await;
    });
}

#[test]
fn another_agent_does_not_take_the_name() {
    run(async {
        let (server, plane) = served(Database::Sqlite);
        plane.post("/agents", json!({ "name": "box", "url": "http://192.0.2.1:7000" })).await.expect(201);
        let (code, said) = agent(&server, &plane, "box").echo().start_in_vain();
        assert_eq!(code, Some(1));
        assert!(said.contains("registered already") && said.contains("choose another name"), "{said}");
        assert_eq!(plane.get("/agents").await.ok()[0]["url"], "http://192.0.2.1:7000");
        let (_, said) = agent(&server, &plane, "other").env("MEMBRIDGE_ADMIN_KEY", "wrong").echo().start_in_vain();
        assert!(said.contains("--membridge-key-file"), "{said}");
    });
}
