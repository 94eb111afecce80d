//! Connections that never send a whole request, on a server whose time limits the test sets.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bloom_dispatch::{self as dispatch, Agents};
use bloom_engine::{self as engine, Engine};
use bloom_http::{self as http, AppState, Keys};
use bloom_membridge::Membridge;
use bloom_store::{Store, StoreOptions};
use bloom_telemetry::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::{beside, eventually, run};

/// The number of bytes of bodies that the server holds in memory.
const HELD: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_millis(400);
/// The server must close a connection within this time; long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(25);

struct TestServer {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A new server in this process.
async fn open() -> TestServer {
    open_with(PATIENCE).await
}

async fn open_with(write_timeout: Duration) -> TestServer {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("bloom.db").display());
    let store = Store::open(&StoreOptions { url, max_connections: 2 }).await.unwrap();
    store.migrate().await.unwrap();
    let metrics = Metrics::new().unwrap();
    let options = engine::EngineOptions {
        session_wait_ms: 30_000,
        named_agent_wait_ms: 30_000,
        worker_offline_after_ms: 60_000,
        traces: Default::default(),
        manual_clock: None,
        seed: None,
    };
    let engine = Engine::start(Arc::new(store.clone()), metrics.clone(), options).await.unwrap();
    let settings = http::Settings {
        keys: Keys::new(None, None, None),
        public_url: None,
        hosts: Vec::new(),
        rate_limit_per_minute: 0,
        test_connection_per_minute: 0,
        worker_rate_limit_per_minute: 0,
        trusted_proxies: Vec::new(),
        max_body_bytes: 1 << 20,
        max_output_bytes: 1 << 20,
        max_artifact_bytes: 1 << 20,
        max_timeout_sec: 3600,
        request_timeout: Duration::from_secs(30),
        head_timeout: PATIENCE,
        write_timeout,
        held_bytes: HELD,
        max_connections: 100,
        tls: None,
        kubernetes: None,
        objects: None,
        lease_ttl_ms: 300_000,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let agents = Agents::new(engine.clone(), dispatch::DispatchOptions::default());
    let state = AppState::new(engine, store, agents, Membridge::new(None, None), metrics, settings, stop.clone());
    let serving = beside(http::server::serve(listener, state, bloom_web::pages(), stop.clone()));
    TestServer { address, stop, serving, _directory: directory }
}

async fn send(server: &TestServer, text: &str) -> TcpStream {
    send_from("127.0.0.1", server, text).await
}

/// As another client of this machine: all of 127.0.0.0/8 is its own.
async fn send_from(client: &str, server: &TestServer, text: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(client.parse().unwrap(), 0)).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
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
        let server = open().await;
        for begun in ["", "GET /hea", "GET /healthz HTTP/1.1\r\nHost: local", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"] {
            let asked = Instant::now();
            let said = rest(&mut send(&server, begun).await).await;
            assert!(said.is_empty() || said.starts_with("HTTP/1.1 408 "), "{begun:?}: {said}");
            assert!(asked.elapsed() >= PATIENCE, "{begun:?}: closed after {:?}", asked.elapsed());
        }
    });
}

