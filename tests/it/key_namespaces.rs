//! Keys that limit their worker to Kubernetes namespaces.

use crate::keys::{ADMIN, keyed, with_new_key};
use crate::on_both;
use crate::support::*;

on_both! { alone:
    async fn a_key_with_namespaces_registers_no_worker_for_others(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let own = with_new_key(&admin, &server, "own", "worker", json!({ "worker": "w1", "namespaces": ["a", "b"] })).await;
        let serving = |namespaces: &[&str]| json!({ "name": "w1", "capabilities": { "namespaces": namespaces } });
        for other in [&["c"][..], &["a", "c"]] {
            let said = own.post("workers", serving(other)).await.error(403);
            assert!(said.contains("only the namespaces a, b, not 'c'") && said.contains("--namespace c"), "{said}");
        }
        admin.get("workers/w1").await.error(404);
        let served = async |name: &str| admin.get(&format!("workers/{name}")).await.ok()["capabilities"]["namespaces"].clone();
        own.post("workers", serving(&["b"])).await.created();
        assert_eq!(served("w1").await, json!(["b"]));
        own.post("workers", serving(&[])).await.ok();
        assert_eq!(served("w1").await, json!([]));
        // One that names none gets the key's, also with no capabilities at all, and whatever an admin has set.
        admin.post("workers", serving(&["c"])).await.ok();
        own.post("workers", json!({ "name": "w1" })).await.ok();
        assert_eq!(served("w1").await, json!(["a", "b"]));
        admin.crew().task().create().await;
        assert_eq!(own.post("workers/w1/claim", json!({ "max": 1 })).await.ok()["leases"], json!([]));

        // A join token passes the limit on; a worker that exists is limited at once.
        admin.post("workers", json!({ "name": "w2" })).await.created();
        let token = with_new_key(&admin, &server, "token", "join", json!({ "worker": "w2", "namespaces": ["a"] })).await;
        let enrolled = token.post("enroll", json!({ "worker": "w2" })).await.created();
        assert_eq!(enrolled["namespaces"], json!(["a"]));
        assert_eq!(served("w2").await, json!(["a"]));
        let machine = server.with_key(enrolled["key"].as_str().unwrap());
        machine.post("workers", json!({ "name": "w2", "capabilities": { "namespaces": ["b"] } })).await.error(403);
        machine.post("workers", json!({ "name": "w2" })).await.ok();
        with_new_key(&admin, &server, "free", "worker", json!({ "worker": "w3" })).await.post("workers", json!({ "name": "w3" })).await.created();
        assert_eq!(served("w3").await, json!(null));

        let keys = admin.get("keys").await.ok();
        let listed: Vec<_> = keys.as_array().unwrap().iter().map(|key| (key["name"].as_str().unwrap(), key["namespaces"].clone())).collect();
        assert_eq!(listed, [("free", json!(null)), ("own", json!(["a", "b"])), ("worker-w2", json!(["a"]))]);
        for wrong in [json!([]), json!(["A"]), json!("a"), json!(vec!["a"; 513])] {
            admin.post("keys", json!({ "name": "no", "scope": "worker", "worker": "w9", "namespaces": wrong })).await.refuses(&["namespaces"]);
        }
        admin.post("keys", json!({ "name": "no", "scope": "read", "namespaces": ["a"] })).await.refuses(&["namespaces"]);
    }

    async fn tasks_outside_the_namespaces_of_a_key_do_not_exist_for_it(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let worker = admin.post("workers", json!({ "name": "w1", "capabilities": { "agents": ["coder"] } })).await.created();
        let held = Crew { api: &admin, slug: "coder".into() }.task().create().await;
        let lease = held.lease(json!({ "worker_id": worker["id"], "ttl_seconds": 300 })).await.created()["lease"]["id"].clone();
        // From now on its worker may serve this namespace only.
        let own = with_new_key(&admin, &server, "own", "worker", json!({ "worker": "w1", "namespaces": ["a"] })).await;
        let ended = json!({ "lease_id": lease, "status": "success", "output": "x", "metrics": { "duration_ms": 1 } });
        for _ in 0..2 {
            // It ends what its worker holds all the same, and may repeat that.
            own.post(&held.path("/complete"), ended.clone()).await.ok();
        }

        let other = admin.worker().register().await;
        let queued = admin.crew().task().create().await;
        let done = admin.crew().task().create().await;
        let lease = admin.task(&done.id).lease_to(&other).await;
        lease.complete("success", json!({ "output": "x" })).await.ok();
        let completion = json!({ "lease_id": lease.id, "status": "success", "output": "x", "metrics": { "duration_ms": 1 } });
        for id in [&done.id, &queued.id] {
            for (call, body) in [
                ("complete", json!({ "status": "success", "output": "x", "metrics": { "duration_ms": 1 } })),
                ("complete", completion.clone()),
                ("heartbeat", json!({})),
                ("release", json!({ "lease_id": NO_ID })),
                ("events", json!({ "lease_id": NO_ID, "events": [{ "seq": 1, "kind": "log", "at": 1, "data": "x" }] })),
                ("question", json!({ "lease_id": NO_ID, "number": 1, "text": "why" })),
            ] {
                let to = async |id: &str| {
                    let answer = own.post(&format!("llm-tasks/{id}/{call}"), body.clone()).await;
                    (answer.status, answer.text.replace(id, ""))
                };
                assert_eq!(to(id).await, to(NO_ID).await, "{call}");
            }
            let many = |id: &str| {
                let mut one = completion.clone();
                one["task_id"] = json!(id);
                json!({ "completions": [one] })
            };
            let to = async |id: &str| own.post("workers/w1/complete", many(id)).await.ok()["results"][0]["status"].clone();
            assert_eq!((to(id).await, to(NO_ID).await), (json!(404), json!(404)));
            let events = json!({ "runs": [{ "task_id": id, "lease_id": lease.id, "events": [{ "seq": 1, "kind": "log", "at": 1, "data": "x" }] }] });
            assert_eq!(own.post("workers/w1/events", events).await.ok()["results"][0]["status"], 404);
        }
    }
}
