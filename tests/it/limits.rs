//! Rate limits, body limits, unknown paths and wrong methods.

use reqwest::Method;

use crate::on_both;
use crate::support::*;

const TOO_MANY: &str = "Too many requests, please try again later";

/// A server with these rate limits.
fn limited(database: Database, api: u32, test: u32, worker: u32) -> Server {
    Server::on(database)
        .env("RATE_LIMIT_PER_MINUTE", api)
        .env("TEST_CONNECTION_PER_MINUTE", test)
        .env("WORKER_RATE_LIMIT_PER_MINUTE", worker)
        .start()
}

#[track_caller]
fn shows(answer: &Answer, limit: i64, remaining: i64) {
    assert_eq!(answer.header("ratelimit-policy"), Some(format!("{limit};w=60").as_str()), "{answer:?}");
    assert_eq!((answer.number("ratelimit-limit"), answer.number("ratelimit-remaining")), (limit, remaining), "{answer:?}");
    assert!((1..=60).contains(&answer.number("ratelimit-reset")), "{answer:?}");
}

on_both! { alone:
    async fn calls_are_counted_in_windows(database) {
        let server = limited(database, 3, 20, 6000);
        for left in [2, 1, 0] {
            shows(&server.get("stats").await.expect(200), 3, left);
        }
        let refused = server.get("/api/runtime/health").await;
        shows(&refused, 3, 0);
        assert!((1..=60).contains(&refused.number("retry-after")));
        refused.fails(429, TOO_MANY);
        server.get("/api/nobody/knows").await.fails(429, TOO_MANY);
        for path in ["/healthz", "/readyz", "/health", "/metrics", "/openapi.json"] {
            let answer = server.get(path).await.expect(200);
            assert_eq!(answer.header("ratelimit-limit"), None, "{path} is not limited");
        }
    }

    async fn test_connection_has_a_bucket_of_its_own(database) {
        let server = limited(database, 100, 2, 6000);
        for left in [1, 0] {
            shows(&server.poke("test-connection").await.expect(200), 2, left);
        }
        server.poke("test-connection").await.fails(429, TOO_MANY);
        let other = server.get("stats").await.expect(200);
        assert_eq!(other.number("ratelimit-limit"), 100);
        assert!(other.number("ratelimit-remaining") <= 97, "the call counts in both buckets: {other:?}");
    }

    async fn worker_routes_have_a_bucket_of_their_own(database) {
        let server = limited(database, 4, 20, 5);
        let worker = server.crew().worker().register().await;
        let (task, path) = (server.task(NO_ID), worker.path("/claim"));
        shows(&server.post(&path, json!({ "max": 1 })).await.expect(200), 5, 4);
        shows(&server.post(&worker.path("/heartbeat"), json!({ "leases": [] })).await.expect(200), 5, 3);
        shows(&server.post(&worker.path("/complete"), json!({ "completions": [] })).await, 5, 2);
        shows(&server.post(&task.path("/release"), json!({})).await.expect(404), 5, 1);
        // Events have another, so that they never keep a lease from being renewed.
        shows(&server.post(&worker.path("/events"), json!({ "runs": [] })).await.expect(200), 5, 4);
        for left in (0..4).rev() {
            shows(&server.post(&task.path("/events"), json!({})).await.expect(404), 5, left);
        }
        server.post(&task.path("/events"), json!({})).await.fails(429, TOO_MANY);
        server.get(&task.path("/events")).await.fails(429, TOO_MANY);
        shows(&server.post(&worker.path("/heartbeat"), json!({ "leases": [] })).await.expect(200), 5, 0);
        server.post(&path, json!({ "max": 1 })).await.fails(429, TOO_MANY);
        shows(&server.get("stats").await.expect(200), 4, 2);
    }

    async fn events_of_a_worker_s_key_have_a_bucket_of_their_own(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", "admin").env("RUNTIME_WORKER_KEY", "worker")
            .env("WORKER_RATE_LIMIT_PER_MINUTE", 2).env("RATE_LIMIT_PER_MINUTE", 3).start();
        let (machine, events) = (server.with_key("worker"), server.task(NO_ID).path("/events"));
        for left in [1, 0] {
            shows(&machine.post(&events, json!({})).await.expect(404), 2, left);
        }
        machine.post(&events, json!({})).await.fails(429, TOO_MANY);
        shows(&machine.post("workers", json!({ "name": "w" })).await.expect(201), 2, 1);
        shows(&server.with_key("wrong").post(&events, json!({})).await, 3, 2);
    }

    async fn the_worker_key_counts_as_a_worker(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", "admin").env("RUNTIME_WORKER_KEY", "worker")
            .env("RATE_LIMIT_PER_MINUTE", 2).env("WORKER_RATE_LIMIT_PER_MINUTE", 50).start();
        let answer = server.with_key("worker").post("workers", json!({ "name": "w" })).await.expect(201);
        shows(&answer, 50, 49);
        server.with_key("wrong").get("stats").await.fails(401, "Unauthorized");
        let second = server.get("stats").await;
        shows(&second, 2, 0);
        second.fails(401, "Unauthorized");
        server.with_key("admin").get("stats").await.fails(429, TOO_MANY);
    }

    async fn forwarded_addresses_count_only_from_trusted_proxies(database) {
        let server = limited(database, 1, 20, 6000);
        server.with_header("x-forwarded-for", "192.0.2.1").get("stats").await.ok();
        server.with_header("x-forwarded-for", "192.0.2.2").get("stats").await.fails(429, TOO_MANY);
        let server = Server::on(database).env("RATE_LIMIT_PER_MINUTE", 1).env("TRUSTED_PROXIES", "127.0.0.1/32").start();
        for client in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
            server.with_header("x-forwarded-for", client).get("stats").await.ok();
            server.with_header("x-forwarded-for", client).get("stats").await.fails(429, TOO_MANY);
        }
        // Entries that the client itself has added before the proxy's entry are ignored.
        server.with_header("x-forwarded-for", "198.51.100.9, 192.0.2.1").get("stats").await.fails(429, TOO_MANY);
    }

    async fn an_ipv6_client_is_its_network(database) {
        let server = Server::on(database).env("RATE_LIMIT_PER_MINUTE", 1).env("TRUSTED_PROXIES", "127.0.0.1/32").start();
        server.with_header("x-forwarded-for", "2001:db8::1").get("stats").await.ok();
        server.with_header("x-forwarded-for", "2001:db8::ffff:1").get("stats").await.fails(429, TOO_MANY);
        server.with_header("x-forwarded-for", "2001:db8:0:1::1").get("stats").await.ok();
    }

    async fn wrong_keys_are_limited_at_the_metrics_too(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", "admin").env("RATE_LIMIT_PER_MINUTE", 2).start();
        for left in [1, 0] {
            let refused = server.with_key("wrong").get("/metrics").await;
            shows(&refused, 2, left);
            refused.fails(401, "Unauthorized");
        }
        server.get("/metrics").await.fails(429, TOO_MANY);
        let scraped = server.with_key("admin").get("/metrics").await.expect(200);
        assert_eq!(scraped.header("ratelimit-limit"), None, "a scrape is not limited");
    }

    async fn zero_is_no_limit(database) {
        let server = limited(database, 0, 0, 0);
        for _ in 0..150 {
            let answer = server.get("/api/runtime/health").await.expect(200);
            assert_eq!(answer.header("ratelimit-limit"), None);
        }
    }

    async fn the_documented_limits_are_the_defaults(database) {
        let server = limited(database, 100, 20, 6000);
        let plan = server.plan().clone();
        server.stop();
        drop(server);
        // An empty variable counts as unset.
        let server = plan.env("RATE_LIMIT_PER_MINUTE", "").env("TEST_CONNECTION_PER_MINUTE", "").env("WORKER_RATE_LIMIT_PER_MINUTE", "").start();
        shows(&server.get("stats").await.expect(200), 100, 99);
        shows(&server.poke("test-connection").await.expect(200), 20, 19);
        shows(&server.post("workers/x/claim", json!({ "max": 1 })).await.expect(404), 6000, 5999);
    }

    async fn a_request_that_does_not_come_is_not_waited_for(database) {
        let server = Server::on(database).env("REQUEST_TIMEOUT_SECONDS", 1).start();
        let address = server.base().trim_start_matches("http://").to_owned();
        let asked = std::time::Instant::now();
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            let head = "POST /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\":";
            std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
            let mut answer = vec![0; 12];
            std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
            String::from_utf8(answer).unwrap()
        }).await.unwrap();
        assert!(answer.ends_with(" 408") || answer.ends_with(" 503"), "{answer}");
        assert!((1..10).contains(&asked.elapsed().as_secs()), "{:?}", asked.elapsed());
        // The time limit does not apply to requests that wait.
        let worker = server.crew().worker().register().await;
        assert_eq!(worker.claim_within(1, 2).await.len(), 0);
        let task = server.crew().task().create().await;
        assert_eq!(server.get(&task.path("/wait?timeout_sec=2")).await.ok()["status"], "queued");
    }

    async fn a_large_body_has_the_time_of_a_slow_line(database) {
        let server = Server::on(database).env("REQUEST_TIMEOUT_SECONDS", 1).start();
        let address = server.base().trim_start_matches("http://").to_owned();
        let post = |length: usize| format!("POST /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        let answer = tokio::task::spawn_blocking(move || {
            let begin = |head: &str| {
                let mut stream = std::net::TcpStream::connect(&address).unwrap();
                stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
                std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
                stream
            };
            let status = |stream: &mut std::net::TcpStream| {
                let mut answer = vec![0; 12];
                std::io::Read::read_exact(stream, &mut answer).unwrap();
                String::from_utf8(answer).unwrap()
            };
            let body = json!({ "context_id": "c", "agent_slug": "nobody", "prompt": "x".repeat(300 << 10) }).to_string();
            let mut slow = begin(&post(body.len()));
            // Its answer shows that the time of a small one is over.
            let small = status(&mut begin(&post(100)));
            std::io::Write::write_all(&mut slow, body.as_bytes()).unwrap();
            (small, status(&mut slow))
        }).await.unwrap();
        assert_eq!((&answer.0[8..], &answer.1[8..]), (" 408", " 201"));
    }

    async fn a_body_that_does_not_come_does_not_delay_a_stop(database) {
        let server = Server::on(database).env("REQUEST_TIMEOUT_SECONDS", 600).start();
        let mut stream = std::net::TcpStream::connect(server.base().trim_start_matches("http://")).unwrap();
        let head = "POST /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n";
        std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
        let mut asked = [0; 12];
        std::io::Read::read_exact(&mut stream, &mut asked).unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100", "the server waits for the body");
        assert!(server.stop().success());
    }

    async fn body_limits_are_settings(database) {
        let server = Server::on(database).env("MAX_BODY_BYTES", 2000).env("MAX_OUTPUT_BYTES", 4000).start();
        let text = server.crew().task().prompt(&"p".repeat(2000)).answer().await.error(413);
        assert!(text.contains("at most 2000 bytes") && text.contains("MAX_BODY_BYTES"), "{text}");
        let (_, lease) = server.crew().leased_task().await;
        let text = lease.complete("success", json!({ "output": "o".repeat(5000) })).await.error(413);
        assert!(text.contains("at most 4000 bytes") && text.contains("MAX_OUTPUT_BYTES") && !text.contains("MAX_BODY_BYTES"), "{text}");
        let text = lease.complete("success", json!({ "error_message": "e".repeat(3000) })).await.error(413);
        assert!(text.contains("at most 2000 bytes") && text.contains("MAX_BODY_BYTES"), "{text}");
        let text = lease.complete("success", json!({ "output": "o".repeat(50_000) })).await.error(413);
        assert!(text.contains("MAX_BODY_BYTES and MAX_OUTPUT_BYTES"), "{text}");
        lease.complete("success", json!({ "output": "o".repeat(4000) })).await.ok();
    }
}

