//! Server-sent events, and the number of requests that may wait at a time.

use super::error::Error;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Streams and waits at a time, of each kind.
const MAX_STREAMS: usize = 256;
const FULL: Error = Error::Later("Too many requests are waiting right now, try again");

/// Says that the stream lives. Line breaks of proxies' time-outs are some ten seconds.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// Places for requests that wait.
pub struct StreamLimits {
    claims: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    events: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    agents: Arc<Semaphore>,
}

pub type Permit = OwnedSemaphorePermit;

impl StreamLimits {
    /// Workers that wait for work take three quarters of the connections at the most: they need others to report on.
    pub fn new(connections: usize) -> Self {
        let stream_limits = |n| Arc::new(Semaphore::new(n));
        let many = || stream_limits(MAX_STREAMS);
        Self { claims: stream_limits(connections / 4 * 3), waits: many(), events: many(), watches: many(), agents: many() }
    }

    pub fn claim(&self) -> Result<Permit, Error> {
        take(&self.claims)
    }

    pub fn wait(&self) -> Result<Permit, Error> {
        take(&self.waits)
    }

    /// For a call that waits for an agent.
    pub fn agent(&self) -> Result<Permit, Error> {
        take(&self.agents)
    }

    pub fn events(&self) -> Result<Permit, Error> {
        take(&self.events)
    }

    pub fn watch(&self) -> Result<Permit, Error> {
        take(&self.watches)
    }
}

fn take(stream_limits: &Arc<Semaphore>) -> Result<Permit, Error> {
    stream_limits.clone().try_acquire_owned().map_err(|_| FULL)
}

/// An answer that goes on. The first line makes proxies and clients see at once that it has begun.
pub fn event_stream(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let frames = futures_util::stream::once(async { KEEP_ALIVE }).chain(frames).map(Ok::<_, Infallible>);
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
