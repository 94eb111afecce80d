//! Several servers on one PostgreSQL: each answers requests, one is the leader, and all of them learn of changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::faults::examine;
use crate::support::load::Load;
use crate::support::server::Plan;
use crate::support::*;

/// Several servers on one database.
pub fn replicas(url: &str, count: usize) -> Vec<Arc<Server>> {
    replicas_of(count, || Server::on_url(url).env("LEASE_TTL_SECONDS", 5))
}

pub fn replicas_of(count: usize, plan: impl Fn() -> Plan) -> Vec<Arc<Server>> {
    (0..count).map(|_| Arc::new(plan().start())).collect()
}

pub fn apis(servers: &[Arc<Server>]) -> Vec<Api> {
    servers.iter().map(|server| (***server).clone()).collect()
}

/// The index of the server that says that it is the leader.
pub async fn leader(servers: &[Arc<Server>]) -> Option<usize> {
    for (i, server) in servers.iter().enumerate() {
        let Ok(answer) = server.try_get("/metrics").await else { continue };
        if answer.text.lines().any(|line| line == "bloom_leader 1") {
            return Some(i);
        }
    }
    None
}

#[test]
fn replicas_share_the_work() {
    let url = postgres::database();
    let servers = replicas(&url, 3);
    run(async {
        let load = Load::start(&apis(&servers));
        load.goes_on(200).await;
        eventually("one replica leads", || async { leader(&servers).await }).await;
        examine(&servers[0], load).await;
    });
}

/// The last word that a client has on each task, by its id as the tables have it, if it follows the watch stream.
type Kept = Arc<Mutex<BTreeMap<String, String>>>;

async fn keep(server: Arc<Server>, kept: Kept) {
    let mut stream = sse::open(&server, "watch", None).await;
    while let Some(event) = stream.read().await {
        let mut kept = kept.lock().expect("what is kept");
        let text = |name: &str| event.json()[name].as_str().expect("a text").to_owned();
        match event.kind.as_str() {
            "task" => drop(kept.insert(text("id").replace('-', ""), text("status"))),
            "removed" => drop(kept.remove(&text("id").replace('-', ""))),
            "reset" => kept.clear(),
            _ => {}
        }
    }
}

#[test]
fn watchers_of_each_replica_keep_the_last_word() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let watchers: Vec<Kept> = (0..4).map(|_| Kept::default()).collect();
        for (at, kept) in watchers.iter().enumerate() {
            beside(keep(servers[at % 2].clone(), kept.clone()));
        }
        let load = Load::start(&apis(&servers));
        load.goes_on(300).await;
        examine(&servers[0], load).await;
        eventually("what they keep is what the database has", || async {
            let tables = checker::read(&url).await;
            let is_right = |kept: &Kept| {
                let kept = kept.lock().expect("what is kept");
                kept.len() > 100 && kept.iter().all(|(id, status)| tables.states.get(id).is_some_and(|state| state.status == *status))
            };
            watchers.iter().all(is_right).then_some(())
        })
        .await;
    });
}

#[test]
fn work_submitted_to_one_replica_wakes_a_claim_on_another() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let (here, there) = crew_on_both(&servers);
        let worker = there.worker().register().await;
        // How soon, the benchmarks say. A claim that nothing wakes comes back without a lease.
        for _ in 0..10 {
            let path = worker.path("/claim");
            let api = (**servers[1]).clone();
            let claim = beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 30 })).await.ok() });
            let task = here.task().create().await;
            let answer = claim.await.unwrap();
            assert_eq!(answer["leases"][0]["task"]["id"], json!(task.id));
            there.api.task(&task.id).succeed("x").await;
        }
    });
}

#[test]
fn a_setting_stored_on_one_replica_is_in_force_on_all() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let body = json!({ "membridge_server_url": "http://127.0.0.1:9", "admin_key": "shared-by-all-of-us" });
        servers[0].post("config", body).await.ok();
        eventually("the other replica has the setting", || async {
            (servers[1].get("config").await.ok()["admin_key_masked"] == "shar****f-us").then_some(())
        })
        .await;
    });
}

#[test]
fn word_of_a_change_reaches_every_replica() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let (here, there) = (&servers[0], &servers[1]);
        let mut watch = sse::open(there, "watch", None).await;
        let (task, lease) = here.crew().leased_task().await;
        watch.find(|event| event.kind == "task" && event.json()["id"] == json!(task.id) && event.json()["status"] == "leased").await;
        let mut events = sse::open(there, &task.path("/events"), None).await;
        let path = task.path("/wait?timeout_sec=60");
        let api = (***there).clone();
        let waiting = beside(async move { api.get(&path).await.ok() });
        let sent = json!({ "lease_id": lease.id, "events": [{ "seq": 1, "kind": "text", "at": 1, "data": "hello" }] });
        here.post(&task.path("/events"), sent).await.ok();
        assert_eq!(events.next().await.unwrap().json()["data"], "hello");
        task.succeed("done").await;
        assert_eq!(waiting.await.unwrap()["status"], "completed");
        assert_eq!(there.task(&task.id).status().await, "completed");
        eventually("the other replica has the same counts", || async {
            let stats = there.get("stats").await.ok();
            (stats["tasks"]["by_status"]["completed"] == 1 && stats["leases"]["active"] == 0).then_some(())
        })
        .await;
    });
}

#[test]
fn a_worker_may_talk_to_any_replica() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let crew = servers[0].crew();
        let worker = crew.worker().slots(4).register().await;
        let elsewhere = Worker { api: &servers[1], name: worker.name.clone() };
        for _ in 0..2 {
            crew.task().create().await;
        }
        let mut ids = lease_ids(&worker.claim(1).await);
        ids.extend(lease_ids(&elsewhere.claim(1).await));
        let heartbeat = servers[1].post(&worker.path("/heartbeat"), json!({ "leases": ids })).await.ok();
        assert_eq!(heartbeat["renewed"].as_array().unwrap().len(), 2, "{heartbeat}");
        let again = servers[1].post(&worker.path("/claim"), json!({ "max": 4, "held": [] })).await.ok();
        assert_eq!(again["leases"].as_array().unwrap().len(), 2, "any replica delivers a lost reply again");
        servers[0].poke(&worker.path("/drain")).await.ok();
        eventually("the other replica knows of the drain", || async {
            let heartbeat = servers[1].post(&worker.path("/heartbeat"), json!({ "leases": ids })).await.ok();
            (heartbeat["directives"]["drain"] == true).then_some(())
        })
        .await;
    });
}
