//! Connections: accepted up to a number, served over HTTP/1.1, ended in good order.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::gate::Peer;
use super::{AppState, router};

/// Connections at a time; further ones wait to be accepted.
const MAX_CONNECTIONS: u32 = 4096;
/// For a request's head, and between requests: who sends it byte by byte keeps no connection occupied.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A rest after a failed accept: most fail because there are too many open files.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// For what is under way when the server stops.
const STOP_SLACK: Duration = Duration::from_secs(2);

/// Serves until `shutdown`, then stops listening and lets the requests under way finish. Long polls end with the state's own token.
pub async fn serve(listener: TcpListener, state: AppState, shutdown: CancellationToken) {
    let (finish_within, head_timeout) = (state.settings.request_timeout + STOP_SLACK, state.settings.head_timeout);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
    let router = router(state);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = connect(http.clone(), stream, peer, router.clone(), shutdown.clone());
                tokio::spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_REST).await;
            }
        }
    }
    drop(listener);
    if timeout(finish_within, places.acquire_many(MAX_CONNECTIONS)).await.is_err() {
        tracing::warn!("some requests did not finish in time and are broken off");
    }
}

async fn connect(http: http1::Builder, stream: TcpStream, peer: SocketAddr, router: Router, shutdown: CancellationToken) {
    // Small answers must not wait for more. It fails only on a connection that is gone.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer));
        router.clone().oneshot(request)
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Clients go away as they please, and idle connections are closed.
        tracing::debug!(%error, %peer, "connection ended");
    }
}
