//! Registration, removal, cordon and loss of workers.

use crate::on_both;
use crate::support::*;

on_both! { alone:
    async fn a_worker_has_the_documented_shape_and_defaults(database) {
        let server = Server::on(database).start();
        let before = now_ms();
        let worker = server.post("workers", json!({ "name": "plain" })).await.created();
        let registered = worker["registered_at"].as_i64().expect("integer milliseconds");
        assert!((before - 1000..=now_ms() + 1000).contains(&registered));
        assert!(worker["last_heartbeat"].as_i64().is_some_and(|seen| seen >= registered));
        let wanted = json!({
            "id": "plain", "node_id": "plain", "url": "", "status": "online",
            "capabilities": { "claude_cli": true, "max_concurrency": 1, "labels": [] },
            "last_heartbeat": worker["last_heartbeat"], "ip_addrs": [], "obs_count": 0, "db_sha": "", "registered_at": registered,
            "active_leases": 0, "agent_version": "unknown", "os_info": "", "install_method": "manual",
            "dispatch": "manual", "cordoned": false, "draining": false,
        });
        assert_eq!(worker, wanted);
        assert_eq!(server.get("workers").await.ok(), json!([wanted]));
        let mut one = wanted;
        one["leases"] = json!([]);
        assert_eq!(server.get("workers/plain").await.ok(), one);
    }

    async fn a_name_that_no_path_can_carry_is_refused(database) {
        let server = Server::on(database).start();
        for name in [".", ".."] {
            let texts = server.post("workers", json!({ "name": name })).await.refuses(&["name"]);
            assert!(texts["name"][0].as_str().unwrap().contains("another name"), "{texts}");
        }
        assert_eq!(server.get("workers").await.ok(), json!([]));
        server.post("workers", json!({ "name": "...", "status": "offline" })).await.created();
    }

    async fn a_worker_not_seen_for_long_enough_is_offline_until_it_is_seen(database) {
        let server = Server::on(database).env("WORKER_OFFLINE_AFTER_SECONDS", 1).start();
        let crew = server.crew();
        let worker = crew.worker().slots(3).register().await;
        let task = crew.task().create().await;
        let lease = task.lease_to(&worker).await;
        let lost = eventually("the worker is offline", || async {
            let shown = worker.now().await;
            (shown["status"] == "offline").then_some(shown)
        }).await;
        let late = now_ms() - lost["last_heartbeat"].as_i64().unwrap();
        assert!((1000..3000).contains(&late), "offline {late} ms after it was last seen");
        assert_eq!(task.status().await, "leased", "going offline leaves leases alone");
        let shown = task.now().await;
        let waiting = &shown["waiting"];
        assert_eq!(waiting["reason"], json!("worker_silent"), "{shown}");
        assert!(waiting["message"].as_str().unwrap().contains("its lease ends at 20"), "{waiting}");
        assert!(waiting["until"].as_i64() > Some(now_ms()), "{waiting}");
        crew.task().create().await.lease(json!({})).await.fails(503, "No available worker with free capacity");
        lease.heartbeat().await.ok();
        eventually("a heartbeat makes the worker online", || async { (worker.status().await == "online").then_some(()) }).await;
        assert_eq!(task.waits_for().await, "");
        eventually("the worker is offline again", || async { (worker.status().await == "offline").then_some(()) }).await;
        worker.claim(1).await;
        eventually("a claim makes the worker online", || async { (worker.status().await == "online").then_some(()) }).await;
        eventually("the worker is offline again", || async { (worker.status().await == "offline").then_some(()) }).await;
        let again = server.post("workers", json!({ "name": worker.name })).await.ok();
        assert_eq!(again["status"], "online", "a registration makes the worker online");
    }

    async fn an_open_claim_keeps_its_worker_seen(database) {
        let server = Server::on(database).env("WORKER_OFFLINE_AFTER_SECONDS", 3).start();
        let crew = server.crew();
        let (worker, witness) = (crew.worker().register().await, crew.worker().register().await);
        let path = worker.path("/claim");
        let claim = beside({ let api = (*server).clone(); async move { api.post(&path, json!({ "max": 1, "wait_sec": 6 })).await.ok() } });
        eventually("the other worker is offline", || async { (witness.status().await == "offline").then_some(()) }).await;
        assert_eq!(worker.status().await, "online");
        assert_eq!(claim.await.unwrap()["leases"], json!([]));
        assert_eq!(worker.status().await, "online");
    }

    async fn after_a_restart_those_unseen_for_long_are_offline_until_they_are_seen(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let (gone, fresh) = (crew.worker().register().await, crew.worker().register().await);
        let lease = crew.task().create().await.lease_for(&gone, 600).await;
        server.stop();
        // 32 minutes: longer than a worker may be silent, and than this test takes.
        let unseen = format!("UPDATE worker_seen SET last_seen = last_seen - 1920000 WHERE worker_id = '{}'", gone.name);
        direct::execute(&server.database_url(), &unseen).await;
        server.start_again();
        eventually("who was not seen is offline", || async { (gone.status().await == "offline").then_some(()) }).await;
        assert_eq!(fresh.status().await, "online", "who was seen shortly before is given time to come back");
        lease.heartbeat().await.ok();
        eventually("a sign of life makes it online", || async { (gone.status().await == "online").then_some(()) }).await;
        lease.complete("success", json!({ "output": "x" })).await.ok();
    }

    async fn a_status_set_explicitly_stays(database) {
        let server = Server::on(database).env("WORKER_OFFLINE_AFTER_SECONDS", 1).start();
        let crew = server.crew();
        let worker = crew.worker().with("status", json!("error")).register().await;
        worker.claim(1).await;
        assert_eq!(worker.status().await, "error", "a sign of life does not change the status");
        server.post("workers", json!({ "name": worker.name, "agent_version": "2" })).await.ok();
        assert_eq!(worker.status().await, "error", "an absent status is kept");
        worker.set_status("online").await;
        assert_eq!(worker.status().await, "online");
    }
}

