//! Agents of workers, on loopback, that answer as the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::fixtures::{Crew, NewWorker, Task};
use super::stub::Stub;
use super::{Answer, beside, eventually, json};

impl<'a> Crew<'a> {
    /// A worker of this crew whose agent has this URL.
    pub fn worker_at(&self, url: &str) -> NewWorker<'a> {
        self.worker().with("url", json!(url))
    }

    /// A worker that the leader pushes to.
    pub fn pushed_worker(&self, url: &str) -> NewWorker<'a> {
        self.worker_at(url).with("dispatch", json!("push"))
    }
}

impl Task<'_> {
    pub async fn dispatch(&self, body: Value) -> Answer {
        self.api.post(&self.path("/dispatch"), body).await
    }
}

impl Stub {
    /// The tasks that were pushed here, in order of arrival.
    pub fn pushed(&self) -> Vec<Value> {
        self.seen("/execute-task").iter().map(|request| serde_json::from_str(&request.body).expect("JSON")).collect()
    }

    /// Waits until this many tasks were pushed here.
    pub async fn has_got(&self, tasks: usize) -> Vec<Value> {
        eventually(&format!("{tasks} pushes"), || async { Some(self.pushed()).filter(|pushed| pushed.len() >= tasks) }).await
    }
}

/// An address on which nothing listens.
pub fn nowhere() -> String {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = socket.local_addr().expect("an address");
    // The port stays bound without listening as long as the tests run, so no other process gets it.
    std::mem::forget(socket);
    format!("http://{address}")
}

/// Accepts requests and answers none until it is let go; then it sends these bytes and closes the connection.
pub struct Mute {
    pub url: String,
    pub requests: Arc<AtomicUsize>,
    go: Arc<Notify>,
}

impl Mute {
    pub async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (requests, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (counted, gone) = (requests.clone(), go.clone());
        beside(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (counted, gone) = (counted.clone(), gone.clone());
                beside(async move {
                    let let_go = gone.notified();
                    let _ = stream.read(&mut [0; 65_536]).await;
                    counted.fetch_add(1, Ordering::SeqCst);
                    let_go.await;
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        Self { url, requests, go }
    }

    pub async fn has_a_request(&self) {
        eventually("a request", || async { (self.requests.load(Ordering::SeqCst) > 0).then_some(()) }).await;
    }

    pub fn let_go(&self) {
        self.go.notify_waiters();
    }
}
