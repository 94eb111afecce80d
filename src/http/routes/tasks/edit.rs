//! What clients change in tasks that exist: they requeue, edit and delete them.

use axum::extract::State;
use axum::http::StatusCode;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::error::Error;
use crate::messages::path_ids::TaskPath;
use crate::messages::representations::{bytes_of, show_task};
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use crate::routes::tasks::lifecycle::show_reply;
use bloom_api::answers::Removed;
use bloom_api::edit::EditTask;
use bloom_api::error::ErrorText;
use bloom_api::requests::Requeue;
use bloom_api::tasks::Task;
use bloom_api::time_limit::{PolicyChange, must_be_allowed};
use bloom_core::op;
use bloom_core::task_limits::LimitChange;

pub(crate) const REQUEUE: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Queues a failed, dead or cancelled task again.
///
/// The task has all its attempts again. Earlier results are kept. With a body, the next runs get another time limit or another budget.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/requeue", operation_id = "requeueTask", tag = "tasks", params(("id" = String, Path)),
    request_body = Requeue,
    responses(
        (status = 200, description = "The task, queued.", body = Task),
        (status = 404, description = "Task not found.", body = ErrorText),
        (status = 409, description = "The task is not failed, dead or cancelled, a quota is used up, or keys outside the team of a member key also have tasks in its context.", body = ErrorText),
    )
)]
pub(crate) async fn requeue(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    let limits = allowed(&app, body.read::<Requeue>()?.policy.as_ref())?;
    let task = path.id()?;
    if let Some(spec) = app.engine.specs.by_id(&[task]).await?.first() {
        ownership::goes_on(&app, &caller, &spec.context_id).await?;
    }
    show_reply(&app, &caller, task, op::Requeue { task, limits }).await
}

pub(crate) const EDIT: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Edits a queued task.
///
/// Only its priority, its `not_before`, its labels, and the time limit and the budget of its runs can be changed. The body is a JSON merge
/// patch: absent fields stay as they are.
#[utoipa::path(
    patch, path = "/api/runtime/llm-tasks/{id}", operation_id = "editTask", tag = "tasks", params(("id" = String, Path)),
    request_body = EditTask,
    responses(
        (status = 200, description = "The task, as it is now.", body = Task),
        (status = 404, description = "Task not found.", body = ErrorText),
        (status = 409, description = "The task is not queued.", body = ErrorText),
    )
)]
pub(crate) async fn edit(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    let edit = body.read::<EditTask>()?;
    allowed(&app, edit.policy.as_ref())?;
    let id = path.id()?;
    let specs = app.engine.specs.by_id(&[id]).await?;
    let spec = specs.first().ok_or(Error::TASK_NOT_FOUND)?;
    let room = app.room(&caller, bytes_of([&**spec]))?;
    let state = app.engine.writers.submit(caller.command(edit.into_op(id, spec))).await?;
    room.json(StatusCode::OK, &show_task(&app.engine, spec, &state))
}

pub(crate) const DELETE: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Deletes a finished task.
///
/// Its leases, results and events are also removed. Its usage and its audit entries are kept. Tasks that still wait for it are cancelled.
#[utoipa::path(
    delete, path = "/api/runtime/llm-tasks/{id}", operation_id = "deleteTask", tag = "tasks", params(("id" = String, Path)),
    responses(
        (status = 200, description = "Removed.", body = Removed),
        (status = 404, description = "Task not found.", body = ErrorText),
        (status = 409, description = "The task is not finished: cancel it first.", body = ErrorText),
    )
)]
pub(crate) async fn delete(State(app): State<AppState>, caller: Caller, path: TaskPath) -> HandlerResult {
    let task = path.id()?;
    app.engine.writers.submit(caller.command(op::Delete { task })).await?;
    ok(&Removed { removed: true, id: task.to_string().into() })
}

/// The new limits, if the server allows them.
pub(crate) fn allowed(app: &AppState, policy: Option<&PolicyChange>) -> Result<LimitChange, Error> {
    let change = policy.map(LimitChange::from).unwrap_or_default();
    change.timeout_sec.map_or(Ok(()), |seconds| must_be_allowed(seconds, app.settings.max_timeout_sec))?;
    Ok(change)
}
