//! Server-sent events.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::{Stream, StreamExt};

use crate::messages::answer::EVENT_STREAM;

/// An empty comment, sent regularly because proxies close a stream that is silent for some tens of seconds.
pub(crate) const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// A stream of server-sent events. The first line shows proxies and clients at once that the stream has begun.
pub(crate) fn event_stream(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let frames = futures_util::stream::once(async { KEEP_ALIVE }).chain(frames).map(Ok::<_, Infallible>);
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, EVENT_STREAM);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
