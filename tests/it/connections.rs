//! Connections that never send a whole request, on a server whose time limits the test sets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bloom_dispatch::{self as agents, Agents};
use bloom_engine::{self as engine, Engine};
use bloom_http::{self as http, AppState, Keys};
use bloom_membridge::Membridge;
use bloom_store::{Store, StoreOptions};
use bloom_telemetry::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::{beside, eventually, run};

/// The number of bytes of bodies that the server holds in memory.
const HELD: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_millis(400);
/// The server must close a connection within this time; long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(9);

struct Door {
    address: SocketAddr,
    stop: CancellationToken,
    _directory: tempfile::TempDir,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A new server in this process.
async fn open() -> Door {
    open_with(PATIENCE).await
}

async fn open_with(write_timeout: Duration) -> Door {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("bloom.db").display());
    let store = Store::open(&StoreOptions { url, max_connections: 2 }).await.unwrap();
    store.migrate().await.unwrap();
    let metrics = Metrics::new().unwrap();
    let options = engine::EngineOptions { session_wait_ms: 30_000, worker_offline_after_ms: 60_000, manual_clock: None, seed: None };
    let engine = Engine::start(Arc::new(store.clone()), metrics.clone(), options).await.unwrap();
    let settings = http::Settings {
        keys: Keys::new(None, None, None),
        rate_limit_per_minute: 0,
        test_connection_per_minute: 0,
        worker_rate_limit_per_minute: 0,
        trusted_proxies: Vec::new(),
        max_body_bytes: 1 << 20,
        max_output_bytes: 1 << 20,
        request_timeout: Duration::from_secs(30),
        head_timeout: PATIENCE,
        write_timeout,
        held_bytes: HELD,
        max_connections: 100,
        lease_ttl_ms: 300_000,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let agents = Agents::new(engine.clone(), agents::DispatchOptions::default());
    let state = AppState::new(engine, store, agents, Membridge::new(None, None), metrics, settings, stop.clone());
    beside(http::server::serve(listener, state, stop.clone()));
    Door { address, stop, _directory: directory }
}

async fn send(door: &Door, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Everything that arrives until the server closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset connection is closed as well.
    let _ = timeout(LIMIT, stream.read_to_end(&mut text)).await.expect("the server closes the connection");
    String::from_utf8(text).unwrap()
}

#[test]
fn a_head_that_does_not_end_is_not_waited_for() {
    run(async {
        let door = open().await;
        for begun in ["", "GET /hea", "GET /healthz HTTP/1.1\r\nHost: local", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"] {
            let asked = Instant::now();
            let said = rest(&mut send(&door, begun).await).await;
            assert!(said.is_empty() || said.starts_with("HTTP/1.1 408 "), "{begun:?}: {said}");
            assert!(asked.elapsed() >= PATIENCE, "{begun:?}: closed after {:?}", asked.elapsed());
        }
    });
}

#[test]
fn bytes_that_trickle_in_win_no_time() {
    run(async {
        let door = open().await;
        // The server counts from the start of the connection.
        let asked = Instant::now();
        let mut stream = send(&door, "GET /healthz HTTP/1.1\r\nX-Slow: ").await;
        let mut byte = [0];
        // Sends another byte after each tenth of the server's time limit without an answer.
        while let Err(_silence) = timeout(PATIENCE / 10, stream.read(&mut byte)).await {
            assert!(asked.elapsed() < LIMIT, "the server still reads the head");
            if stream.write_all(b"x").await.is_err() {
                break;
            }
        }
        assert!(asked.elapsed() >= PATIENCE, "closed after {:?}", asked.elapsed());
    });
}

#[test]
fn only_the_head_is_hurried() {
    run(async {
        let door = open().await;
        let body = r#"{"context_id": "c", "agent_slug": "a", "prompt": "p"}"#;
        let head = format!("POST /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut stream = send(&door, &head).await;
        // The body is sent later than the time limit of the head.
        assert!(timeout(PATIENCE * 2, stream.read_u8()).await.is_err(), "the server waits for the body");
        stream.write_all(body.as_bytes()).await.unwrap();
        // The request is answered. Then the connection is closed, because no further request comes.
        let said = rest(&mut stream).await;
        assert!(said.starts_with("HTTP/1.1 201 "), "{said}");
    });
}

#[test]
fn who_does_not_read_answers_keeps_no_connection() {
    run(async {
        let door = open().await;
        let mut stream = send(&door, "").await;
        let request = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
        // The answers are not read, so the server stops reading requests, and then closes the connection.
        let written = timeout(LIMIT, async { while stream.write_all(request.as_bytes()).await.is_ok() {} });
        written.await.expect("the server closes the connection");
    });
}

/// A request with a body of this many bytes, whose last byte is not sent yet.
fn unfinished(bytes: usize) -> String {
    let task = r#"{"context_id": "c", "agent_slug": "a", "prompt": ""#;
    let body = format!("{task}{}\"", "p".repeat(bytes - task.len() - 2));
    format!("POST /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n{body}")
}

#[test]
fn bodies_of_requests_have_a_limit_together() {
    run(async {
        let door = open().await;
        // The requests race, so this repeats until the first one's body is held first.
        let (mut first, refused) = eventually("a body that leaves no room for others", || async {
            let first = send(&door, &unfinished(700_000)).await;
            let said = rest(&mut send(&door, &format!("{}}}", unfinished(600_000))).await).await;
            said.starts_with("HTTP/1.1 503 ").then_some((first, said))
        })
        .await;
        assert!(refused.contains("too many large requests"), "{refused}");
        let small = rest(&mut send(&door, &format!("{}}}", unfinished(1_000))).await).await;
        assert!(small.starts_with("HTTP/1.1 201 "), "{small}");
        first.write_all(b"}").await.unwrap();
        assert!(rest(&mut first).await.starts_with("HTTP/1.1 201 "));
        let again = rest(&mut send(&door, &format!("{}}}", unfinished(600_000))).await).await;
        assert!(again.starts_with("HTTP/1.1 201 "), "{again}");
    });
}

#[test]
fn bodies_of_answers_have_a_limit_together() {
    run(async {
        let door = open_with(2 * LIMIT).await;
        for _ in 0..40 {
            let made = rest(&mut send(&door, &format!("{}}}", unfinished(900_000))).await).await;
            assert!(made.starts_with("HTTP/1.1 201 "), "{made}");
        }
        let list = "GET /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        // The list is too large for the network's buffers. Repeats until the first answer is held first.
        let (unread, refused) = eventually("an answer that leaves no room for others", || async {
            let unread = send(&door, list).await;
            let said = rest(&mut send(&door, list).await).await;
            said.starts_with("HTTP/1.1 503 ").then_some((unread, said))
        })
        .await;
        assert!(refused.contains("too many large answers"), "{refused}");
        drop(unread);
        eventually("there is room", || async { rest(&mut send(&door, list).await).await.starts_with("HTTP/1.1 200 ").then_some(()) }).await;
    });
}
