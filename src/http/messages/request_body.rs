//! Request bodies. A body is read before its handler runs, up to a size limit and a deadline.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderValue;
use axum::http::header::{CONNECTION, EXPECT};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::limits::body_memory::{Budget, Share};
use crate::messages::error::Error;
use bloom_api::wire::Wire;

/// Bytes beyond the limit that are read and dropped, so that a client that is still sending receives the answer.
const DRAIN_BYTES: usize = 32 * 1024 * 1024;

/// How much of the body of a refused request is skipped, and for how long.
const SKIPPED_BYTES: usize = 256 * 1024;
const SKIP_LIMIT: Duration = Duration::from_secs(1);
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How long a stopping server waits for bodies that are still arriving. Slow clients must not delay the stop.
const AT_STOP: Duration = Duration::from_secs(1);

/// The slowest connection, in bytes per second, over which the largest outputs of runs must still arrive.
const SLOWEST: u64 = 64 << 10;

/// The extra time for a request with a large body. Without it, an agent would send an output that does not arrive in time again and again.
pub(crate) fn time_of(request: &Request, limit: Limit) -> Duration {
    let announced = request.body().size_hint().exact().unwrap_or(0).min(limit.bytes as u64);
    Duration::from_secs(announced / SLOWEST)
}

/// Answers a request that is refused before its body was read. The body is read and dropped, because closing a connection with unread bytes
/// resets it, and the client may then lose the answer.
pub(crate) async fn refuse_unread(request: Request, answer: Response) -> Response {
    refuse_after(request, answer, SKIPPED_BYTES, SKIP_LIMIT).await
}

/// The same for a form of a page, with more time. A proxy that is still sending a person's file would otherwise report that the server does
/// not answer.
pub async fn refuse_unread_form(request: Request, answer: Response) -> Response {
    refuse_after(request, answer, DRAIN_BYTES, DRAIN_LIMIT).await
}

async fn refuse_after(request: Request, mut answer: Response, most: usize, limit: Duration) -> Response {
    let is_awaited = request.headers().contains_key(EXPECT);
    // If the end of the body was not reached, or the client waits for a `100 Continue`, the connection can't be reused. This header says so
    // to the client.
    if !discard(request.into_body(), is_awaited, most, limit).await {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// Reads and drops the rest of a body that a handler has not read to its end. It may take longer than for a refused request, so that a
/// client that is still sending a large file receives the answer. Returns false if the end of the body was not reached.
pub(crate) async fn drain(body: Body, is_awaited: bool) -> bool {
    discard(body, is_awaited, DRAIN_BYTES, DRAIN_LIMIT).await
}

async fn discard(mut body: Body, is_awaited: bool, most: usize, limit: Duration) -> bool {
    if body.is_end_stream() || is_awaited {
        return body.is_end_stream();
    }
    let to_the_end = async {
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            length += frame.ok()?.data_ref().map_or(0, Bytes::len);
            if length > most {
                return None;
            }
        }
        Some(())
    };
    matches!(timeout(limit, to_the_end).await, Ok(Some(())))
}

/// Reads the whole body of a request into memory.
///
/// # Errors
/// The body is too long or too late, or other bodies use too much memory.
pub(crate) async fn gather(
    request: Request,
    limit: Limit,
    deadline: Instant,
    budget: &Budget,
    client: IpAddr,
    shutdown: &CancellationToken,
) -> Result<(Request, Share), Error> {
    let (parts, body) = request.into_parts();
    // A client that sent `Expect: 100-continue` is refused at once, because it has not sent the body yet.
    let drain = if parts.headers.contains_key(EXPECT) { 0 } else { DRAIN_BYTES };
    let mut share = Share::default();
    let has_room = |bytes| budget.fit(&mut share, bytes, client).inspect_err(|_| share = Share::default());
    let stopped = async {
        shutdown.cancelled().await;
        sleep(AT_STOP).await;
    };
    tokio::select! {
        read = timeout_at(deadline, read(body, limit, drain, has_room)) => match read {
            Ok(bytes) => Ok((Request::from_parts(parts, Body::from(bytes?)), share)),
            Err(_) => Err(Error::fixed(408, "The request's body did not arrive in time")),
        },
        () = stopped => Err(Error::Later("The server is stopping, and the request's body has not arrived")),
    }
}

async fn read(mut body: Body, limit: Limit, drain: usize, mut has_room: impl FnMut(usize) -> Result<(), Error>) -> Result<Bytes, Error> {
    let most = limit.bytes;
    let announced = body.size_hint().exact().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if announced > most.saturating_add(drain) {
        return Err(limit.error());
    }
    let mut first = Bytes::new();
    let mut whole = Vec::new();
    let mut length = 0_usize;
    let mut refused = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Error::fixed(400, "The request's body could not be read"))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        refused = refused.or_else(|| has_room(length.min(most)).err());
        if length > most || refused.is_some() {
            (first, whole) = (Bytes::new(), Vec::new());
            if length > most.saturating_add(drain) {
                break;
            }
        } else if length == data.len() {
            first = data;
        } else {
            if whole.is_empty() {
                whole.reserve(announced.max(length));
                whole.extend_from_slice(&first);
            }
            whole.extend_from_slice(&data);
        }
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    match (length > most, whole.is_empty()) {
        (true, _) => Err(limit.error()),
        (false, true) => Ok(first),
        (false, false) => Ok(whole.into()),
    }
}

