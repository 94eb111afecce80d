//! Two replicas on one PostgreSQL, of which one runs the controllers.

use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;

use crate::cluster::shared;
use crate::objects::{Player, writes};
use crate::support::{Database, Server, eventually, janitor, run, unique};

/// A process that was stopped for a while acts on an old picture, until it learns that another one leads.
#[test]
fn a_leader_that_slept_creates_no_tasks_for_objects_that_are_gone() {
    run(async {
        let team = shared().await.namespace().await;
        let first = team.server(Database::Postgres).start();
        let state = async |server: &Server| server.get("/readyz").await.json()["kubernetes"].as_str().unwrap_or_default().to_owned();
        eventually("the first leads", || async { (state(&first).await == "leading").then_some(()) }).await;
        let second = team.with_operator(Server::on_url(&first.database_url()), "operator-1").start();
        let slug = unique("agent");
        let player = Player::join(&second, &slug, 20).await;
        let mut names = Vec::new();
        for _ in 0..20 {
            names.push(team.create(&slug, json!({ "ttlSecondsAfterFinished": 0 })).await);
        }
        // It waits a moment with the statuses, because a worker is free: when it stops, it has seen none.
        let all = || async { (second.get("llm-tasks").await.ok().as_array().unwrap().len() == names.len()).then_some(()) };
        eventually("the tasks are created", all).await;
        janitor::signal(first.pid(), "STOP");
        for _ in &names {
            player.complete(&player.claim().await, json!({})).await;
        }
        // The second leads, and removes the objects with their tasks.
        for name in &names {
            team.is_gone(name).await;
        }
        janitor::signal(first.pid(), "CONT");
        eventually("the first follows", || async { first.log().contains("no longer leads the operators").then_some(()) }).await;
        let tasks = second.get("llm-tasks").await.ok();
        assert_eq!(tasks, json!([]));
    });
}

#[test]
fn a_leader_that_is_killed_is_replaced() {
    run(async {
        let team = shared().await.namespace().await;
        let first = team.server(Database::Postgres).start();
        let state = async |server: &Server| server.get("/readyz").await.json()["kubernetes"].as_str().unwrap().to_owned();
        eventually("the first leads", || async { (state(&first).await == "leading").then_some(()) }).await;
        let second = team.with_operator(Server::on_url(&first.database_url()), "operator-1").start();
        eventually("the second follows", || async { (state(&second).await == "following operator-0").then_some(()) }).await;

        let slug = unique("agent");
        let player = Player::join(&second, &slug, 4).await;
        let name = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        team.is_in_phase(&name, "Running").await;
        first.kill9();
        // Every replica serves HTTP, whoever leads.
        player.complete(&claimed, json!({})).await;
        eventually("the second leads", || async { (state(&second).await == "leading").then_some(()) }).await;
        team.is_in_phase(&name, "Completed").await;
        // Its controllers are in the list of the reconcilers, at every replica.
        eventually("the controllers are listed", || async {
            let all = second.get("reconcilers").await.ok();
            let runs =
                |name: &str| all.as_array().unwrap().iter().any(|one| one["name"] == name && one["state"] == "ok" && one["runs"] != 0);
            (runs("llm_tasks") && runs("worker_objects")).then_some(())
        })
        .await;
        assert!(writes(&second).await < 2.5, "only the end was still to be written, and the TaskLease to be removed");

        // A leader that stops lets the other one lead at once.
        first.start_again();
        eventually("the first follows", || async { (state(&first).await == "following operator-1").then_some(()) }).await;
        assert!(second.stop().success());
        let lease = team.api::<Lease>().get("bloom-runtime").await.unwrap().spec.unwrap();
        assert_ne!(lease.holder_identity.as_deref(), Some("operator-1"), "it was released");
        eventually("the first leads again", || async { (state(&first).await == "leading").then_some(()) }).await;
    });
}
