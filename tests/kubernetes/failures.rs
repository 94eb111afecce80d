//! What goes on when the operator or the API server fails.

use serde_json::json;

use crate::cluster::{Cluster, PATIENCE, shared};
use crate::objects::{Player, is_true, object, phase, writes, writes_of};
use crate::support::{Database, eventually, now_ms, run, unique};

#[test]
fn an_operator_that_is_killed_in_any_phase_goes_on() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).env("WORKER_OFFLINE_AFTER_SECONDS", 3600).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 4).await;

        // Created while it was down.
        server.kill9();
        let name = team.create(&slug, json!({})).await;
        server.start_again();
        team.is_in_phase(&name, "Queued").await;

        // Leased while it was killed right after.
        let claimed = player.claim().await;
        server.kill9();
        server.start_again();
        team.is_in_phase(&name, "Running").await;

        // Completed right before.
        player.complete(&claimed, json!({})).await;
        server.kill9();
        server.start_again();
        let done = team.is_in_phase(&name, "Completed").await;
        assert!(is_true(&done, "Complete"));

        // Deleted in mid-run.
        let second = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        team.is_in_phase(&second, "Running").await;
        server.kill9();
        team.delete(&second).await;
        server.start_again();
        let id = claimed["task"]["id"].as_str().unwrap();
        eventually("the run is told to stop", || async {
            (server.get(&format!("llm-tasks/{id}")).await.ok()["cancel_requested"] == true).then_some(())
        })
        .await;
        player.complete(&claimed, json!({ "status": "error", "error_message": "stopped" })).await;
        team.is_gone(&second).await;

        // Its status is as it was, and the leader writes nothing but its Lease.
        assert_eq!(team.get(&name).await.status, done.status);
        server.kill9();
        server.start_again();
        eventually("it leads", || async { server.get("/readyz").await.text.contains("leading").then_some(()) }).await;
        let third = team.create(&slug, json!({})).await;
        team.is_in_phase(&third, "Queued").await;
        assert!(writes(&server).await < 2.5, "the finalizer and Queued of the third, nothing for the first");
    });
}

#[test]
fn an_api_server_that_is_away_loses_nothing() {
    run(async {
        let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start()));
        cluster.set_up().await;
        let team = cluster.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 4).await;
        let name = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        team.is_in_phase(&name, "Running").await;

        cluster.kill_api_server();
        let is_told = |words: &'static str| {
            let server = &server;
            async move { server.get("/readyz").await.expect(200).text.contains(words).then_some(()) }
        };
        eventually("/readyz tells it", || is_told("can't be reached")).await;
        assert!(server.get("/metrics").await.text.contains("bloom_kubernetes_up 0"));
        player.complete(&claimed, json!({ "output": "meanwhile" })).await;

        cluster.start_api_server();
        cluster.is_ready().await;
        eventually("/readyz tells it", || is_told("leading")).await;
        let done = team.is_in_phase(&name, "Completed").await;
        assert_eq!(done.status.unwrap().result_preview.as_deref(), Some("meanwhile"));
        let next = team.create(&slug, json!({})).await;
        team.shows(&next, "it works again", |object| phase(object).is_some()).await;
        cluster.end();
    });
}

#[test]
fn an_idle_cluster_gets_no_writes_but_the_leader_s() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 4).await;
        for _ in 0..2 {
            let name = team.create(&slug, json!({})).await;
            let claimed = player.claim().await;
            player.complete(&claimed, json!({})).await;
            team.is_in_phase(&name, "Completed").await;
        }
        team.create(&unique("nobody"), json!({ "promptFrom": { "secretKeyRef": { "name": "none", "key": "k" } } })).await;
        let renewals = async || {
            let metrics = server.get("/metrics").await.text;
            let line = metrics.lines().find(|line| line.contains("kind=\"Lease\"") && line.contains("verb=\"update\""));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
        };
        let after = async |count: f64| eventually("the leader renews", || async { (renewals().await >= count).then_some(()) }).await;
        // By the first renewal, all has settled.
        after(renewals().await + 1.0).await;
        let all = ["LLMTask", "TaskLease", "Event", "Worker"];
        let before = writes_of(&server, &all).await;
        after(renewals().await + 2.0).await;
        let more = writes_of(&server, &all).await - before;
        assert!(more < 0.5, "{more} writes");
    });
}

#[test]
fn an_api_server_that_hangs_is_noticed() {
    run(async {
        let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start()));
        cluster.set_up().await;
        let team = cluster.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let is_told = |words: &'static str| {
            let server = &server;
            async move { server.get("/readyz").await.expect(200).text.contains(words).then_some(()) }
        };
        eventually("it leads", || is_told("leading")).await;
        cluster.signal_api_server("STOP");
        eventually("/readyz tells it", || is_told("no answer within 5 s")).await;
        cluster.signal_api_server("CONT");
        eventually("it leads again", || is_told("leading")).await;
        let name = team.create(&unique("nobody"), json!({})).await;
        team.is_in_phase(&name, "Queued").await;
        cluster.end();
    });
}

