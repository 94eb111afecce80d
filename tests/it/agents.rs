//! Calls to the agents of workers: health checks and orders.

use crate::on_both;
use crate::support::pushed::nowhere;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

const KEY: &str = "the-agents-common-key";
const ORDERS: [(&str, &str, &str); 3] = [
    ("agent-update", "/self-update", "updated"),
    ("agent-restart", "/restart", "restarted"),
    ("agent-uninstall", "/uninstall", "uninstalled"),
];

on_both! {
    async fn health_is_taken_over(server) {
        let stub = Stub::start().await;
        let told = json!({
            "status": "ok", "service": "membridge-agent", "version": "2.0.1", "hostname": "host", "os_info": "Alpine 3.20",
            "capabilities": { "claude_cli": false, "max_concurrency": 7, "labels": ["gpu"] }, "ip_addrs": ["10.0.0.7"], "extra": { "a": 1 },
        });
        stub.always("/health", Reply::new(200, &told.to_string()));
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).register().await;
        worker.set_status("offline").await;
        let mut expected = told.clone();
        expected["reachable"] = json!(true);
        assert_eq!(server.get(&worker.path("/agent-health")).await.ok(), expected);
        let now = worker.now().await;
        assert_eq!((&now["agent_version"], &now["os_info"], &now["status"]), (&json!("2.0.1"), &json!("Alpine 3.20"), &json!("online")));
        assert_eq!(now["ip_addrs"], json!(["10.0.0.7"]));
        let capabilities = json!({ "claude_cli": false, "max_concurrency": 7, "labels": ["gpu"], "agents": [crew.slug] });
        assert_eq!(now["capabilities"], capabilities, "a field that the agent leaves out stays unchanged");
        assert_eq!(now["url"], stub.url.as_str());
    }

    async fn an_agent_without_health_is_offline_until_it_is_seen(server) {
        let sick = Stub::start().await;
        sick.always("/health", Reply::new(500, r#"{"status":"ok"}"#));
        let odd = Stub::start().await;
        odd.always("/health", Reply::new(200, "<html>"));
        for (url, error) in [(sick.url.clone(), "HTTP 500"), (odd.url.clone(), "not a JSON object"), (nowhere(), "connect")] {
            let worker = server.crew().worker_at(&url).register().await;
            let answer = server.get(&worker.path("/agent-health")).await.ok();
            assert_eq!(answer["reachable"], false);
            assert!(answer["error"].as_str().unwrap().contains(error), "{answer}");
            assert_eq!(worker.status().await, "offline");
            server.post("workers", json!({ "name": worker.name })).await.ok();
            assert_eq!(worker.status().await, "online");
        }
    }

    async fn orders_are_passed_on(server) {
        for (call, path, word) in ORDERS {
            let stub = Stub::start().await;
            stub.always(path, Reply::new(200, r#"{"status":"?","version":"3.0"}"#));
            let worker = server.crew().worker_at(&stub.url).register().await;
            let answer = server.poke(&worker.path(&format!("/{call}"))).await.ok();
            assert_eq!(answer, json!({ "status": word, "version": "3.0" }));
            assert_eq!(stub.seen(path).len(), 1);
            assert_eq!(stub.seen(path)[0].method, reqwest::Method::POST);
            let audit = server.get("audit?limit=1000").await.ok();
            let entry = audit.as_array().unwrap().iter().find(|entry| entry["entity_id"] == worker.name.as_str() && entry["action"] == format!("agent_{word}"));
            assert_eq!(entry.map(|entry| (&entry["entity_type"], &entry["actor"])), Some((&json!("worker"), &json!("admin"))));
            let now = worker.now().await;
            let expected = if word == "uninstalled" { ("offline", "uninstalled") } else { ("online", "unknown") };
            assert_eq!((now["status"].as_str().unwrap(), now["agent_version"].as_str().unwrap()), expected);
        }
    }

    async fn an_order_that_is_refused_changes_nothing(server) {
        for (call, path, _) in ORDERS {
            let stub = Stub::start().await;
            stub.always(path, Reply::new(500, "boom"));
            let worker = server.crew().worker_at(&stub.url).register().await;
            server.poke(&worker.path(&format!("/{call}"))).await.fails(502, "Agent returned 500: boom");
            assert_eq!(worker.now().await["agent_version"], "unknown");
            assert_eq!(worker.status().await, "online");
            let worker = server.crew().worker_at(&nowhere()).register().await;
            assert!(server.poke(&worker.path(&format!("/{call}"))).await.error(502).contains("connect"));
        }
    }

    async fn workers_without_an_agent_to_call(server) {
        let worker = server.crew().worker().register().await;
        for path in [worker.path(""), "workers/nobody-of-this-name".to_owned()] {
            let expected = if path.contains("nobody") { (404, "Worker not found") } else { (400, "Worker has no URL configured") };
            server.get(&format!("{path}/agent-health")).await.fails(expected.0, expected.1);
            for (call, ..) in ORDERS {
                server.poke(&format!("{path}/{call}")).await.fails(expected.0, expected.1);
            }
        }
        server.post_bytes(&worker.path("/agent-update"), "{").await.error(400);
    }
}

on_both! { alone:
    async fn who_may_and_what_is_shown(database) {
        let plan = Server::on(database).env("MEMBRIDGE_AGENT_KEY", KEY).env("RUNTIME_API_KEY", "admin");
        let server = plan.env("RUNTIME_WORKER_KEY", "worker").env("RUNTIME_READ_KEY", "read").start();
        let (admin, stub) = (server.with_key("admin"), Stub::start().await);
        for path in ["/health", "/self-update", "/restart", "/uninstall"] {
            stub.always(path, Reply::new(200, "{}"));
        }
        let worker = admin.crew().worker_at(&stub.url).register().await;
        for key in ["worker", "read"] {
            server.with_key(key).get(&worker.path("/agent-health")).await.fails(403, &format!("This key has the scope {key}, and this call needs admin"));
        }
        assert!(stub.seen("/health").is_empty());
        admin.get(&worker.path("/agent-health")).await.ok();
        server.with_key("read").get("agent-install-script").await.expect(200);
        for (call, path, _) in ORDERS {
            for key in ["worker", "read"] {
                server.with_key(key).poke(&worker.path(&format!("/{call}"))).await.fails(403, &format!("This key has the scope {key}, and this call needs admin"));
            }
            assert!(stub.seen(path).is_empty());
            admin.poke(&worker.path(&format!("/{call}"))).await.ok();
            assert_eq!(stub.seen(path)[0].headers["x-membridge-agent"], KEY);
        }
        assert_eq!(stub.seen("/health")[0].headers["x-membridge-agent"], KEY);
        let told = admin.get("audit?limit=1000").await.ok().to_string() + &worker.now().await.to_string() + &server.log();
        assert!(!told.contains(KEY));
    }
}
