//! Push dispatch: sends a task to a worker's agent when a client asks for it.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use tokio::time::timeout;

use crate::AppState;
use crate::identity::clients::Peer;
use crate::identity::host;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, json, ok};
use crate::messages::error_precedence::Ask;
use crate::messages::path_ids::TaskPath;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::agents::{Dispatched, NotDispatched};
use bloom_api::error::{Code, ErrorText};
use bloom_api::requests::NewDispatch;
use bloom_api::wire::Wire;
use bloom_dispatch::Outcome;

pub(crate) const DISPATCH: RoutePolicy = RoutePolicy::ADMIN.waits();

/// Pushes a task to a worker's agent.
///
/// Leases the task to the worker and sends it, once, to the agent at the worker's URL. The call waits up to `wait_sec` seconds for the
/// agent's answer; the run goes on even if no answer arrives by then.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/dispatch", operation_id = "dispatchTask", tag = "agents",
    params(("id" = String, Path)), request_body = NewDispatch,
    responses(
        (status = 200, description = "The task was sent. `execution` is the agent's answer, if it arrived within `wait_sec`; if the agent \
            refused the task, the task has failed.", body = Dispatched),
        (status = 404, description = "The task or the worker does not exist.", body = ErrorText),
        (status = 409, description = "The task is not queued, or not ready.", body = ErrorText),
        (status = 502, description = "The agent can't be reached, or its answer is not JSON. The task is back in the queue.", body = NotDispatched),
        (status = 503, description = "No available worker with free capacity.", body = ErrorText),
    )
)]
pub(crate) async fn dispatch(
    State(app): State<AppState>,
    caller: Caller,
    path: TaskPath,
    RuntimeUrl(runtime_url): RuntimeUrl,
    body: Content,
) -> HandlerResult {
    let raw = body.raw()?;
    let request = match NewDispatch::read(raw) {
        Ok(request) => request,
        Err(wrong) => return Err(app.most_important_error(&path, Ask::Lease, raw, wrong.into()).await),
    };
    let task_id = path.id()?;
    let _permit = app.stream_limits.agents.take(&caller)?;
    let worker = request.worker_id.map(|id| id.0);
    let push = app.agents.dispatch(task_id, worker, app.settings.lease_ttl_ms, caller.requester(), runtime_url).await?;
    let outcome = tokio::select! {
        outcome = timeout(Duration::from_secs(request.wait_sec.0.unsigned_abs()), push.outcome) => outcome.ok().and_then(Result::ok),
        () = app.shutdown.cancelled() => None,
    };
    let (worker_id, lease_id) = (push.worker_id.into(), push.lease_id);
    let execution = match outcome {
        Some(Outcome::Failed(error)) => {
            let failed = NotDispatched { dispatched: false, task_id, worker_id, error: error.into(), code: Code::Unavailable.into() };
            return json(StatusCode::BAD_GATEWAY, &failed);
        }
        Some(Outcome::Accepted(answer) | Outcome::Refused(answer)) => Some(answer),
        Some(Outcome::Unanswered) | None => None,
    };
    ok(&Dispatched { dispatched: true, task_id, worker_id, lease_id, execution: execution.map(Cow::Owned) })
}

/// The URL at which agents reach this server: the configured one, or else the one of this request.
pub(crate) struct RuntimeUrl(pub String);

impl FromRequestParts<AppState> for RuntimeUrl {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Infallible> {
        if let Some(url) = app.agents.public_url() {
            return Ok(Self(url.to_owned()));
        }
        let peer = parts.extensions.get::<Peer>().copied();
        let called = host::called(&parts.uri, &parts.headers, peer, &app.settings.trusted_proxies).ok().flatten();
        Ok(Self(called.map_or_else(|| app.agents.own_url().to_owned(), |url| url.origin().ascii_serialization())))
    }
}
