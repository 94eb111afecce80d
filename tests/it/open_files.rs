//! More connections than the server may have open files.

use std::sync::atomic::{AtomicU16, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

/// The soft limit is too low even for the start, and the hard limit is too low for all connections.
const LOW: &str = r#"ulimit -Sn 64 && ulimit -Hn 256 && exec "$0" "$@""#;
const CLAIMS: usize = 100;
const WAITS: usize = 250;

/// A connection with one request.
struct Asked {
    stream: TcpStream,
    answer: Vec<u8>,
    is_over: bool,
}

/// Each request comes from another client, by way of a proxy: one alone gets no more than its share.
async fn ask(server: &Server, method: &str, path: &str, body: &str) -> Asked {
    static CLIENTS: AtomicU16 = AtomicU16::new(0);
    let [high, low] = CLIENTS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let mut stream = TcpStream::connect(server.base().trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 198.18.{high}.{low}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // The write fails if the server closes the connection at once.
    let _ = stream.write_all(head.as_bytes()).await;
    Asked { stream, answer: Vec::new(), is_over: false }
}

impl Asked {
    /// Reads what has arrived so far.
    fn read_arrived(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.try_read(&mut bytes) {
                Ok(0) => self.is_over = true,
                Ok(n) => {
                    self.answer.extend_from_slice(&bytes[..n]);
                    continue;
                }
                Err(error) => self.is_over |= error.kind() != std::io::ErrorKind::WouldBlock,
            }
            return;
        }
    }

    fn waits(&mut self) -> bool {
        self.read_arrived();
        !self.is_over && self.answer.is_empty()
    }

    /// Everything that arrives until the server closes the connection.
    async fn rest(mut self) -> String {
        // A reset connection is closed as well.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(30), self.stream.read_to_end(&mut self.answer)).await.expect("an end");
        String::from_utf8(self.answer).unwrap()
    }
}

#[test]
fn when_all_connections_are_taken_probes_are_answered_and_waits_go_on() {
    run(async {
        let server = Server::on(Database::Sqlite).env("TRUSTED_PROXIES", "127.0.0.1").through(LOW).start();
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let awaited = server.crew().task().create().await;
        let claim = format!("/api/runtime/workers/{}/claim", worker.name);
        let wait = format!("/api/runtime/llm-tasks/{}/wait?timeout_sec=60", awaited.id);
        let mut claims = Vec::new();
        for _ in 0..CLAIMS {
            claims.push(ask(&server, "POST", &claim, r#"{"max": 1, "wait_sec": 60}"#).await);
        }
        let mut waits = Vec::new();
        for _ in 0..WAITS {
            waits.push(ask(&server, "GET", &wait, "").await);
        }
        // Spare connections are closed after their one request, so only the others stay open.
        eventually("every connection is held or answered", || {
            let held = waits.iter_mut().filter_map(|wait| wait.waits().then_some(())).count();
            async move { (held <= 256 - CLAIMS).then_some(()) }
        })
        .await;
        for path in ["/healthz", "/readyz", "/health", "/metrics"] {
            let answer = eventually("a probe is answered", || async {
                let answer = ask(&server, "GET", path, "").await.rest().await;
                (!answer.is_empty()).then_some(answer)
            })
            .await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        }
        let (mut held, mut refused, mut closed) = (Vec::new(), 0, 0);
        for mut wait in waits {
            if wait.waits() {
                held.push(wait);
                continue;
            }
            let answer = String::from_utf8(wait.answer).unwrap();
            closed += usize::from(answer.is_empty());
            refused += usize::from(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: "));
        }
        assert!(claims.iter_mut().all(Asked::waits), "{}", server.log());
        assert!(held.len() > 30 && refused > 0, "{} wait, {refused} were refused", held.len());
        assert_eq!(held.len() + refused + closed, WAITS);
        let answer = ask(&server, "GET", "/api/runtime/stats", "").await.rest().await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("connections"), "{answer}");
        let log = server.log();
        assert!(log.contains("LimitNOFILE") && log.contains("All connections of the server are in use"), "{log}");

        // A connection that is closed makes room, and waiting requests are still served.
        held.truncate(held.len() - 10);
        let create = crew.task().json().to_string();
        let answer = eventually("there is room again", || async {
            let asked = ask(&server, "POST", "/api/runtime/llm-tasks", &create).await;
            let answer = asked.rest().await;
            answer.starts_with("HTTP/1.1 201 ").then_some(answer)
        })
        .await;
        assert!(answer.contains("\"id\""), "{answer}");
        eventually("one of the claims gets the task", || {
            let served = claims.iter_mut().any(|claim| !claim.waits() && claim.answer.starts_with(b"HTTP/1.1 200 "));
            async move { served.then_some(()) }
        })
        .await;
        assert!(held.iter_mut().all(Asked::waits), "the other requests still wait");
    });
}
