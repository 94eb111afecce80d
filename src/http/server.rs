//! Connections: accepts them up to a limit, serves them over HTTP/1.1, with or without TLS, and ends them gracefully.
//!
//! Beyond that limit, or beyond the share of one client, a few spare connections are accepted. On these, requests are refused with 503,
//! but probes are answered, so that a busy server is not taken for a dead one. If these are taken too, connections are closed at once.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::identity::clients::{Peer, Security, network, trusts};
use crate::identity::handshake::{Begun, Stream, begin};
use crate::limits::client_shares::Shares;
use crate::messages::error::Error;
use crate::pages::Pages;
use crate::{AppState, Settings, router};
use bloom_telemetry::Metrics;
use bloom_tls::Tls;

/// Connections at a time, if the limit of open files allows as many.
pub const MAX_CONNECTIONS: usize = 8_192;
/// How many of these are spare. Spare connections are used when all others are taken.
const SPARE: usize = 32;
/// Time limit of the request's head on a spare connection.
const SPARE_HEAD: Duration = Duration::from_secs(2);
/// Time limit of a spare connection.
const SPARE_TIME: Duration = Duration::from_secs(5);
/// How many bytes of a refused request are read. If a connection is closed with unread bytes, the answer may get lost.
const UNREAD: usize = 64 << 10;
const FULL: Error = Error::Later("All connections of the server are in use, try again");
const SHARE_TAKEN: Error = Error::Later(
    "This address has as many connections as one client may have: use fewer, or, if it is a proxy for many clients, name it in \
     TRUSTED_PROXIES",
);
const NOT_TLS: Error =
    Error::fixed(400, "This port speaks https, and the request came as plain http: use an address that begins with https://");
/// Time limit of the TLS handshake, of a request's head and of the wait between requests, so that slow clients do not occupy connections.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that reads nothing for this time is disconnected, so that it does not hold a connection and the memory of its answers.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the bytes that a connection buffers for a client that does not read, besides the piece being sent.
const UNSENT: usize = 64 << 10;
/// Pause after a failed accept. The usual reason is too many open files.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Refused connections are logged at most once in this time.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Time for requests in progress when the server stops, in addition to the request timeout.
const STOP_SLACK: Duration = Duration::from_secs(2);
/// Time for a client to read its answer when the server stops, so that a client that does not read can't delay the stop.
const STOP_SEND: Duration = Duration::from_secs(5);

/// Divides this number of connections into regular and spare ones.
pub fn shares(connections: usize) -> (usize, usize) {
    let connections = connections.clamp(8, MAX_CONNECTIONS);
    let spare = SPARE.min(connections / 4);
    (connections - spare, spare)
}

/// Serves until `shutdown`, then stops listening and lets the requests in progress finish. The token in `state` ends the long polls.
pub async fn serve(listener: TcpListener, state: AppState, pages: Pages, shutdown: CancellationToken) {
    let served = Served { settings: state.settings.clone(), metrics: state.metrics.clone(), refuse: IntoResponse::into_response };
    serve_router(listener, router(state, pages), served, shutdown).await;
}

/// What is needed to serve connections for a router.
pub(crate) struct Served {
    pub settings: Settings,
    pub metrics: Metrics,
    /// Converts an error that occurs before the router is called to an answer.
    pub refuse: fn(Error) -> Response,
}

/// Like [`serve`], for any router.
pub(crate) async fn serve_router(listener: TcpListener, router: Router, served: Served, shutdown: CancellationToken) {
    let Served { settings, metrics, refuse } = served;
    let finish_within = settings.request_timeout + STOP_SLACK;
    let (head_timeout, write_timeout) = (settings.head_timeout, settings.write_timeout);
    let (most, spare) = shares(settings.max_connections);
    let (permits, spare) = (Arc::new(Semaphore::new(most)), Arc::new(Semaphore::new(spare)));
    let trusted_proxies = settings.trusted_proxies;
    let clients = Shares::by_address(most);
    let mut refusals = Refusals { metrics, unlogged: 0, logged_at: None };
    let tls = settings.tls;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(UNSENT);
    let regular = Serving { http, head_timeout, write_timeout, tls, router, refuse, shutdown: shutdown.clone() };
    let mut spared = Serving { head_timeout: head_timeout.min(SPARE_HEAD), ..regular.clone() };
    spared.http.header_read_timeout(spared.head_timeout).keep_alive(false);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let local = stream.local_addr().ok().map(|local| local.ip().to_canonical());
                let peer = Peer { address, local, security: Security::Plain };
                // A trusted proxy has no share of its own, because it carries the requests of many clients, whose addresses are known only
                // from the requests.
                let share = (!trusts(&trusted_proxies, address.ip())).then(|| clients.take(network(address.ip())));
                let refusal = match (share, permits.clone().try_acquire_owned()) {
                    (Some(None), _) => SHARE_TAKEN,
                    (_, Err(_)) => FULL,
                    (share, Ok(permit)) => {
                        let connection = regular.clone().connect(stream, peer);
                        tokio::spawn(async move {
                            connection.await;
                            drop((share, permit));
                        });
                        continue;
                    }
                };
                refusals.add(address.ip(), &refusal);
                // If no spare connection is left, the stream is dropped, which closes it.
                if let Ok(permit) = spare.clone().try_acquire_owned() {
                    let connection = spared.clone().refuse(stream, peer, refusal);
                    tokio::spawn(async move {
                        let _ = timeout(SPARE_TIME, connection).await;
                        drop(permit);
                    });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_REST).await;
            }
        }
    }
    drop(listener);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    if timeout(finish_within, permits.acquire_many(all)).await.is_err() {
        tracing::warn!("some requests did not finish in time and were aborted");
    }
}

