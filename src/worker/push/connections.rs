//! Connections of the push server. Their number, in all and from one address, and their idle time are limited, because the agent needs its
//! file descriptors for its runs.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

/// The maximum number of open connections, but no more than a quarter of the files that the agent may open.
const MAX_CONNECTIONS: usize = 256;
/// The maximum from one address, so that one caller can't use up all connections.
const MAX_OF_ADDRESS: usize = 64;
/// The time limit for a request's head, and between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for a caller that does not read its answers.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failed accept: most fail because too many files are open, and would fail again at once.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// The minimum time between two log entries about refused connections.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Serves until `stopped`, then finishes the requests under way.
pub(crate) async fn serve(listener: TcpListener, router: Router, stopped: CancellationToken) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let permits = PermitPool::new();
    let mut logged_at: Option<Instant> = None;
    // If this future is dropped, the set is dropped too and ends all connections.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stopped.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => match permits.take(peer.ip().to_canonical()) {
                Some(permit) => {
                    let connection = connect(http.clone(), stream, router.clone(), stopped.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                // Dropping the stream closes it.
                None if logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_EVERY) => {
                    tracing::warn!(
                        %peer,
                        most = permits.most,
                        most_of_one_address = MAX_OF_ADDRESS,
                        "too many connections to the push server, this one is closed; let only the servers reach its port"
                    );
                    logged_at = Some(Instant::now());
                }
                None => {}
            },
            Err(error) => {
                tracing::warn!(%error, "a connection to the push server could not be accepted");
                sleep(ACCEPT_REST).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connect(http: http1::Builder, stream: TcpStream, router: Router, stopped: CancellationToken) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let mut connection = pin!(http.serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router)));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Not a defect: callers disconnect at any time, and idle connections are closed.
        tracing::debug!(%error, "a connection to the push server ended");
    }
}

/// The addresses of the open connections.
struct PermitPool {
    open: Arc<Mutex<Vec<IpAddr>>>,
    most: usize,
}

struct ConnectionPermit {
    open: Arc<Mutex<Vec<IpAddr>>>,
    peer: IpAddr,
}

impl PermitPool {
    fn new() -> Self {
        let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
        let most = files.map_or(MAX_CONNECTIONS, |files| (files / 4).clamp(1, MAX_CONNECTIONS));
        Self { open: Arc::default(), most }
    }

    fn take(&self, peer: IpAddr) -> Option<ConnectionPermit> {
        let mut open = self.open.lock();
        let has_room = open.len() < self.most && open.iter().filter(|other| **other == peer).count() < MAX_OF_ADDRESS;
        has_room.then(|| {
            open.push(peer);
            ConnectionPermit { open: self.open.clone(), peer }
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        if let Some(at) = open.iter().position(|peer| *peer == self.peer) {
            open.swap_remove(at);
        }
    }
}