#[test]
fn bytes_that_trickle_in_win_no_time() {
    run(async {
        let server = open().await;
        // The server counts from the start of the connection.
        let asked = Instant::now();
        let mut stream = send(&server, "GET /healthz HTTP/1.1\r\nX-Slow: ").await;
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
        let server = open().await;
        let body = r#"{"context_id": "c", "agent_slug": "a", "prompt": "p"}"#;
        let head = format!("POST /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut stream = send(&server, &head).await;
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
        let server = open().await;
        let mut stream = send(&server, "").await;
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
        let server = open().await;
        // The requests race, so this repeats until the first one's body is held first.
        let (mut first, refused) = eventually("a body that leaves no room for others", || async {
            let first = send(&server, &unfinished(700_000)).await;
            let said = rest(&mut send(&server, &format!("{}}}", unfinished(600_000))).await).await;
            said.starts_with("HTTP/1.1 503 ").then_some((first, said))
        })
        .await;
        assert!(refused.contains("too many large requests"), "{refused}");
        let small = rest(&mut send(&server, &format!("{}}}", unfinished(1_000))).await).await;
        assert!(small.starts_with("HTTP/1.1 201 "), "{small}");
        first.write_all(b"}").await.unwrap();
        assert!(rest(&mut first).await.starts_with("HTTP/1.1 201 "));
        let again = rest(&mut send(&server, &format!("{}}}", unfinished(600_000))).await).await;
        assert!(again.starts_with("HTTP/1.1 201 "), "{again}");
    });
}

#[test]
fn bodies_of_answers_have_a_limit_together() {
    run(async {
        let server = open_with(2 * LIMIT).await;
        for _ in 0..40 {
            let made = rest(&mut send(&server, &format!("{}}}", unfinished(900_000))).await).await;
            assert!(made.starts_with("HTTP/1.1 201 "), "{made}");
        }
        let list = "GET /api/runtime/llm-tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        // The list is too large for the network's buffers. Repeats until the first answer is held first.
        let (unread, refused) = eventually("an answer that leaves no room for others", || async {
            let unread = send(&server, list).await;
            let said = rest(&mut send(&server, list).await).await;
            said.starts_with("HTTP/1.1 503 ").then_some((unread, said))
        })
        .await;
        assert!(refused.contains("This address has too many large requests or answers"), "{refused}");
        drop(unread);
        eventually("there is room", || async { rest(&mut send(&server, list).await).await.starts_with("HTTP/1.1 200 ").then_some(()) })
            .await;
    });
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST /api/runtime/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn json_of(answer: &str) -> serde_json::Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

async fn stats(server: &TestServer) -> serde_json::Value {
    json_of(&rest(&mut send(server, "GET /api/runtime/stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await).await)
}

/// A client that changes a large task again and again, and reads none of the answers: one of them is held from some time on.
async fn leave_answers_of_changes_unread(server: &TestServer) -> TcpStream {
    let made = rest(&mut send(server, &format!("{}}}", unfinished(900_000))).await).await;
    let id = json_of(&made)["id"].as_str().unwrap().to_owned();
    let request = post(&format!("llm-tasks/{id}/suspend"), "").replace("Connection: close\r\n", "");
    // Many: some are refused, because the answer before is not sent yet, and the others must fill the network's buffers.
    send_from("127.0.0.2", server, &request.repeat(400)).await
}

#[test]
fn a_call_is_not_refused_for_its_answer_after_its_change() {
    run(async {
        let server = open_with(10 * LIMIT).await;
        let unread = leave_answers_of_changes_unread(&server).await;
        let made = Cell::new(1);
        let refused = eventually("an answer that leaves no room for others", || async {
            let said = rest(&mut send(&server, &format!("{}}}", unfinished(600_000))).await).await;
            made.set(made.get() + i64::from(said.starts_with("HTTP/1.1 201 ")));
            said.starts_with("HTTP/1.1 503 ").then_some(said)
        })
        .await;
        assert!(refused.contains("too many large answers"), "{refused}");
        assert_eq!(stats(&server).await["tasks"]["total"], made.get(), "what was refused was not created");
        let small = rest(&mut send(&server, &format!("{}}}", unfinished(1_000))).await).await;
        assert!(small.starts_with("HTTP/1.1 201 "), "{small}");
        drop(unread);
    });
}

#[test]
fn a_claim_waits_for_room_for_its_tasks() {
    run(async {
        let server = open_with(10 * LIMIT).await;
        let worker = r#"{"name": "w", "status": "online", "capabilities": {"max_concurrency": 1}}"#;
        assert!(rest(&mut send(&server, &post("workers", worker)).await).await.starts_with("HTTP/1.1 201 "));
        assert!(rest(&mut send(&server, &format!("{}}}", unfinished(600_000))).await).await.starts_with("HTTP/1.1 201 "));
        let unread = leave_answers_of_changes_unread(&server).await;
        // Some answers still went into the buffers of the network; the one that did not is held from then on.
        let refused = Cell::new(0);
        eventually("an answer that leaves no room for others", || async {
            let said = rest(&mut send(&server, &format!("{}}}", unfinished(600_000))).await).await;
            refused.set(if said.starts_with("HTTP/1.1 503 ") { refused.get() + 1 } else { 0 });
            (refused.get() > 20).then_some(())
        })
        .await;
        let mut claiming = send(&server, &post("workers/w/claim", r#"{"max": 1, "wait_sec": 20, "held": []}"#)).await;
        eventually("the lease", || async { (stats(&server).await["leases"]["active"] == 1).then_some(()) }).await;
        drop(unread);
        let said = rest(&mut claiming).await;
        assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
        assert_eq!(json_of(&said)["leases"].as_array().unwrap().len(), 1);
    });
}

const LIST: &str = "GET /api/runtime/llm-tasks?limit=1000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// So many bytes of tasks, each of which is small.
async fn fill(server: &TestServer, bytes: usize) {
    for _ in 0..bytes / 100_000 {
        let task = r#"{"context_id": "c", "agent_slug": "a", "prompt": ""#;
        let tasks = vec![format!("{task}{}\"}}", "p".repeat(10_000)); 10].join(",");
        let body = format!(r#"{{"tasks": [{tasks}]}}"#);
        let length = body.len();
        let head =
            format!("POST /api/runtime/llm-tasks:batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}");
        let made = rest(&mut send(server, &format!("{head}\r\n\r\n{body}")).await).await;
        assert!(made.starts_with("HTTP/1.1 201 "), "{made}");
    }
}

#[test]
fn long_lists_are_sent_piece_by_piece() {
    run(async {
        // Each list is far longer than all that the server holds of answers, and than what the network takes unread.
        let server = open_with(2 * LIMIT).await;
        fill(&server, 10 << 20).await;
        let mut unread = Vec::new();
        for _ in 0..20 {
            let mut stream = send(&server, LIST).await;
            let mut head = [0; 13];
            stream.read_exact(&mut head).await.unwrap();
            assert_eq!(&head, b"HTTP/1.1 200 ", "nobody is refused");
            unread.push(stream);
        }
        for _ in 0..2 {
            let answer = rest(&mut send(&server, LIST).await).await;
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/json"), "{head}");
            assert_eq!(unchunked(body).as_array().unwrap().len(), 1000);
        }
    });
}

/// The JSON of a body that came in chunks.
fn unchunked(mut body: &str) -> serde_json::Value {
    let mut whole = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n").unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return serde_json::from_str(&whole).unwrap();
        }
        whole.push_str(&rest[..length]);
        body = &rest[length + 2..];
    }
}

#[test]
fn an_answer_that_nobody_reads_does_not_hold_up_the_end() {
    run(async {
        // Patience enough with those who do not read, until it stops.
        let mut server = open_with(10 * LIMIT).await;
        fill(&server, 10 << 20).await;
        let mut unread = send(&server, LIST).await;
        unread.read_u8().await.unwrap();
        server.stop.cancel();
        timeout(2 * LIMIT, &mut server.serving).await.expect("it ends").unwrap();
    });
}

#[test]
fn one_client_does_not_take_all_connections() {
    run(async {
        let server = open_with(10 * LIMIT).await;
        let watch = "GET /api/runtime/watch HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let stats = "GET /api/runtime/stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut held = Vec::new();
        // 75 of 100 are served, of which a client may have 37.
        for _ in 0..37 {
            let mut stream = send(&server, watch).await;
            stream.read_u8().await.unwrap();
            held.push(stream);
        }
        let refused = rest(&mut send(&server, stats).await).await;
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("TRUSTED_PROXIES"), "{refused}");
        let probe = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        assert!(rest(&mut send(&server, probe).await).await.starts_with("HTTP/1.1 200 "), "probes are answered");
        let other = rest(&mut send_from("127.0.0.2", &server, stats).await).await;
        assert!(other.starts_with("HTTP/1.1 200 "), "{other}");
        held.pop();
        eventually("its share is free again", || async {
            rest(&mut send(&server, stats).await).await.starts_with("HTTP/1.1 200 ").then_some(())
        })
        .await;
    });
}
