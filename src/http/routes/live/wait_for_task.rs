//! Waiting for the end of a task.

use std::time::Duration;

use axum::extract::State;
use tokio::time::{Instant, timeout_at};

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::error::Error;
use crate::messages::path_ids::TaskPath;
use crate::messages::representations::{Query, show_task};
use crate::middleware::Caller;
use bloom_api::error::ErrorText;
use bloom_api::lists::{DEFAULT_WAIT_SEC, WaitParams};
use bloom_api::requests::MAX_WAIT_SEC;
use bloom_api::tasks::Task;

/// How often waiting requests read the database in case they missed a notification.
pub(crate) const POLL_EVERY: Duration = Duration::from_secs(5);

pub(crate) const WAIT: RoutePolicy = RoutePolicy::READ.waits().or_submit();

/// Waits for the end of a task.
///
/// Answers with the task as soon as it is finished, or with its current state after `timeout_sec` seconds. Call again until the status is
/// `completed`, `failed`, `dead` or `cancelled`.
#[utoipa::path(
    get, path = "/api/runtime/llm-tasks/{id}/wait", operation_id = "waitForTask", tag = "tasks",
    params(("id" = String, Path), WaitParams),
    responses(
        (status = 200, description = "The task, finished or not.", body = Task),
        (status = 404, description = "Task not found.", body = ErrorText),
    )
)]
pub(crate) async fn wait(State(app): State<AppState>, caller: Caller, path: TaskPath, Query(params): Query) -> HandlerResult {
    let id = path.id()?;
    let _permit = app.stream_limits.waits.take(&caller)?;
    let seconds = params.lenient("timeout_sec", DEFAULT_WAIT_SEC, 0..=MAX_WAIT_SEC);
    let end = Instant::now() + Duration::from_secs(seconds.unsigned_abs());
    let mut follower = app.hub.follow(id);
    loop {
        follower.mark_seen();
        let is_last_read = Instant::now() >= end || app.shutdown.is_cancelled();
        let row = app.store.task(id).await?.ok_or(Error::TASK_NOT_FOUND)?;
        if row.state.status.is_final() || is_last_read {
            return ok(&show_task(&app.engine, &row.spec, &row.state));
        }
        tokio::select! {
            _ = timeout_at(end.min(Instant::now() + POLL_EVERY), follower.changed()) => {}
            () = app.shutdown.cancelled() => {}
        }
    }
}
