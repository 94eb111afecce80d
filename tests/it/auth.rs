//! Keys, and what each of them allows.

use reqwest::Method;

use crate::on_both;
use crate::support::*;

const ADMIN: &str = "admin-key-0123456789";
const WORKER: &str = "worker-key-0123456789";
const READER: &str = "reader-key-0123456789";

fn guarded(database: Database) -> Server {
    Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("RUNTIME_WORKER_KEY", WORKER).env("RUNTIME_READ_KEY", READER).start()
}

on_both! { alone:
    async fn the_key_guards_the_api_and_the_metrics(database) {
        let server = guarded(database);
        let closed = [
            "/api/runtime/stats", "/api/runtime/llm-tasks", "/api/runtime/workers", "/api/runtime/config", "/api/membridge/health",
            "/api/nobody/knows", "/api", "/metrics", "/api/runtime/watch",
        ];
        for path in closed {
            for key in ["", "wrong", "admin-key-012345678", "admin-key-01234567890"] {
                let api = if key.is_empty() { (*server).clone() } else { server.with_key(key) };
                let answer = api.get(path).await;
                if path == "/api" && answer.status == 404 {
                    continue;
                }
                answer.fails(401, "Unauthorized");
            }
        }
        let admin = server.with_key(ADMIN);
        admin.get("/api/runtime/stats").await.ok();
        admin.get("/metrics").await.expect(200);
        admin.get("/api/nobody/knows").await.error(404);
        server.with_header("authorization", &format!("Bearer {ADMIN}")).get("stats").await.ok();
        server.with_header("authorization", "Bearer wrong").get("stats").await.fails(401, "Unauthorized");
        server.with_header("authorization", &format!("Basic {ADMIN}")).get("stats").await.fails(401, "Unauthorized");
    }

    async fn probes_and_documents_are_open(database) {
        let server = guarded(database);
        for path in ["/api/runtime/health", "/health", "/healthz", "/readyz", "/openapi.json", "/sign-in"] {
            assert_eq!(server.get(path).await.status, 200, "{path}");
        }
        let docs = server.get("/docs").await;
        assert!(matches!(docs.status, 200 | 301 | 302 | 303 | 307 | 308), "{docs:?}");
        server.poke("/api/runtime/test-connection").await.ok();
    }

    async fn a_request_without_the_key_is_refused_before_its_body_is_read(database) {
        let server = guarded(database);
        server.post_bytes("llm-tasks", "{").await.fails(401, "Unauthorized");
        server.post_bytes("llm-tasks", vec![b' '; 2 << 20]).await.fails(401, "Unauthorized");
        server.delete("workers/x").await.fails(401, "Unauthorized");
    }

    async fn any_bytes_may_be_a_key(database) {
        let key = "schlüssel \u{1F511} with spaces, \"quotes\" and = signs";
        let server = Server::on(database).env("RUNTIME_API_KEY", key).start();
        server.get("stats").await.fails(401, "Unauthorized");
        let bytes = reqwest::header::HeaderValue::from_bytes(key.as_bytes()).unwrap();
        let answer = server.request(Method::GET, "stats").header("x-runtime-api-key", bytes).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let raw = reqwest::header::HeaderValue::from_bytes(&[0xff, 0xfe, 0x80]).unwrap();
        let answer = server.request(Method::GET, "stats").header("x-runtime-api-key", raw).send().await.unwrap();
        assert_eq!(answer.status(), 401);
    }

    async fn the_reader_reads(database) {
        let server = guarded(database);
        let (admin, reader) = (server.with_key(ADMIN), server.with_key(READER));
        let task = admin.crew().task().create().await;
        for path in ["stats", "llm-tasks", &task.path(""), "workers", "leases", "audit", "runs", "artifacts", "config", "usage", "/metrics"] {
            let answer = reader.get(path).await;
            assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{path}");
        }
        for (method, path) in [
            (Method::POST, "llm-tasks".to_owned()), (Method::POST, task.path("/cancel")), (Method::POST, "workers".to_owned()),
            (Method::POST, "config".to_owned()), (Method::DELETE, "workers/x".to_owned()), (Method::POST, "workers/x/claim".to_owned()),
            (Method::GET, "workers/x/agent-health".to_owned()),
        ] {
            let what = format!("{method} {path}");
            let answer = reader.send(method, &path, None).await;
            assert_eq!(answer.status, 403, "{what}: {}", answer.text);
            answer.error(403);
        }
    }

    async fn the_worker_does_its_work_and_nothing_else(database) {
        let server = guarded(database);
        let (admin, own) = (server.with_key(ADMIN), server.with_key(WORKER));
        let crew = admin.crew();
        let worker = own.worker().slots(8).register().await;
        for _ in 0..3 {
            crew.task().create().await;
        }
        let claimed = worker.claim(8).await;
        let ids = lease_ids(&claimed);
        let task = |i: usize| own.task(claimed[i]["task"]["id"].as_str().unwrap());
        task(0).heartbeat(json!({})).await.refuses(&["lease_id"]);
        task(0).heartbeat(json!({ "lease_id": ids[0] })).await.ok();
        task(0).heartbeat(json!({ "worker_id": worker.name })).await.ok();
        own.post(&worker.path("/heartbeat"), json!({ "leases": ids })).await.ok();
        own.post(&task(0).path("/events"), json!({ "lease_id": ids[0], "events": [{ "seq": 1, "kind": "log", "at": 1, "data": 1 }] })).await.ok();
        let done = json!({ "status": "success", "metrics": { "duration_ms": 1 } });
        task(0).complete(done.clone()).await.refuses(&["lease_id"]);
        let mut named = done.clone();
        named["lease_id"] = json!(ids[0]);
        task(0).complete(named).await.ok();
        let completions = json!([{ "task_id": task(1).id, "lease_id": ids[1], "status": "success", "metrics": { "duration_ms": 1 } }]);
        let answer = own.post(&worker.path("/complete"), json!({ "completions": completions })).await.ok();
        assert_eq!(answer["results"][0]["status"], 200);
        own.post(&task(2).path("/release"), json!({ "lease_id": ids[2], "reason": "x" })).await.ok();
        for (method, path) in [
            (Method::GET, "stats".to_owned()), (Method::GET, "llm-tasks".to_owned()), (Method::POST, "llm-tasks".to_owned()),
            (Method::POST, task(2).path("/lease")), (Method::POST, task(2).path("/cancel")), (Method::POST, task(2).path("/requeue")),
            (Method::DELETE, worker.path("")), (Method::POST, worker.path("/cordon")), (Method::POST, "config".to_owned()),
            (Method::GET, "config".to_owned()), (Method::GET, "/metrics".to_owned()), (Method::POST, "llm-tasks:batch".to_owned()),
            (Method::GET, "watch".to_owned()), (Method::GET, "audit".to_owned()),
        ] {
            let what = format!("{method} {path}");
            let answer = own.send(method, &path, None).await;
            assert_eq!(answer.status, 403, "{what}: {}", answer.text);
            answer.error(403);
        }
    }

    async fn without_a_key_everything_is_open(database) {
        let server = Server::on(database).start();
        server.with_key("anything").get("stats").await.ok();
        server.get("/metrics").await.expect(200);
    }

    async fn listening_to_the_world_without_a_key_is_a_decision(database) {
        let server = Server::on(database).start();
        assert!(!server.log().to_lowercase().contains("no api key"), "{}", server.log());
        assert!(!server.log().contains("RUNTIME_API_KEY is not set"), "there is no warning on loopback: {}", server.log());
        // This server prints 0.0.0.0 as its address, and the fixture waits for a loopback URL, so the program is started directly.
        let port = janitor::free_port();
        let plan = server.plan().clone().env("HOST", "0.0.0.0").env("PORT", port);
        server.stop();
        let refused = plan.clone().start_in_vain();
        let words = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{words}");
        assert!(words.contains("RUNTIME_API_KEY") && words.contains("ALLOW_NO_KEY"), "it says what to do: {words}");
        let mut command = plan.env("ALLOW_NO_KEY", "true").command(&["serve"]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
        let mut child = janitor::spawn(command).unwrap();
        let api = Api::new(&format!("http://127.0.0.1:{port}"));
        eventually("it is ready", || async { api.try_get("/readyz").await.is_ok_and(|answer| answer.status == 200).then_some(()) }).await;
        janitor::signal(child.id(), "TERM");
        let mut words = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut words).unwrap();
        child.wait().unwrap();
        assert!(words.contains("NO AUTHENTICATION") && words.contains("RUNTIME_API_KEY"), "{words}");
    }

    async fn refused_keys_are_logged_and_counted(database) {
        let server = guarded(database);
        server.with_key("a-wrong-key-of-somebody").get("stats").await.fails(401, "Unauthorized");
        server.get("/metrics").await.fails(401, "Unauthorized");
        server.with_key(READER).poke("workers/x/cordon").await.error(403);
        let log = eventually("they are logged", || async {
            let log = server.log();
            (log.matches("client=127.0.0.1").count() >= 3).then_some(log)
        }).await;
        for secret in ["a-wrong-key-of-somebody", READER] {
            assert!(!log.contains(secret), "{log}");
        }
        let metrics = server.with_key(READER).get("/metrics").await.expect(200).text;
        for sample in [r#"bloom_http_refused_total{reason="unauthorized"} 2"#, r#"bloom_http_refused_total{reason="forbidden"} 1"#] {
            assert!(metrics.contains(sample), "{sample}: {metrics}");
        }
    }

    async fn a_refused_key_is_told_its_scope_and_what_is_needed(database) {
        let server = guarded(database);
        let told = async |key: &str, path: &str| server.with_key(key).post(path, json!({})).await.error(403);
        assert_eq!(told(READER, "workers/w/claim").await, "This key has the scope read, and this call needs worker or admin");
        assert_eq!(told(READER, "llm-tasks").await, "This key has the scope read, and this call needs member or submit or admin");
        assert_eq!(told(READER, "enroll").await, "This key has the scope read, and this call needs join");
        assert_eq!(told(READER, "keys").await, "This key has the scope read, and this call needs admin");
        let submit = crate::keys::with_new_key(&server.with_key(ADMIN), &server, "ci", "submit", json!({})).await;
        let said = submit.get("stats").await.error(403);
        assert_eq!(said, "This key has the scope submit, and this call needs read or admin");
    }
}