on_both! {
    async fn an_over_long_body_is_refused(server) {
        server.crew().task().prompt(&"p".repeat(1 << 20)).answer().await.error(413);
        server.crew().task().prompt(&"p".repeat((1 << 20) - 1000)).create().await;
        let (_, lease) = server.crew().leased_task().await;
        lease.complete("success", json!({ "output": "o".repeat((16 << 20) + 1) })).await.expect(413);
        lease.complete("success", json!({ "output": "o".repeat(16 << 20) })).await.ok();
    }

    async fn an_unknown_path_is_not_found(server) {
        for path in ["/api", "/api/", "/api/nobody/knows", "/api/runtime", "/api/runtime/nothing", "/api/runtime/workers/x/agent-dance", "/api/runtime/llm-tasks/x/y/z", "/api/runtime/llm-tasks:burn"] {
            server.get(path).await.error(404);
            server.post(path, json!({})).await.error(404);
        }
    }

    async fn a_wrong_method_is_not_allowed(server) {
        for (method, path) in [
            (Method::DELETE, "llm-tasks"), (Method::PUT, "llm-tasks"), (Method::POST, "stats"), (Method::PATCH, "workers/x"),
            (Method::GET, "llm-tasks/x/cancel"), (Method::GET, "workers/x/claim"), (Method::DELETE, "config"), (Method::POST, "/api/membridge/health"),
        ] {
            let what = format!("{method} {path}");
            let answer = server.send(method, path, None).await;
            assert_eq!(answer.status, 405, "{what}: {}", answer.text);
            assert!(answer.header("allow").is_some(), "{what}");
            answer.error(405);
        }
    }

    async fn every_answer_names_its_request(server) {
        let answer = server.get("stats").await.expect(200);
        let first = answer.header("x-request-id").expect("a request id").to_owned();
        let second = server.get("/api/nobody/knows").await;
        assert_ne!(Some(first.as_str()), second.header("x-request-id"));
    }
}
