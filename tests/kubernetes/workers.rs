//! The objects of workers.

use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{Tenant, shared};
use crate::objects::{Player, writes_of};
use crate::support::{Database, eventually, run, unique};
use bloom_operator::crds::Worker;

async fn shows(team: &Tenant, name: &str, what: &str, holds: impl Fn(&Worker) -> bool) -> Worker {
    let api: Api<Worker> = team.api();
    eventually(&format!("{name}: {what}"), || async { api.get(name).await.ok().filter(&holds) }).await
}

fn phase(worker: &Worker) -> Option<&str> {
    worker.status.as_ref()?.phase.as_deref()
}

#[test]
fn each_worker_has_an_object_that_cordons_and_drains() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let player = Player::join(&server, &unique("agent"), 3).await;
        let name = &player.name;
        let online = shows(&team, name, "online", |worker| phase(worker) == Some("Online")).await;
        let status = online.status.as_ref().unwrap();
        assert_eq!((status.slots, status.unschedulable, status.conditions[0].status.as_str()), (Some(3), Some(false), "True"));
        let known = || async { server.get(&format!("workers/{name}")).await.ok() };
        let edit = async |spec: Value| {
            let api: Api<Worker> = team.api();
            api.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await.unwrap();
        };
        let is = |cordoned: bool, draining: bool| {
            let known = &known;
            async move {
                let known = known().await;
                (known["cordoned"] == cordoned && known["draining"] == draining).then_some(())
            }
        };
        edit(json!({ "unschedulable": true })).await;
        eventually("it is cordoned", || is(true, false)).await;
        edit(json!({ "drain": true })).await;
        eventually("it is drained", || is(true, true)).await;
        edit(json!({ "drain": false })).await;
        eventually("it is only cordoned", || is(true, false)).await;
        edit(json!({ "unschedulable": false })).await;
        eventually("it takes tasks again", || is(false, false)).await;
        shows(&team, name, "what the server did", |worker| worker.status.as_ref().unwrap().unschedulable == Some(false)).await;

        // What is changed over HTTP is shown in the object.
        server.poke(&format!("workers/{name}/drain")).await.ok();
        shows(&team, name, "the drain", |worker| worker.spec.drain && worker.spec.unschedulable).await;
        server.poke(&format!("workers/{name}/uncordon")).await.ok();
        shows(&team, name, "no drain", |worker| !worker.spec.drain && !worker.spec.unschedulable).await;
        server.post("workers", json!({ "name": name, "status": "offline" })).await.ok();
        let offline = shows(&team, name, "offline", |worker| phase(worker) == Some("Offline")).await;
        assert_eq!(offline.status.unwrap().conditions[0].status, "False");
        assert!(team.kubectl(&["get", "bw", name], "").unwrap().contains("Offline"));
    });
}

#[test]
fn objects_of_workers_come_and_go_with_them() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let odd = format!("Rack 7/{}", unique("Worker"));
        server.post("workers", json!({ "name": odd })).await.created();
        let api: Api<Worker> = team.api();
        let of_odd = || async {
            let all = api.list(&ListParams::default()).await.ok()?;
            all.items.into_iter().find(|worker| worker.status.as_ref().and_then(|status| status.worker_id.as_ref()) == Some(&odd))
        };
        let object = eventually("its object", of_odd).await;
        let name = object.metadata.name.clone().unwrap();
        // One that is deleted by hand comes back.
        api.delete(&name, &DeleteParams::default()).await.unwrap();
        let again =
            eventually("another object", || async { of_odd().await.filter(|again| again.metadata.uid != object.metadata.uid) }).await;
        // Signs of life and leases are not worth a write.
        eventually("its status is complete", || async { of_odd().await.filter(|worker| worker.status.is_some()) }).await;
        let before = writes_of(&server, &["Worker"]).await;
        for _ in 0..3 {
            let path = format!("workers/{}/heartbeat", odd.replace(' ', "%20").replace('/', "%2F"));
            server.post(&path, json!({ "leases": [] })).await.ok();
        }
        assert_eq!(again.metadata.name.as_ref(), Some(&name));
        // Another worker has the objects looked at. Its own object and its status are the only writes.
        let other = Player::join(&server, "nobody", 1).await;
        shows(&team, &other.name, "online", |worker| phase(worker) == Some("Online")).await;
        let count = writes_of(&server, &["Worker"]).await - before;
        assert!((count - 2.0).abs() < 0.5, "{count} writes");
        server.delete(&format!("workers/{}", odd.replace(' ', "%20").replace('/', "%2F"))).await.ok();
        eventually("it is gone", || async { api.get_opt(&name).await.ok().filter(Option::is_none) }).await;
    });
}

#[test]
fn a_worker_of_a_namespace_gets_only_the_tasks_of_its_tenant() {
    run(async {
        let (one, two) = (shared().await.namespace().await, shared().await.namespace().await);
        one.may_do_its_work_everywhere().await;
        let server = one.server(Database::Sqlite).env("OPERATOR_NAMESPACES", format!("{},{}", one.name, two.name)).start();
        let of_one = Player::able(&server, json!({ "max_concurrency": 8, "namespaces": [one.name] })).await;
        let of_two = Player::able(&server, json!({ "max_concurrency": 8, "namespaces": [two.name], "agents": ["coder"] })).await;
        for (player, tenant) in [(&of_one, &one), (&of_two, &two)] {
            let shown = shows(&one, &player.name, "its status", |worker| worker.status.is_some()).await;
            assert_eq!(shown.status.unwrap().namespaces, Some(vec![tenant.name.clone()]));
        }
        assert!(one.kubectl(&["get", "bw", &of_two.name, "-o", "wide"], "").unwrap().contains(&two.name));

        let of_http = server.post("llm-tasks", json!({ "context_id": "c", "agent_slug": "coder", "prompt": "p" })).await.created();
        // The tasks of the other tenant are more urgent.
        for _ in 0..3 {
            two.create("coder", json!({ "priority": 9 })).await;
            one.create("coder", json!({})).await;
        }
        for (player, tenant) in [(&of_one, &one), (&of_two, &two)] {
            for _ in 0..3 {
                let claimed = player.claim().await;
                assert_eq!(claimed["task"]["kubernetes"]["namespace"], json!(tenant.name), "{claimed}");
                player.complete(&claimed, json!({})).await;
            }
            assert!(player.finds_nothing().await);
        }
        let id = of_http["id"].as_str().unwrap();
        assert_eq!(server.get(&format!("llm-tasks/{id}")).await.ok()["status"], "queued");
        server.delete(&format!("workers/{}", of_two.name)).await.ok();
        let waits = two.create("coder", json!({})).await;
        let message = || async {
            let task = server.get(&format!("llm-tasks/{}", two.task_id(&waits).await)).await.ok();
            task["waiting"]["message"].as_str().map(str::to_owned)
        };
        let message = eventually("it waits", message).await;
        assert_eq!(message, format!("no online worker serves agent 'coder' in namespace '{}'", two.name));
        assert!(of_one.finds_nothing().await);
    });
}