/// How connections are served. Each one gets a clone.
#[derive(Clone)]
struct Serving {
    http: http1::Builder,
    head_timeout: Duration,
    write_timeout: Duration,
    tls: Option<Tls>,
    router: Router,
    refuse: fn(Error) -> Response,
    shutdown: CancellationToken,
}

impl Serving {
    async fn connect(self, stream: TcpStream, mut peer: Peer) {
        let begun = tokio::select! {
            begun = self.begin(stream, &mut peer) => begun,
            () = self.shutdown.cancelled() => return,
        };
        let Some(stream) = begun else { return };
        let (is_asked, mut asked) = watch::channel(false);
        let router = self.router;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            is_asked.send_replace(true);
            let (router, is_asked) = (router.clone(), is_asked.clone());
            async move {
                let answer = router.oneshot(from(peer, request)).await;
                is_asked.send_replace(false);
                answer
            }
        });
        let mut connection = pin!(self.http.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                let unread = async {
                    let _ = asked.wait_for(|is_asked| !is_asked).await;
                    sleep(STOP_SEND).await;
                };
                tokio::select! {
                    ended = connection => ended,
                    () = unread => return,
                }
            }
        };
        if let Err(error) = ended {
            log_end(peer, &error);
        }
    }

    /// Serves one request on a spare connection: probes and metrics are answered, everything else is refused.
    async fn refuse(self, stream: TcpStream, mut peer: Peer, refusal: Error) {
        if let Some(stream) = self.begin(stream, &mut peer).await {
            let write = self.refuse;
            refuse(&self.http, stream, peer, Some(self.router), move || write(refusal.clone())).await;
        }
    }

    /// Performs the handshake. `None` if it failed; a client that speaks plain HTTP gets an answer that says so.
    async fn begin(&self, stream: TcpStream, peer: &mut Peer) -> Option<Stream> {
        match begin(stream, self.tls.as_ref().map(Tls::acceptor), self.head_timeout, self.write_timeout).await {
            Ok(Begun::Ready(stream, security)) => {
                peer.security = security;
                Some(stream)
            }
            Ok(Begun::NotTls(stream)) => {
                let write = self.refuse;
                let _ = timeout(SPARE_TIME, refuse(self.http.clone().keep_alive(false), stream, *peer, None, move || write(NOT_TLS))).await;
                None
            }
            Err(error) => {
                log_end(*peer, &error);
                None
            }
        }
    }
}

/// Answers one request with an error, unless it is for one of the `probes`.
async fn refuse(http: &http1::Builder, stream: Stream, peer: Peer, probes: Option<Router>, refusal: impl Fn() -> Response + Clone) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (probes, refusal) = (probes.clone(), refusal.clone());
        async move {
            if let Some(router) = probes
                && matches!(request.uri().path(), "/healthz" | "/readyz" | "/health" | "/metrics")
            {
                return router.oneshot(from(peer, request)).await;
            }
            let _ = Limited::new(request.into_body(), UNREAD).collect().await;
            Ok::<Response, _>(refusal())
        }
    });
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        log_end(peer, &error);
    }
}

/// This is normal: clients disconnect at any time, and idle connections are closed.
fn log_end(peer: Peer, error: &dyn std::error::Error) {
    tracing::debug!(%error, peer = %peer.address, "connection ended");
}

fn from(peer: Peer, request: hyper::Request<Incoming>) -> Request {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    request
}

/// Counts and logs the connections that were refused because all permits, or those of their client, were taken.
struct Refusals {
    metrics: Metrics,
    unlogged: u64,
    logged_at: Option<Instant>,
}

impl Refusals {
    fn add(&mut self, client: IpAddr, why: &Error) {
        self.metrics.connection_refused();
        self.unlogged += 1;
        if self.logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_EVERY) {
            let (refused, why) = (self.unlogged, why.line());
            tracing::warn!(refused, last = %client, why, "connections are refused because their limit is reached; the log entry at the start names the limit");
            (self.unlogged, self.logged_at) = (0, Some(Instant::now()));
        }
    }
}