on_both! {
    async fn registering_again_keeps_what_is_absent(server) {
        let name = unique("worker");
        let full = json!({
            "name": name, "url": "http://127.0.0.1:9", "status": "syncing",
            "capabilities": { "claude_cli": false, "max_concurrency": 32, "labels": ["gpu"], "agents": ["writer"], "profiles": ["writer"], "namespaces": ["team"], "git": true, "projects": ["docs"] },
            "ip_addrs": ["10.0.0.1"], "agent_version": "1.2", "os_info": "Alpine", "install_method": "script", "dispatch": "push",
        });
        let made = server.post("workers", full.clone()).await.created();
        for (key, value) in full.as_object().unwrap().iter().filter(|(key, _)| *key != "name") {
            assert_eq!(&made[key], value, "{key}");
        }
        let mut same = server.post("workers", json!({ "name": name })).await.ok();
        assert!(same["last_heartbeat"].as_i64() >= made["last_heartbeat"].as_i64());
        same["last_heartbeat"] = made["last_heartbeat"].clone();
        assert_eq!(same, made);
        let changed = server.post("workers", json!({ "name": name, "capabilities": { "max_concurrency": 3, "agents": ["writer"] }, "url": null })).await.ok();
        let wanted = json!({ "claude_cli": false, "max_concurrency": 3, "labels": ["gpu"], "agents": ["writer"], "namespaces": ["team"] });
        assert_eq!((&changed["capabilities"], &changed["url"]), (&wanted, &made["url"]));
    }

    async fn capabilities_without_agents_are_for_all_agents(server) {
        let name = unique("worker");
        let register = |capabilities| json!({ "name": name, "status": "offline", "capabilities": capabilities });
        let some = server.post("workers", register(json!({ "agents": ["writer"], "labels": ["gpu"] }))).await.created();
        assert_eq!(some["capabilities"]["agents"], json!(["writer"]));
        let all = server.post("workers", register(json!({}))).await.ok();
        assert_eq!(all["capabilities"], json!({ "claude_cli": true, "max_concurrency": 1, "labels": ["gpu"] }));
    }

    async fn a_registration_is_checked_field_by_field(server) {
        server.post("workers", json!({})).await.refuses(&["name"]);
        for (key, bad) in [
            ("name", json!("")), ("name", json!("n".repeat(129))), ("name", json!(5)), ("name", json!("a\0b")), ("url", json!(5)),
            ("status", json!("busy")), ("status", json!(1)), ("capabilities", json!([])), ("capabilities", json!({ "max_concurrency": 0 })),
            ("capabilities", json!({ "max_concurrency": 33 })), ("capabilities", json!({ "max_concurrency": 1.5 })),
            ("capabilities", json!({ "claude_cli": "yes" })), ("capabilities", json!({ "labels": "gpu" })),
            ("capabilities", json!({ "labels": [1] })), ("capabilities", json!({ "agents": "all" })), ("ip_addrs", json!("10.0.0.1")),
            ("capabilities", json!({ "namespaces": "team" })), ("capabilities", json!({ "namespaces": [""] })),
            ("capabilities", json!({ "namespaces": ["Team"] })), ("capabilities", json!({ "namespaces": ["a.b"] })),
            ("capabilities", json!({ "namespaces": ["-a"] })), ("capabilities", json!({ "namespaces": ["n".repeat(64)] })),
            ("capabilities", json!({ "git": "yes" })), ("capabilities", json!({ "projects": "docs" })), ("capabilities", json!({ "projects": [".git"] })),
            ("ip_addrs", json!([1])), ("agent_version", json!(1)), ("os_info", json!(1)), ("install_method", json!(1)),
            ("dispatch", json!("pull")),
        ] {
            let mut body = json!({ "name": "never-made" });
            body[key] = bad.clone();
            let answer = server.post("workers", body).await;
            assert_eq!(answer.status, 400, "{key}: {bad}: {}", answer.text);
            answer.refuses(&[key]);
        }
        server.get("workers/never-made").await.fails(404, "Worker not found");
        let name = format!("{:n<128}", unique("long"));
        server.post("workers", json!({ "name": name, "status": "offline" })).await.created();
        server.get(&format!("workers/{name}")).await.ok();
    }

    async fn a_name_may_need_escaping_in_a_path(server) {
        let name = unique("wörker / 1 %");
        server.post("workers", json!({ "name": name, "status": "offline" })).await.created();
        let escaped = name.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        assert_eq!(server.get(&format!("workers/{escaped}")).await.ok()["id"], json!(name));
        assert_eq!(server.delete(&format!("workers/{escaped}")).await.ok(), json!({ "removed": true, "id": name }));
    }

    async fn a_worker_shows_its_leases(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(3).register().await;
        let (first, second) = (crew.task().create().await, crew.task().create().await);
        let leases = [first.lease_to(&worker).await, second.lease_to(&worker).await];
        let shown = worker.now().await;
        assert_eq!(shown["active_leases"], 2);
        let mut ids = shown["leases"].as_array().unwrap().iter().map(|lease| lease["id"].as_str().unwrap()).collect::<Vec<_>>();
        ids.sort_unstable();
        assert_eq!(ids, [leases[0].id.as_str(), leases[1].id.as_str()]);
        first.succeed("x").await;
        let shown = worker.now().await;
        assert_eq!((&shown["active_leases"], shown["leases"].as_array().unwrap().len()), (&json!(1), 1));
        let listed = server.get("workers").await.ok();
        let entry = listed.as_array().unwrap().iter().find(|entry| entry["id"] == json!(worker.name)).cloned().unwrap();
        assert_eq!(entry["active_leases"], 1);
        assert!(entry.get("leases").is_none());
    }

    async fn a_removed_workers_tasks_go_back(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(3).register().await;
        let task = crew.task().attempts(1).create().await;
        let lease = task.lease_to(&worker).await;
        task.heartbeat(json!({})).await.ok();
        assert_eq!(server.delete(&worker.path("")).await.ok(), json!({ "removed": true, "id": worker.name }));
        let back = task.now().await;
        assert_eq!((&back["status"], &back["lease_id"], &back["worker_id"]), (&json!("queued"), &Value::Null, &Value::Null));
        assert_eq!((&back["attempts"], &back["infra_retries"]), (&json!(0), &json!(1)), "the attempt is given back");
        lease.reaches("failed").await;
        server.get(&worker.path("")).await.fails(404, "Worker not found");
        server.delete(&worker.path("")).await.fails(404, "Worker not found");
        lease.heartbeat().await.fails(404, "Lease not found or already expired");
        server.post("workers", json!({ "name": worker.name, "status": "offline" })).await.created();
    }

    async fn an_unknown_worker_is_not_found(server) {
        for call in ["cordon", "uncordon", "drain"] {
            server.poke(&format!("workers/nobody-of-this-name/{call}")).await.fails(404, "Worker not found");
        }
        server.get("workers/nobody-of-this-name").await.fails(404, "Worker not found");
        server.delete("workers/nobody-of-this-name").await.fails(404, "Worker not found");
        let (task, lease) = server.crew().leased_task().await;
        let completion = |task: &str, lease: &str| json!({ "task_id": task, "lease_id": lease, "status": "success", "metrics": { "duration_ms": 1 } });
        for (call, body) in [
            ("claim", json!({ "max": 1 })),
            // The claim does not wait before it is refused.
            ("claim", json!({ "max": 1, "wait_sec": 60, "held": [] })),
            ("claim", json!({ "max": 1, "held": [lease.id] })),
            ("heartbeat", json!({ "leases": [] })),
            ("heartbeat", json!({ "leases": [NO_ID] })),
            ("heartbeat", json!({ "leases": [lease.id] })),
            ("complete", json!({ "completions": [] })),
            ("complete", json!({ "completions": [{ "task_id": NO_ID }] })),
            ("complete", json!({ "completions": [completion(NO_ID, NO_ID)] })),
            ("complete", json!({ "completions": [completion(&task.id, &lease.id)] })),
        ] {
            let what = format!("{call} {body}");
            let answer = server.post(&format!("workers/nobody-of-this-name/{call}"), body).await;
            assert_eq!(answer.status, 404, "{what}: {}", answer.text);
            answer.fails(404, "Worker not found");
        }
        assert_eq!(task.status().await, "leased", "another worker's lease is unchanged");
        assert_eq!(server.get("workers/nobody-of-this-name").await.status, 404, "the calls create no worker");
        // Errors of syntax come first.
        server.post("workers/nobody-of-this-name/claim", json!([])).await.expect(400);
    }

    async fn a_claim_ends_with_its_worker(server) {
        let worker = server.crew().worker().register().await;
        let path = worker.path("/claim");
        let claim = beside({ let api = (*server).clone(); async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await } });
        let other = server.crew().worker().register().await;
        // The claim gets the same answer whichever of the two requests arrives first.
        other.claim(1).await;
        server.delete(&worker.path("")).await.ok();
        claim.await.unwrap().fails(404, "Worker not found");
    }

    async fn a_cordon_stays_until_it_is_lifted(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        let cordoned = server.poke(&worker.path("/cordon")).await.ok();
        assert_eq!((&cordoned["id"], &cordoned["cordoned"], &cordoned["draining"]), (&json!(worker.name), &json!(true), &json!(false)));
        server.post("workers", json!({ "name": worker.name, "status": "online" })).await.ok();
        assert_eq!(worker.now().await["cordoned"], true, "a registration does not lift it");
        let task = crew.task().create().await;
        assert_eq!(worker.claim(1).await, Vec::<Value>::new());
        assert_eq!(task.waits_for().await, "cordoned");
        server.poke(&worker.path("/uncordon")).await.ok();
        assert_eq!(worker.now().await["cordoned"], false);
        assert_eq!(worker.claim(1).await.len(), 1);
    }

    async fn a_drain_is_told_to_the_worker(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        crew.task().create().await;
        let held = lease_ids(&worker.claim(1).await);
        let drained = server.poke(&worker.path("/drain")).await.ok();
        assert_eq!((&drained["cordoned"], &drained["draining"]), (&json!(true), &json!(true)));
        crew.task().create().await;
        let claim = server.post(&worker.path("/claim"), json!({ "max": 1 })).await.ok();
        assert_eq!((&claim["leases"], &claim["directives"]["drain"]), (&json!([]), &json!(true)));
        let heartbeat = server.post(&worker.path("/heartbeat"), json!({ "leases": held })).await.ok();
        assert_eq!((&heartbeat["renewed"], &heartbeat["directives"]["drain"]), (&json!(held), &json!(true)), "a draining worker finishes its tasks");
        server.poke(&worker.path("/uncordon")).await.ok();
        let shown = worker.now().await;
        assert_eq!((&shown["cordoned"], &shown["draining"]), (&json!(false), &json!(false)));
    }

    async fn less_room_than_leases_lets_nothing_new_in(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        for _ in 0..2 {
            crew.task().create().await.lease_to(&worker).await;
        }
        server.post("workers", json!({ "name": worker.name, "capabilities": { "max_concurrency": 1 } })).await.ok();
        let task = crew.task().create().await;
        task.lease(json!({ "worker_id": worker.name })).await.expect(503);
        assert_eq!(worker.claim(1).await.len(), 0);
        assert_eq!(worker.now().await["active_leases"], 2, "the count of active leases is exact");
    }
}
