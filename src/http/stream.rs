//! Server-sent events, and the number of requests that may wait at a time.

use super::clients::{Place, Shares};
use super::error::Error;
use super::middleware::Caller;
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
const SHARE_TAKEN: Error = Error::Later("Too many requests of this client are waiting right now: end some of them, or try again");

/// Says that the stream lives. Line breaks of proxies' time-outs are some ten seconds.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// Places for requests that wait, by what they wait for.
pub struct StreamLimits {
    pub claims: Places,
    pub waits: Places,
    pub events: Places,
    pub watches: Places,
    /// For calls that wait for an agent.
    pub agents: Places,
}

/// So many at a time, of which no client has all.
pub struct Places {
    free: Arc<Semaphore>,
    clients: Shares,
}

/// A place, until it is dropped.
pub struct Permit {
    _place: OwnedSemaphorePermit,
    _share: Place,
}

impl StreamLimits {
    /// Workers that wait for work take three quarters of the connections at the most: they need others to report on.
    pub fn new(connections: usize) -> Self {
        let many = || Places::new(MAX_STREAMS);
        Self { claims: Places::new(connections / 4 * 3), waits: many(), events: many(), watches: many(), agents: many() }
    }
}

impl Places {
    fn new(places: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(places)), clients: Shares::of(places) }
    }

    /// # Errors
    /// There is none left, or the client has its share.
    pub fn take(&self, caller: &Caller) -> Result<Permit, Error> {
        let share = self.clients.take(caller.client).ok_or(SHARE_TAKEN)?;
        let place = self.free.clone().try_acquire_owned().map_err(|_| FULL)?;
        Ok(Permit { _place: place, _share: share })
    }
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
