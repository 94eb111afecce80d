//! Tells open pages that something has changed. The pages then reload what they show, at most every few seconds.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::Method;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, sleep_until};

use super::refused::Refused;
use super::visit::Visit;

/// Changes that follow each other within this time are reported as one.
const EVERY: Duration = Duration::from_secs(1);
const CHANGE: Bytes = Bytes::from_static(b"event: change\ndata: 1\n\n");
const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// The watch stream of the API, reduced to the fact that something has changed: the address of a page determines best what the page shows,
/// so the page reloads itself.
pub(crate) async fn stream(visit: Visit) -> Result<Response, Refused> {
    let response = visit.send(Method::GET, "watch", String::new()).await;
    if !response.status().is_success() {
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        return Err(Refused::of(status, &body));
    }
    let (parts, body) = response.into_parts();
    let watch = Watch { changes: body.into_data_stream(), is_due: false, told_at: Instant::now() };
    let (api, caller) = (visit.api, visit.caller);
    // The stream ends when the key of the session is no longer valid, or when the server stops.
    let ended = async move { api.ended(&caller).await };
    let told = stream::unfold(watch, Watch::next).take_until(Box::pin(ended)).map(Ok::<_, Infallible>);
    Ok(Response::from_parts(parts, Body::from_stream(told)))
}

struct Watch {
    changes: BodyDataStream,
    /// Whether a change has not been reported yet.
    is_due: bool,
    told_at: Instant,
}

impl Watch {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        loop {
            tokio::select! {
                piece = self.changes.next() => match piece?.ok()? {
                    sign if sign == KEEP_ALIVE => return Some((KEEP_ALIVE, self)),
                    _ => self.is_due = true,
                },
                () = sleep_until(self.told_at + EVERY), if self.is_due => {
                    (self.is_due, self.told_at) = (false, Instant::now());
                    return Some((CHANGE, self));
                }
            }
        }
    }
}
