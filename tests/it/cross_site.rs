//! Requests that a web browser sends for a page of somebody else, and requests to a name that is not this server's.

use std::io::{Read, Write};

use reqwest::Method;

use crate::on_both;
use crate::support::*;

/// What is answered to these bytes, until the server closes.
fn raw(server: &Server, head: &str) -> String {
    let mut stream = std::net::TcpStream::connect(server.base().trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    write!(stream, "{head}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Nothing that changes anything is done for a page of another site.
async fn refuses_all_changes(api: &Api, name: &str, value: &str) {
    let page = api.with_header(name, value);
    let crew = page.crew();
    for (method, path) in [
        (Method::POST, "llm-tasks"),
        (Method::POST, "config"),
        (Method::POST, "workers"),
        (Method::POST, "test-connection"),
        (Method::DELETE, "workers/x"),
        (Method::GET, "workers/x/agent-health"),
        (Method::PUT, "nothing"),
    ] {
        let body = crew.task().json().to_string().into_bytes();
        let text = page.send(method, path, Some(body)).await.error(403);
        assert!(text.contains("PUBLIC_URL"), "{name}: {value}: {path}: {text}");
    }
    assert_eq!(api.get(&format!("llm-tasks?agent_slug={}", crew.slug)).await.ok(), json!([]), "{name}: {value}");
}

on_both! {
    async fn a_page_of_another_site_changes_nothing(server) {
        let port: u16 = server.base().rsplit(':').next().unwrap().parse().unwrap();
        let (https, other_port) = (format!("https://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", port ^ 1));
        for origin in ["https://evil.example", "null", "http://localhost", &https, &other_port, "http://127.0.0.1.evil.example"] {
            refuses_all_changes(server, "origin", origin).await;
        }
        refuses_all_changes(server, "sec-fetch-site", "cross-site").await;
        // An image of another port of this host has no Origin.
        refuses_all_changes(server, "sec-fetch-site", "same-site").await;
    }

    async fn a_refused_request_with_a_body_does_not_cost_the_connection(server) {
        let refused = "POST /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nContent-Length: 2\r\n\r\n{}";
        let answers = raw(server, &format!("{refused}GET /healthz HTTP/1.1\r\nHost: localhost\r\n"));
        assert!(answers.starts_with("HTTP/1.1 403 ") && answers.contains("HTTP/1.1 200 "), "{answers}");
    }

    async fn own_pages_and_programs_go_on(server) {
        server.with_header("origin", server.base()).crew().task().create().await;
        server.with_header("sec-fetch-site", "same-origin").crew().task().create().await;
        // As browsers send it where a proxy forbids referrers.
        server.with_header("sec-fetch-site", "same-origin").with_header("origin", "null").crew().task().create().await;
        let by_name = server.with_header("host", "localhost:80").with_header("origin", "http://localhost");
        by_name.crew().task().create().await;
        server.with_header("origin", "https://evil.example").with_header("sec-fetch-site", "cross-site").get("stats").await.ok();
    }

    async fn a_page_of_another_site_does_not_use_up_the_limit(server) {
        let image = server.with_header("sec-fetch-site", "cross-site").with_header("sec-fetch-mode", "no-cors");
        let left = |answer: &Answer| answer.header("x-ratelimit-remaining").map(|left| left.parse::<i64>().unwrap());
        let loaded = image.get("stats").await;
        assert!(left(&loaded).is_none(), "it counts: {:?}", loaded.headers);
        assert!(loaded.error(403).contains("PUBLIC_URL"));
        let link = server.with_header("sec-fetch-site", "cross-site").with_header("sec-fetch-mode", "navigate");
        link.get("stats").await.ok();
    }

    async fn without_keys_only_names_of_this_server_are_served(server) {
        for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.0.2.1", "[2001:db8::1]", "localhost.evil.example"] {
            for path in ["stats", "llm-tasks", "/metrics", "/healthz", "/openapi.json", "/"] {
                let text = server.with_header("host", host).get(path).await.error(403);
                assert!(text.contains("ALLOWED_HOSTS") && text.contains("RUNTIME_API_KEY"), "{host}: {text}");
            }
        }
        for host in ["localhost", "LocalHost:1", "localhost.", "127.0.0.1", "127.8.9.1:5000", "[::1]:5000", "[::ffff:127.0.0.1]:5000"] {
            server.with_header("host", host).get("stats").await.ok();
        }
    }

    async fn a_target_with_a_host_is_held_to_the_same_rule(server) {
        for path in ["/api/runtime/stats", "/metrics", "/healthz"] {
            let answer = raw(server, &format!("GET http://evil.example{path} HTTP/1.1\r\nHost: localhost\r\n"));
            assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("ALLOWED_HOSTS"), "{path}: {answer}");
            let answer = raw(server, &format!("GET http://localhost:1{path} HTTP/1.1\r\nHost: evil.example\r\n"));
            assert!(answer.starts_with("HTTP/1.1 403 "), "{path}: {answer}");
            let answer = raw(server, &format!("GET http://localhost:1{path} HTTP/1.1\r\nHost: localhost\r\n"));
            assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        }
        // A page cannot name another origin by the target either.
        let page = "POST http://localhost:1/api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n";
        let answer = raw(server, page);
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("PUBLIC_URL"), "{answer}");
    }

    async fn a_request_names_one_host(server) {
        for head in [
            "GET /api/runtime/stats HTTP/1.1\r\n",
            "GET /api/runtime/stats HTTP/1.0\r\n",
            "GET /api/runtime/stats HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
            "GET /api/runtime/stats HTTP/1.1\r\nHost: \r\n",
            "GET /api/runtime/stats HTTP/1.1\r\nHost: a b\r\n",
            "GET /api/runtime/stats HTTP/1.1\r\nHost: user@localhost\r\n",
            "GET http://user@localhost/api/runtime/stats HTTP/1.1\r\nHost: localhost\r\n",
            "GET http://localhost/api/runtime/stats HTTP/1.1\r\n",
        ] {
            let answer = raw(server, head);
            assert!(answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.0 400 "), "{head:?}: {answer}");
            assert!(answer.contains("{\"error\":\"") && answer.contains("Host"), "{head:?}: {answer}");
        }
    }
}

on_both! { alone:
    async fn names_and_addresses_are_settings(database) {
        let server = Server::on(database).env("PUBLIC_URL", "https://bloom.example:8443/base").env("ALLOWED_HOSTS", "Other.example, 192.0.2.7").start();
        for host in ["bloom.example:8443", "bloom.example", "bloom.example.", "other.example:1", "other.example.", "192.0.2.7"] {
            server.with_header("host", host).get("stats").await.ok();
        }
        server.with_header("host", "third.example").get("stats").await.error(403);
        server.with_header("origin", "https://bloom.example:8443").crew().task().create().await;
        for origin in ["https://bloom.example", "http://bloom.example:8443", "http://other.example"] {
            refuses_all_changes(&server, "origin", origin).await;
        }
        // Only its own page may be sent for, from wherever it comes.
        refuses_all_changes(&server.with_header("origin", "https://bloom.example:8443"), "sec-fetch-site", "cross-site").await;
    }

    async fn what_a_page_of_another_site_sends_uses_up_no_limit_and_no_log(database) {
        let server = Server::on(database).env("RATE_LIMIT_PER_MINUTE", "3").start();
        let page = server.with_header("origin", "https://evil.example");
        for _ in 0..5 {
            page.crew().task().answer().await.error(403);
        }
        let server = server.with_header("accept", "*/*");
        server.crew().task().create().await;
        for _ in 0..4 {
            server.get(&"a".repeat(20_000)).await;
        }
        assert!(server.get("stats").await.status == 429);
    }

    async fn a_trusted_proxy_says_what_the_client_called(database) {
        let server = Server::on(database).env("TRUSTED_PROXIES", "127.0.0.1").env("ALLOWED_HOSTS", "bloom.example").start();
        let proxied = server.with_header("x-forwarded-host", "bloom.example").with_header("x-forwarded-proto", "https");
        proxied.with_header("origin", "https://bloom.example").crew().task().create().await;
        refuses_all_changes(&proxied, "origin", "http://bloom.example").await;
        let in_capitals = server.with_header("x-forwarded-host", "bloom.example").with_header("x-forwarded-proto", "HTTPS");
        in_capitals.with_header("origin", "https://bloom.example").crew().task().create().await;
        server.with_header("x-forwarded-host", "evil.example").get("stats").await.error(403);
        // A page can set the header of the proxy, but not the Host that its own address has.
        let rebound = server.with_header("host", "evil.example");
        for forwarded in ["localhost", "bloom.example", "bloom.example, evil.example", "evil.example, bloom.example"] {
            rebound.with_header("x-forwarded-host", forwarded).get("llm-tasks").await.error(403);
        }
        for forwarded in ["bloom.example, evil.example", "evil.example, bloom.example"] {
            server.with_header("x-forwarded-host", forwarded).get("llm-tasks").await.error(403);
        }
        server.with_header("x-forwarded-host", "bloom.example, localhost").get("llm-tasks").await.ok();
        // Nobody else is asked.
        let alone = shared(database);
        let claimed = alone.with_header("x-forwarded-host", "evil.example").with_header("x-forwarded-proto", "https");
        claimed.get("stats").await.ok();
        refuses_all_changes(&claimed, "origin", "https://evil.example").await;
    }

    async fn with_keys_every_name_is_served_but_no_page_of_another_site(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", "a-key-0123456789abc").start();
        let admin = server.with_key("a-key-0123456789abc");
        admin.with_header("host", "any.example").get("stats").await.ok();
        let text = admin.with_header("origin", "https://evil.example").crew().task().answer().await.error(403);
        assert!(text.contains("PUBLIC_URL"), "{text}");
        assert!(raw(&server, "GET /healthz HTTP/1.0\r\n").contains(" 200 "), "a health check of old");
        assert!(raw(&server, "GET /healthz HTTP/1.1\r\n").contains(" 400 "));
        assert!(raw(&server, "GET /healthz HTTP/1.0\r\nHost: a\r\nHost: a\r\n").contains(" 400 "));
    }
}
