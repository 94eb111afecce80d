//! Calls to the agents of workers: health, update, restart, uninstall.

use axum::extract::State;

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::error::Error;
use crate::messages::path_ids::WorkerPath;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::agents::{AgentHealth, OrderDone, change_of_health};
use bloom_api::error::ErrorText;
use bloom_core::audit::{Action, Actor, EntityType};
use bloom_core::command::{Loss, Op};
use bloom_core::op;
use bloom_core::worker::Worker;
use bloom_dispatch::Order;

/// An admin key is needed for this GET, because it makes the server call the agent with the agents' key, and changes the worker.
pub(crate) const HEALTH: RoutePolicy = RoutePolicy::ADMIN.waits();

/// Asks the worker's agent for its health.
///
/// The server updates the worker from the answer. If the agent does not answer, the worker is offline until the server hears from it again.
#[utoipa::path(
    get, path = "/api/runtime/workers/{id}/agent-health", operation_id = "getAgentHealth", tag = "agents",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "Whether the agent answered, and its answer.", body = AgentHealth),
        (status = 400, description = "Worker has no URL configured.", body = ErrorText),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn health(State(app): State<AppState>, caller: Caller, path: WorkerPath) -> HandlerResult {
    let worker = with_url(&app, path).await?;
    let _permit = app.stream_limits.agents.take(&caller)?;
    match app.agents.health(&worker.url).await {
        Ok(answer) => {
            let change = change_of_health(&worker.id, &answer);
            app.engine.writers.submit(caller.command(change)).await?;
            ok(&AgentHealth::reachable(answer))
        }
        Err(error) => {
            let lost = op::MarkOffline { worker: worker.id, cause: Loss::Unreachable(error.clone()) };
            app.engine.writers.submit(caller.command(lost)).await?;
            ok(&AgentHealth::unreachable(error))
        }
    }
}

async fn with_url(app: &AppState, path: WorkerPath) -> Result<Worker, Error> {
    let worker = app.store.worker(&path.name()?).await?.ok_or(Error::WORKER_NOT_FOUND)?;
    if worker.url.is_empty() { Err(Error::fixed(400, "Worker has no URL configured")) } else { Ok(worker) }
}

pub(crate) const UPDATE: RoutePolicy = RoutePolicy::ADMIN.waits();

/// Orders the worker's agent to update itself.
///
/// The server calls `/self-update` at the worker's URL with the agents' key, and returns the agent's answer.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/agent-update", operation_id = "updateAgent", tag = "agents",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "`updated`, and the agent's answer.", body = OrderDone),
        (status = 400, description = "Worker has no URL configured.", body = ErrorText),
        (status = 404, description = "Worker not found.", body = ErrorText),
        (status = 502, description = "The agent refused, or it can't be reached.", body = ErrorText),
    )
)]
pub(crate) async fn update(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    order(app, caller, path, &body, Order::Update).await
}

pub(crate) const RESTART: RoutePolicy = RoutePolicy::ADMIN.waits();

/// Orders the worker's agent to restart.
///
/// The server calls `/restart` at the worker's URL with the agents' key. Runs go on, and the restarted agent takes them over.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/agent-restart", operation_id = "restartAgent", tag = "agents",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "`restarted`, and the agent's answer.", body = OrderDone),
        (status = 400, description = "Worker has no URL configured.", body = ErrorText),
        (status = 404, description = "Worker not found.", body = ErrorText),
        (status = 502, description = "The agent refused, or it can't be reached.", body = ErrorText),
    )
)]
pub(crate) async fn restart(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    order(app, caller, path, &body, Order::Restart).await
}

pub(crate) const UNINSTALL: RoutePolicy = RoutePolicy::ADMIN.waits();

/// Orders the worker's agent to stop for good.
///
/// The agent hands back its tasks. The worker stays in the list, offline.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/agent-uninstall", operation_id = "uninstallAgent", tag = "agents",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "`uninstalled`, and the agent's answer.", body = OrderDone),
        (status = 400, description = "Worker has no URL configured.", body = ErrorText),
        (status = 404, description = "Worker not found.", body = ErrorText),
        (status = 502, description = "The agent refused, or it can't be reached.", body = ErrorText),
    )
)]
pub(crate) async fn uninstall(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    order(app, caller, path, &body, Order::Uninstall).await
}

async fn order(app: AppState, caller: Caller, path: WorkerPath, body: &Content, order: Order) -> HandlerResult {
    body.raw()?;
    let worker = with_url(&app, path).await?;
    let permit = app.stream_limits.agents.take(&caller)?;
    // In a background task, so that an order that was sent is recorded even if the client disconnects meanwhile.
    let done = tokio::spawn(async move {
        let _permit = permit;
        let answer = app.agents.order(&worker.url, order).await;
        let answer = answer.map_err(|error| Error::Text { status: 502, text: error.into() })?;
        app.engine.writers.submit(caller.command(record(order, worker.id))).await?;
        Ok::<_, Error>(answer)
    });
    let answer = done.await.map_err(|error| Error::Internal(error.to_string()))?;
    let word = match order {
        Order::Update => "updated",
        Order::Restart => "restarted",
        Order::Uninstall => "uninstalled",
    };
    ok(&OrderDone::new(word, answer?))
}

fn record(order: Order, worker: String) -> Op {
    let audit = |action| {
        op::RecordAudit { action, entity_type: EntityType::Worker, entity_id: worker.clone(), actor: Actor::Admin, detail: String::new() }
            .into()
    };
    match order {
        Order::Update => audit(Action::AgentUpdated),
        Order::Restart => audit(Action::AgentRestarted),
        Order::Uninstall => op::MarkOffline { worker, cause: Loss::Uninstalled }.into(),
    }
}