/// The largest body that a route takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub bytes: usize,
    /// The settings that determine it.
    pub settings: &'static str,
}

impl Limit {
    pub(crate) fn error(self) -> Error {
        let Self { bytes, settings } = self;
        let text = format!("Request body is too large: at most {bytes} bytes are taken (the server's limit: {settings})");
        Error::Text { status: 413, text: text.into() }
    }
}

/// A request body, for handlers.
pub(crate) struct Content(Bytes);

impl<S: Send + Sync> FromRequest<S> for Content {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self, Error> {
        let body = request.into_body().collect().await;
        body.map(|body| Self(body.to_bytes())).map_err(|error| Error::Internal(error.to_string()))
    }
}

impl Content {
    /// The body as JSON text; an empty body counts as `{}`.
    ///
    /// # Errors
    /// The body is not JSON.
    pub(crate) fn raw(&self) -> Result<&RawValue, Error> {
        let text = if self.0.is_empty() { b"{}" } else { &self.0[..] };
        serde_json::from_slice(text).map_err(|_| Error::fixed(400, "Request body is not valid JSON"))
    }

    /// # Errors
    /// The body is not JSON, or its content is invalid.
    pub(crate) fn read<T: Wire>(&self) -> Result<T, Error> {
        Ok(T::read(self.raw()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit() {
        let chunks = |chunks: &[&'static str]| {
            let chunks: Vec<_> = chunks.iter().map(|chunk| Ok::<_, Infallible>(Bytes::from_static(chunk.as_bytes()))).collect();
            Body::from_stream(futures_util::stream::iter(chunks))
        };
        let five = Limit { bytes: 5, settings: "MAX_BODY_BYTES" };
        assert_eq!(read(chunks(&["ab", "cd", "e"]), five, 0, |_| Ok(())).await.unwrap(), "abcde");
        assert_eq!(read(Body::from("abcde"), five, 0, |_| Ok(())).await.unwrap(), "abcde");
        assert_eq!(read(Body::empty(), five, 0, |_| Ok(())).await.unwrap(), "");
        assert_eq!(read(chunks(&["ab", "cd", "ef"]), five, 100, |_| Ok(())).await.unwrap_err().status(), 413);
        let error = read(Body::from("abcdef"), five, 0, |_| Ok(())).await.unwrap_err();
        assert_eq!((error.status(), error.line().contains("at most 5 bytes are taken (the server's limit: MAX_BODY_BYTES)")), (413, true));
    }

    #[test]
    fn no_body_is_an_empty_object() {
        assert_eq!(Content(Bytes::new()).raw().unwrap().get(), "{}");
        assert_eq!(Content("[1,".into()).raw().unwrap_err().line(), "Request body is not valid JSON");
        assert_eq!(Content("\"\\ud800".into()).raw().unwrap_err().status(), 400);
    }
}
