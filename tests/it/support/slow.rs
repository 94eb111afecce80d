//! Slow clients: streams that are not read, downloads byte by byte, large lists in a loop, and a long read transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::beside;
use super::checker::Link;
use super::client::Api;

/// How long a stream stays open unread before it is replaced. Servers are restarted meanwhile.
const UNREAD_FOR: Duration = Duration::from_secs(4);
/// The pause after each byte.
const A_BYTE: Duration = Duration::from_millis(10);

pub struct SlowReaders {
    stop: Arc<AtomicBool>,
    running: Vec<tokio::task::JoinHandle<()>>,
}

impl SlowReaders {
    /// Starts them on each replica. On SQLite, `url` is the file that is read in one long transaction.
    pub fn start(replicas: &[Api], url: &str) -> SlowReaders {
        let stop = Arc::<AtomicBool>::default();
        let mut running = Vec::new();
        for api in replicas {
            for path in ["watch", "watch", "llm-tasks?limit=1000"] {
                running.push(beside(never_read(api.clone(), path, Arc::clone(&stop))));
            }
            running.push(beside(read_events_never(api.clone(), Arc::clone(&stop))));
            running.push(beside(read_by_bytes(api.clone(), Arc::clone(&stop))));
        }
        running.push(beside(ask_much(replicas.to_vec(), Arc::clone(&stop))));
        if url.starts_with("sqlite") {
            running.push(beside(hold_a_snapshot(url.to_owned(), Arc::clone(&stop))));
        }
        SlowReaders { stop, running }
    }

    pub async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for reader in self.running {
            reader.await.expect("a reader");
        }
    }
}

/// A connection with this request, whose answer is not read.
async fn ask(api: &Api, path: &str) -> Option<TcpStream> {
    let address = api.base().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET /api/runtime/{path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream, application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    Some(stream)
}

/// Waits this long, or until `stop` is set.
async fn a_while(stop: &AtomicBool, length: Duration) {
    let end = tokio::time::Instant::now() + length;
    while tokio::time::Instant::now() < end && !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(20).min(length)).await;
    }
}

async fn never_read(api: Api, path: &str, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let _unread = ask(&api, path).await;
        a_while(&stop, UNREAD_FOR).await;
    }
}

/// Streams the events of the newest task.
async fn read_events_never(api: Api, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let newest = tokio::time::timeout(UNREAD_FOR, api.try_get("llm-tasks?limit=1")).await;
        if let Ok(Ok(answer)) = newest
            && answer.status == 200
            && let Some(id) = answer.json()[0]["id"].as_str()
        {
            let _unread = ask(&api, &format!("llm-tasks/{id}/events")).await;
            a_while(&stop, UNREAD_FOR).await;
        } else {
            a_while(&stop, A_BYTE).await;
        }
    }
}

async fn read_by_bytes(api: Api, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let Some(mut stream) = ask(&api, "audit?limit=1000").await else {
            a_while(&stop, A_BYTE * 5).await;
            continue;
        };
        let mut byte = [0];
        // A frozen server may never answer, and must not delay the end of the test.
        while !stop.load(Ordering::Relaxed) {
            match tokio::time::timeout(UNREAD_FOR, stream.read(&mut byte)).await {
                Ok(Ok(1)) => a_while(&stop, A_BYTE).await,
                _ => break,
            }
        }
    }
}

/// Requests large answers one after another, from one replica after another.
async fn ask_much(replicas: Vec<Api>, stop: Arc<AtomicBool>) {
    let paths =
        ["llm-tasks?limit=1000", "usage?by=agent_slug", "leases?limit=1000", "stats", "audit?limit=1000", "workers", "runs", "/metrics"];
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let api = &replicas[turn % replicas.len()];
        let path = paths[turn / replicas.len() % paths.len()];
        if let Ok(Ok(answer)) = tokio::time::timeout(UNREAD_FOR, api.try_get(path)).await {
            assert!(matches!(answer.status, 200 | 503), "{path}: {}: {}", answer.status, answer.text);
        } else {
            a_while(&stop, A_BYTE).await;
        }
    }
}

/// Reads in one transaction. SQLite can't truncate its log while a reader still needs the log's beginning.
async fn hold_a_snapshot(url: String, stop: Arc<AtomicBool>) {
    let mut link = Link::open(&url).await;
    link.rows("BEGIN").await;
    let before = link.count("tasks").await;
    while !stop.load(Ordering::Relaxed) {
        a_while(&stop, UNREAD_FOR).await;
    }
    assert_eq!(link.count("tasks").await, before, "the transaction sees one snapshot");
    link.rows("ROLLBACK").await;
}
