//! The control plane behind the server: settings, proxy routes, and the workers that it lists.

use std::time::{Duration, Instant};

use crate::on_both;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

const KEY: &str = "membridge-admin-key";

fn joined(database: Database, stub: &Stub) -> Server {
    Server::on(database).env("MEMBRIDGE_SERVER_URL", &stub.url).env("MEMBRIDGE_ADMIN_KEY", KEY).env("WORKER_SYNC_SECONDS", 1).start()
}

async fn raw(server: &Server, request: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(server.base().trim_start_matches("http://")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

on_both! { alone:
    async fn the_configuration_is_shown_masked(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        let config = server.get("config").await.ok();
        assert_eq!(config["membridge_server_url"].as_str().unwrap().trim_end_matches('/'), stub.url);
        assert_eq!(config["admin_key_masked"], "memb****-key");
        assert!(config["connected"].is_boolean() && config.as_object().unwrap().contains_key("last_test"));
        let short = Server::on(database).env("MEMBRIDGE_SERVER_URL", &stub.url).env("MEMBRIDGE_ADMIN_KEY", "12345678").start();
        assert_eq!(short.get("config").await.ok()["admin_key_masked"], "****");
    }

    async fn a_password_in_the_address_is_shown_nowhere(database) {
        let stub = Stub::start().await;
        let with_password = stub.url.replace("http://", "http://me:very%40secret@");
        let server = Server::on(database).env("MEMBRIDGE_SERVER_URL", &with_password).env("LOG_LEVEL", "debug").start();
        stub.always("/projects", Reply::new(200, "[]"));
        let masked = stub.url.replace("http://", "http://****@");
        assert_eq!(server.get("config").await.ok()["membridge_server_url"].as_str().unwrap().trim_end_matches('/'), masked);
        server.get("/api/membridge/projects").await.ok();
        assert!(stub.seen("/projects")[0].headers.contains_key("authorization"), "it is used all the same");
        let shown = server.post("config", json!({ "membridge_server_url": with_password, "admin_key": "another-key-9999" })).await.ok();
        assert_eq!(shown["membridge_server_url"].as_str().unwrap().trim_end_matches('/'), masked);
        server.get("/api/membridge/projects").await.ok();
        let all = [server.get("audit").await.ok().to_string(), server.get("config").await.ok().to_string(), server.log()].concat();
        assert!(!all.contains("secret"), "{all}");
    }

    async fn a_page_of_the_control_plane_is_no_page_of_ours(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        let page = "<html><script>alert(1)</script></html>";
        for (kind, passed) in [
            (Some("text/html; charset=utf-8"), "text/plain; charset=utf-8"), (Some("image/svg+xml"), "text/plain; charset=utf-8"),
            (None, "text/plain; charset=utf-8"), (Some("text/plain"), "text/plain; charset=utf-8"), (Some("nonsense"), "text/plain; charset=utf-8"),
            (Some("application/json"), "application/json"), (Some("Application/problem+JSON; x=y"), "Application/problem+JSON; x=y"),
        ] {
            stub.always("/projects", Reply { content_type: kind, ..Reply::new(200, page) });
            let answer = server.get("/api/membridge/projects").await.expect(200);
            assert_eq!(answer.text, page, "as it came");
            assert_eq!((answer.header("content-type"), answer.header("x-content-type-options")), (Some(passed), Some("nosniff")), "{kind:?}");
        }
    }

    async fn a_project_stays_below_projects(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        for path in ["/health", "/agents", "/leadership", "/nodes", "/projects/nodes", "/projects/"] {
            stub.always(path, Reply::new(200, r#"["climbed"]"#));
        }
        for name in [".%09.", "%2e%2e", "%2E", ".%0a.", "%0d..", "..%09", "a%09b", "a%7fb", "%00", ".%0D%0A."] {
            // Typed by hand: parsers of URLs resolve some of these themselves.
            let request = format!("GET /api/membridge/projects/{name}/nodes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let answer = raw(&server, &request).await;
            assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("Project not found"), "{name}: {answer}");
        }
        assert!(stub.seen("/nodes").is_empty() && stub.seen("/projects/nodes").is_empty());
    }

    async fn a_slash_in_a_project_stays_encoded(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        for (sent, passed) in [("a%2fb", "a%2Fb"), ("a%2Fnodes%2f..", "a%2Fnodes%2F.."), ("..%2f..%2fhealth", "..%2F..%2Fhealth"), ("a%252fb", "a%252fb"), ("%252e%252e", "%252e%252e"), ("a%5c..", "a%5C..")] {
            let path = format!("/projects/{passed}/nodes");
            stub.always(&path, Reply::new(200, r#"["below"]"#));
            let request = format!("GET /api/membridge/projects/{sent}/nodes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let answer = raw(&server, &request).await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("below"), "{sent}: {answer}");
            assert_eq!(stub.seen(&path).len(), 1, "{sent}");
        }
    }

    async fn a_stored_configuration_wins_from_then_on(database) {
        let (old, new) = (Stub::start().await, Stub::start().await);
        let server = joined(database, &old);
        new.always("/projects", Reply::new(200, r#"["new"]"#));
        for bad in [
            json!({}), json!({ "membridge_server_url": "no url", "admin_key": "k" }), json!({ "membridge_server_url": "ftp://x", "admin_key": "k" }),
            json!({ "membridge_server_url": new.url, "admin_key": "" }), json!({ "membridge_server_url": new.url }),
        ] {
            let answer = server.post("config", bad.clone()).await;
            assert_eq!(answer.status, 400, "{bad}: {}", answer.text);
        }
        server.post("config", json!({})).await.refuses(&["membridge_server_url", "admin_key"]);
        assert_eq!(server.get("config").await.ok()["membridge_server_url"].as_str().unwrap().trim_end_matches('/'), old.url, "the old one is kept");
        let shown = server.post("config", json!({ "membridge_server_url": new.url, "admin_key": "another-key-9999" })).await.ok();
        assert_eq!((shown["membridge_server_url"].as_str().unwrap().trim_end_matches('/'), &shown["admin_key_masked"]), (new.url.as_str(), &json!("anot****9999")));
        assert_eq!(server.get("/api/membridge/projects").await.ok(), json!(["new"]));
        assert_eq!(new.seen("/projects")[0].headers.get("x-membridge-admin").unwrap(), "another-key-9999");
        server.stop();
        server.start_again();
        assert_eq!(server.get("config").await.ok()["admin_key_masked"], "anot****9999", "the stored settings survive a restart");
        assert_eq!(server.get("/api/membridge/projects").await.ok(), json!(["new"]));
        let audit = server.get("audit").await.ok();
        let entry = audit.as_array().unwrap().iter().find(|entry| entry["action"] == "config_updated").expect("an entry").clone();
        assert_eq!((&entry["entity_type"], &entry["actor"]), (&json!("config"), &json!("admin")));
        assert!(!audit.to_string().contains("another-key-9999"), "the audit trail has no secret");
        assert!(!server.log().contains("another-key-9999") && !server.log().contains(KEY), "the log has no secret");
    }

    async fn a_key_that_no_header_can_carry_is_refused(database) {
        let (old, new) = (Stub::start().await, Stub::start().await);
        let server = joined(database, &old);
        old.always("/projects", Reply::new(200, r#"["old"]"#));
        let before = server.get("config").await.ok();
        for bad in ["line\nbreak", "line\r\nX-Other: header", "end\n", "tab\tin it", "bell\u{7}", "delete\u{7f}", "nul\0", "\n"] {
            let answer = server.post("config", json!({ "membridge_server_url": new.url, "admin_key": bad })).await;
            assert_eq!(answer.status, 400, "{bad:?}: {}", answer.text);
            answer.refuses(&["admin_key"]);
        }
        let after = server.get("config").await.ok();
        for key in ["membridge_server_url", "admin_key_masked"] {
            assert_eq!(after[key], before[key], "{key}");
        }
        assert_eq!(server.get("/api/membridge/projects").await.ok(), json!(["old"]));
        assert!(new.seen("/projects").is_empty() && new.seen("/agents").is_empty());
        assert!(!server.get("audit").await.ok().to_string().contains("config_updated"));
        // Any other key is sent unchanged.
        new.always("/projects", Reply::new(200, "[]"));
        server.post("config", json!({ "membridge_server_url": new.url, "admin_key": "a key with blanks: ~!" })).await.ok();
        server.get("/api/membridge/projects").await.ok();
        assert_eq!(new.seen("/projects")[0].headers.get("x-membridge-admin").unwrap(), "a key with blanks: ~!");
    }

    async fn a_connection_test_tells_what_it_met(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        stub.always("/health", Reply::new(200, r#"{"status":"ok","version":"0.3.0"}"#));
        let good = server.poke("test-connection").await.ok();
        assert_eq!(good, json!({ "connected": true, "health": { "status": "ok", "version": "0.3.0" } }));
        assert!(server.get("config").await.ok()["last_test"].is_i64());
        assert_eq!(server.get("config").await.ok()["connected"], true);
        // The worker sync also calls the control plane, so its calls must fail too.
        stub.always("/agents", Reply::new(401, r#"{"detail":"no"}"#));
        stub.always("/health", Reply::new(401, r#"{"detail":"no"}"#));
        assert_eq!(server.poke("test-connection").await.ok(), json!({ "connected": false, "error": "HTTP 401" }));
        eventually("config shows it", || async { (server.get("config").await.ok()["connected"] == false).then_some(()) }).await;
        let trail = server.get("audit").await.ok();
        assert_eq!(trail.as_array().unwrap().iter().filter(|entry| entry["action"] == "connection_test").count(), 2);
        let alone = Server::on(database).start();
        let nothing = alone.poke("test-connection").await.ok();
        assert_eq!(nothing["connected"], false);
        assert!(nothing["error"].is_string());
    }

    async fn the_proxy_adds_the_key_and_passes_the_body_on(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        let odd = "{ \"b\":1,  \"a\": 1.50 }";
        for path in ["/health", "/projects", "/jobs", "/projects/p%201/leadership", "/projects/p%201/nodes"] {
            stub.always(path, Reply::new(200, odd));
            let answer = server.get(&format!("/api/membridge{path}")).await.expect(200);
            assert_eq!(answer.text, odd, "the body is unchanged");
            assert_eq!(answer.header("x-membridge-admin"), None);
            assert_eq!(stub.seen(path)[0].headers.get("x-membridge-admin").unwrap(), KEY);
        }
        let path = "/projects/p1/leadership/select";
        stub.always(path, Reply::new(200, r#"{"ok":true}"#));
        let select = async |body: Value| server.post(&format!("/api/membridge{path}"), body).await;
        assert_eq!(select(json!({ "primary_node_id": "n1" })).await.ok(), json!({ "ok": true }));
        assert_eq!(select(json!({ "primary_node_id": "n1", "lease_seconds": 60 })).await.ok(), json!({ "ok": true }));
        let bodies = stub.seen(path).iter().map(|request| serde_json::from_str::<Value>(&request.body).unwrap()).collect::<Vec<_>>();
        assert_eq!(bodies, [json!({ "primary_node_id": "n1", "lease_seconds": 3600 }), json!({ "primary_node_id": "n1", "lease_seconds": 60 })]);
        assert!(stub.seen(path).iter().all(|request| request.method == reqwest::Method::POST));
        select(json!({})).await.refuses(&["primary_node_id"]);
        let trail = server.get("audit").await.ok();
        assert!(trail.as_array().unwrap().iter().any(|entry| entry["action"] == "leadership_promote"), "{trail}");
    }

    async fn other_answers_go_through_with_their_status(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        server.get("/api/membridge/projects").await.fails(404, "Membridge returned 404");
        stub.always("/projects", Reply::new(403, r#"{"secret":"inner"}"#));
        server.get("/api/membridge/projects").await.fails(403, "Membridge returned 403");
        let path = "/projects/p1/leadership/select";
        stub.always(path, Reply::new(409, r#"{"detail":"taken"}"#));
        let select = server.post(&format!("/api/membridge{path}"), json!({ "primary_node_id": "n1" })).await;
        select.fails(409, r#"{"detail":"taken"}"#);
        assert_eq!(stub.seen(path).len(), 1, "a 4xx is not retried");
    }

    async fn a_server_error_is_tried_again(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        for _ in 0..2 {
            stub.once("/projects", Reply::new(500, "oops"));
        }
        stub.always("/projects", Reply::new(200, "[1]"));
        let started = Instant::now();
        assert_eq!(server.get("/api/membridge/projects").await.ok(), json!([1]));
        assert_eq!(stub.seen("/projects").len(), 3);
        assert!(started.elapsed() >= Duration::from_millis(1500), "waits 0.5 s, then 1 s: {:?}", started.elapsed());
        stub.always("/health", Reply::new(503, "down"));
        server.get("/api/membridge/health").await.fails(503, "Membridge returned 503");
        assert_eq!(stub.seen("/health").len(), 2, "health is retried once");
    }

    async fn a_control_plane_that_is_down_is_a_bad_gateway(database) {
        let nowhere = format!("http://127.0.0.1:{}", janitor::free_port());
        let server = Server::on(database).env("MEMBRIDGE_SERVER_URL", &nowhere).env("MEMBRIDGE_ADMIN_KEY", KEY).start();
        server.get("/api/membridge/health").await.error(502);
        let health = server.get("/api/runtime/health").await.ok();
        let state = &health["membridge"];
        assert!(state["consecutiveFailures"].as_i64().unwrap() >= 1, "{state}");
        assert!(state["lastError"].is_string() && state["lastSuccess"].is_null(), "{state}");
        assert_eq!(state["connected"], false);
        let test = server.poke("test-connection").await.ok();
        assert_eq!(test["connected"], false);
    }

    async fn an_answer_brings_the_state_back(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        stub.always("/health", Reply::new(200, "{}"));
        server.get("/api/membridge/health").await.ok();
        let state = server.get("/api/runtime/health").await.ok()["membridge"].clone();
        assert_eq!((&state["consecutiveFailures"], &state["connected"], &state["lastError"]), (&json!(0), &json!(true), &Value::Null), "{state}");
        assert!(state["lastSuccess"].is_i64());
    }

    async fn listed_workers_are_taken_over(database) {
        let stub = Stub::start().await;
        stub.always("/agents", Reply::new(200, &json!([
            { "name": "one", "url": "http://127.0.0.1:9/one", "status": "online", "last_seen": 1_700_000_000.25,
              "capabilities": { "claude_cli": true, "max_concurrency": 4, "labels": ["gpu"] } },
            { "name": "", "status": "online" },
            "garbage",
            { "name": "two", "status": "offline", "last_seen": null },
            { "name": "three", "status": "sleeping", "last_seen": 1_700_000_000_000_i64 },
        ]).to_string()));
        let server = joined(database, &stub);
        let one = eventually("the worker is listed", || async {
            let answer = server.get("workers/one").await;
            (answer.status == 200).then(|| answer.json())
        }).await;
        assert_eq!((&one["url"], &one["status"]), (&json!("http://127.0.0.1:9/one"), &json!("online")));
        assert_eq!((&one["capabilities"]["max_concurrency"], &one["capabilities"]["labels"]), (&json!(4), &json!(["gpu"])));
        assert_eq!(server.get("workers/two").await.ok()["status"], "offline");
        assert_eq!(server.get("workers/three").await.ok()["status"], "unknown");
        assert_eq!(server.get("workers").await.ok().as_array().unwrap().len(), 3, "only the bad entries are skipped");
        server.poke("workers/one/cordon").await.ok();
        stub.always("/agents", Reply::new(200, &json!({ "agents": [{ "name": "one", "url": "http://127.0.0.1:9/new", "status": "online" }] }).to_string()));
        eventually("the change is taken over", || async {
            (server.get("workers/one").await.ok()["url"] == "http://127.0.0.1:9/new").then_some(())
        }).await;
        assert_eq!(server.get("workers/one").await.ok()["cordoned"], true, "the cordon is kept");
        let entries = server.get("audit?limit=1000").await.ok();
        let of_one = entries.as_array().unwrap().iter().filter(|entry| entry["entity_id"] == "one").count();
        let polls = stub.seen("/agents").len();
        eventually("two more syncs", || async { (stub.seen("/agents").len() >= polls + 2).then_some(()) }).await;
        let entries = server.get("audit?limit=1000").await.ok();
        assert_eq!(entries.as_array().unwrap().iter().filter(|entry| entry["entity_id"] == "one").count(), of_one, "no entry is added");
        server.delete("workers/one").await.ok();
        eventually("a listed worker comes back", || async { (server.get("workers/one").await.status == 200).then_some(()) }).await;
    }

    async fn a_listing_that_makes_no_sense_harms_nobody(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        let worker = server.crew().worker().register().await;
        for nonsense in [Reply::new(200, "<html>"), Reply::new(200, "{\"agents\": 5}"), Reply::new(401, "no"), Reply::new(500, "oops")] {
            let polls = stub.seen("/agents").len();
            stub.always("/agents", nonsense);
            eventually("the list was requested", || async { (stub.seen("/agents").len() > polls).then_some(()) }).await;
        }
        assert_eq!(worker.status().await, "online");
        stub.always("/agents", Reply::new(200, r#"[{"name":"fine"}]"#));
        eventually("a good list is taken over again", || async { (server.get("workers/fine").await.status == 200).then_some(()) }).await;
    }

    async fn a_slow_control_plane_is_waited_for(database) {
        let stub = Stub::start().await;
        let server = joined(database, &stub);
        stub.always("/projects", Reply { after: Duration::from_secs(1), ..Reply::new(200, "[]") });
        server.get("/api/membridge/projects").await.ok();
    }
}
