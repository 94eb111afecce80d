//! Push dispatch: a task brought to a worker's agent at a client's word.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use tokio::time::timeout;
use url::Url;

use super::AppState;
use super::answer::{HandlerResult, json, ok};
use super::body::Content;
use super::error_precedence::Ask;
use super::middleware::{Caller, Peer};
use super::path::TaskPath;
use super::policy::Policy;
use bloom_api::agents::{Dispatched, NotDispatched};
use bloom_api::error::ErrorText;
use bloom_api::requests::NewDispatch;
use bloom_api::wire::Wire;
use bloom_dispatch::Outcome;

pub const DISPATCH: Policy = Policy::ADMIN.waits();

/// Leases the task to a worker and sends it to the worker's agent.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/dispatch", operation_id = "dispatchTask", tag = "agents",
    params(("id" = String, Path)), request_body = NewDispatch,
    responses(
        (status = 200, description = "The agent has the task; its answer, if it came in time. One that refuses answers here, too: then the \
            task has failed.", body = Dispatched),
        (status = 404, description = "The task or the worker does not exist.", body = ErrorText),
        (status = 409, description = "The task is not queued, or not ready.", body = ErrorText),
        (status = 502, description = "The agent can't be reached, or its answer is not JSON. The task is back in the queue.", body = NotDispatched),
        (status = 503, description = "No available worker with free capacity.", body = ErrorText),
    )
)]
pub async fn dispatch(
    State(app): State<AppState>,
    caller: Caller,
    path: TaskPath,
    RuntimeUrl(runtime_url): RuntimeUrl,
    body: Content,
) -> HandlerResult {
    let raw = body.raw()?;
    let wish = match NewDispatch::read(raw) {
        Ok(wish) => wish,
        Err(wrong) => return Err(app.most_important_error(&path, Ask::Lease, raw, wrong.into()).await),
    };
    let task_id = path.id()?;
    let _permit = app.stream_limits.agent()?;
    let worker = wish.worker_id.map(|id| id.0);
    let request_id = Some(caller.request_id.to_string());
    let push = app.agents.dispatch(task_id, worker, app.settings.lease_ttl_ms, request_id, runtime_url).await?;
    let outcome = tokio::select! {
        outcome = timeout(Duration::from_secs(wish.wait_sec.0.unsigned_abs()), push.outcome) => outcome.ok().and_then(Result::ok),
        () = app.shutdown.cancelled() => None,
    };
    let (worker_id, lease_id) = (push.worker_id.into(), push.lease_id);
    let execution = match outcome {
        Some(Outcome::Failed(error)) => {
            return json(StatusCode::BAD_GATEWAY, &NotDispatched { dispatched: false, task_id, worker_id, error: error.into() });
        }
        Some(Outcome::Accepted(answer) | Outcome::Refused(answer)) => Some(answer),
        Some(Outcome::Unanswered) | None => None,
    };
    ok(&Dispatched { dispatched: true, task_id, worker_id, lease_id, execution: execution.map(Cow::Owned) })
}

/// Where an agent reaches this server: as its operator says, else as this request did.
pub struct RuntimeUrl(pub String);

impl FromRequestParts<AppState> for RuntimeUrl {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Infallible> {
        if let Some(url) = app.agents.public_url() {
            return Ok(Self(url.to_owned()));
        }
        let peer = parts.extensions.get::<Peer>().map(|peer| peer.0.ip().to_canonical());
        let by_proxy = peer.is_some_and(|peer| app.settings.trusted_proxies.iter().any(|net| net.contains(&peer)));
        Ok(Self(called(&parts.headers, by_proxy).unwrap_or_else(|| app.agents.own_url().to_owned())))
    }
}

/// The scheme and host that the client has called. What a trusted proxy says of them counts; `None`: nothing that could be called.
fn called(headers: &HeaderMap, by_proxy: bool) -> Option<String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let forwarded = |name: &str| header(name).filter(|_| by_proxy).and_then(|text| text.split(',').next()).map(str::trim);
    let scheme = forwarded("x-forwarded-proto").filter(|scheme| *scheme == "https").unwrap_or("http");
    let host = forwarded("x-forwarded-host").or_else(|| header(HOST.as_str()))?;
    let url = Url::parse(&format!("{scheme}://{host}")).ok()?;
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    (is_bare && url.password().is_none() && url.has_host()).then(|| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_one_that_was_called() {
        let check = |headers: &[(&'static str, &'static str)], by_proxy, expected: Option<&str>| {
            let map = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            assert_eq!(called(&map, by_proxy).as_deref(), expected, "{headers:?}");
        };
        check(&[("host", "bloom.example:5000")], false, Some("http://bloom.example:5000"));
        check(&[("host", "[::1]:5000")], false, Some("http://[::1]:5000"));
        check(&[("host", "a"), ("x-forwarded-proto", "https"), ("x-forwarded-host", "b")], false, Some("http://a"));
        check(&[("host", "a"), ("x-forwarded-proto", "https")], true, Some("https://a"));
        check(&[("host", "a"), ("x-forwarded-proto", "https"), ("x-forwarded-host", "b, c")], true, Some("https://b"));
        for wrong in ["", "a/b", "u@a", "a?b", "a b", "a#b"] {
            check(&[("host", wrong)], false, None);
        }
        check(&[], false, None);
    }
}