#[test]
fn resources_that_are_not_installed_are_told() {
    run(async {
        let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start()));
        cluster.install_roles().await;
        let team = cluster.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let state = async || server.get("/readyz").await.expect(200).json()["kubernetes"].as_str().unwrap_or_default().to_owned();
        let told = || async { Some(state().await).filter(|told| told.contains("the LLMTasks can't be watched")) };
        let told = eventually("/readyz tells it", told).await;
        assert!(told.contains("install the definitions and the roles"), "{told}");
        cluster.install_resources().await;
        let name = team.create(&unique("nobody"), json!({})).await;
        team.is_in_phase(&name, "Queued").await;
        eventually("all is well", || async { (state().await == "leading").then_some(()) }).await;
        cluster.end();
    });
}

#[test]
fn an_operator_without_namespaces_serves_all() {
    run(async {
        let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start()));
        cluster.set_up().await;
        let (one, other) = (cluster.namespace().await, cluster.namespace().await);
        one.may_do_its_work_everywhere().await;
        let server = one.server(Database::Sqlite).env("OPERATOR_NAMESPACES", "").start();
        let slug = unique("agent");
        for team in [&one, &other] {
            let name = team.create(&slug, json!({})).await;
            team.is_in_phase(&name, "Queued").await;
        }
        drop(server);
        cluster.end();
    });
}

#[test]
fn a_server_starts_without_its_cluster() {
    run(async {
        let server = crate::support::Server::on(Database::Sqlite).env("OPERATOR", true).start();
        eventually("/readyz tells it", || async {
            server.get("/readyz").await.expect(200).text.contains("no configuration of a cluster").then_some(())
        })
        .await;
    });
}

#[test]
fn a_worker_that_is_gone_does_not_hold_a_deletion() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let name = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        team.is_in_phase(&name, "Running").await;
        team.delete(&name).await;
        let deleted_at = now_ms();
        eventually("most of its patience is over", || async { (now_ms() - deleted_at > 55_000).then_some(()) }).await;
        assert!(team.get(&name).await.metadata.deletion_timestamp.is_some(), "the run has time to end");
        team.is_gone(&name).await;
        let id = claimed["task"]["id"].as_str().unwrap();
        let task = server.get(&format!("llm-tasks/{id}")).await.ok();
        assert_eq!((&task["status"], &task["cancel_requested"]), (&json!("leased"), &json!(true)), "the lease is left to its end");
    });
}

#[test]
fn a_task_whose_object_is_gone_is_cancelled() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let name = team.create(&unique("nobody"), json!({})).await;
        let id = team.task_id(&name).await;
        server.kill9();
        team.delete(&name).await;
        // By hand, as people do with objects that do not go.
        let none = kube::api::Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        team.api::<bloom_operator::crds::LLMTask>().patch(&name, &kube::api::PatchParams::default(), &none).await.unwrap();
        team.is_gone(&name).await;
        server.start_again();
        eventually("it is cancelled", || async {
            (server.get(&format!("llm-tasks/{id}")).await.ok()["status"] == "cancelled").then_some(())
        })
        .await;
    });
}

#[test]
fn an_object_that_can_not_be_read_stops_no_other() {
    run(async {
        let cluster = Cluster::start();
        let cluster: &'static Cluster = Box::leak(Box::new(cluster));
        cluster.set_up().await;
        let team = cluster.namespace().await;
        let slug = unique("agent");
        // The schema of a newer version allows more than this program can read.
        cluster.open_schema().await;
        let mut wrong = object("wrong", &slug, json!({}));
        wrong["spec"]["labels"] = "no labels".into();
        let create = || async { team.kubectl(&["create", "-f", "-"], &wrong.to_string()).ok() };
        eventually("the API server takes it", create).await;
        let server = team.server(Database::Sqlite).start();
        let told = || async {
            let told = team.kubectl(&["get", "lt", "wrong", "-o", "jsonpath={.status.conditions[?(@.type=='Queued')]}"], "");
            told.ok().filter(|told| told.contains("Invalid"))
        };
        let told = eventually("the condition of the unreadable one", told).await;
        assert!(told.contains("can't be read by this version"), "{told}");
        wrong["metadata"]["name"] = "deleted".into();
        team.kubectl(&["create", "-f", "-"], &wrong.to_string()).unwrap();
        let is_taken =
            || async { team.kubectl(&["get", "lt", "deleted", "-o", "yaml"], "").ok().filter(|told| told.contains("finalizers")) };
        eventually("it is taken", is_taken).await;
        team.kubectl(&["delete", "lt", "deleted", &format!("--timeout={}s", PATIENCE.as_secs())], "").unwrap();
        let name = team.create(&slug, json!({})).await;
        team.is_in_phase(&name, "Queued").await;

        // Then the API server takes no status for it either.
        cluster.close_schema().await;
        server.kill9();
        server.start_again();
        let name = team.create(&slug, json!({})).await;
        team.is_in_phase(&name, "Queued").await;
        assert!(phase(&team.get(&name).await).is_some());
        cluster.end();
        drop(server);
    });
}
