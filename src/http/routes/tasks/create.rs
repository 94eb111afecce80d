//! Tasks: create, one or many.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::RoutePolicy;
use crate::limits::body_memory::Room;
use crate::messages::answer::HandlerResult;
use crate::messages::error::Error;
use crate::messages::representations::{bytes_of, show_task};
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::error::ErrorText;
use bloom_api::new_tasks::{NewTask, NewTasks};
use bloom_api::task_fields::{self, MAX_WARNINGS};
use bloom_api::tasks::{CreatedTasks, Task};
use bloom_api::time_limit::keep_within;
use bloom_api::values::text_problem;
use bloom_core::api_key::Scope;
use bloom_core::op;
use bloom_core::reply::CreatedTask;
use bloom_core::task::TaskSpec;

const MAX_IDEMPOTENCY_KEY: usize = 255;

pub(crate) const CREATE: RoutePolicy = RoutePolicy::ADMIN.or_submit().begins_trace();

/// Creates a task.
///
/// The server answers after it has stored the task. The task is `queued`, and a worker that serves its `agent_slug` gets it as soon as
/// nothing keeps it from running. Unknown fields are ignored; `warnings` in the answer names them, and warns of an `agent_slug` that is
/// probably misspelt.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks", operation_id = "createTask", tag = "tasks", request_body = NewTask,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotency_key` in the body; if both are sent, the one in the body counts.", max_length = 255, example = "review-2026-02-25"),
        ("traceparent" = Option<String>, Header, description = "The caller's span, in the format of W3C Trace Context. It becomes the parent in the trace of the task. An invalid value is ignored.", example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")),
    responses(
        (status = 201, description = "Created, and queued.", body = Task),
        (status = 200, description = "The task that was created first with this idempotency key.", body = Task),
        (status = 409, description = "The idempotency key was used for another task, a quota is used up, or keys outside the team of a member key also have tasks in the context.", body = ErrorText),
    )
)]
pub(crate) async fn create(State(app): State<AppState>, caller: Caller, headers: HeaderMap, body: Content) -> HandlerResult {
    let task = body.read::<NewTask>()?;
    let spec = task.into_spec(idempotency_key(&headers)?);
    let (created, room) = submit(&app, &caller, vec![spec]).await?;
    let [task @ CreatedTask { spec, state, existed }] = &created[..] else {
        return Err(Error::Internal("one task was to be created".into()));
    };
    let mut shown = show_task(&app.engine, spec, state);
    shown.warnings = task_fields::warnings(body.raw()?);
    shown.warnings.extend(unknown_agent(&app, &caller, task));
    room.json(if *existed { StatusCode::OK } else { StatusCode::CREATED }, &shown)
}

pub(crate) const CREATE_BATCH: RoutePolicy = RoutePolicy::ADMIN.or_submit().begins_trace();

/// Creates many tasks, all of them or none.
///
/// At most 1000 tasks, in one commit. If one of them is not valid, none is created.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks:batch", operation_id = "createTasks", tag = "tasks", request_body = NewTasks,
    responses(
        (status = 201, description = "Created. If an idempotency key was used before, the first task with this key is returned in its place.", body = CreatedTasks),
        (status = 409, description = "An idempotency key was used for another task, a quota is used up, or keys outside the team of a member key also have tasks in a context.", body = ErrorText),
    )
)]
pub(crate) async fn create_batch(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    let specs = body.read::<NewTasks>()?.tasks.map(|task| task.into_spec(None));
    // The fields of a task, which the errors name, are nested in `tasks` here.
    let (created, room) = submit(&app, &caller, specs).await.map_err(|failure| failure.under("tasks"))?;
    let mut tasks: Vec<Task<'_>> = created.iter().map(|task| show_task(&app.engine, &task.spec, &task.state)).collect();
    // The answer has all tasks, even if there are fewer lists of warnings.
    for (task, warnings) in tasks.iter_mut().zip(task_fields::warnings_of_each(body.raw()?)) {
        task.warnings = warnings;
    }
    let mut agents = BTreeSet::new();
    for (task, created) in tasks.iter_mut().zip(&created) {
        if agents.len() < MAX_WARNINGS && agents.insert(&created.spec.agent_slug) {
            task.warnings.extend(unknown_agent(&app, &caller, created));
        }
    }
    room.json(StatusCode::CREATED, &CreatedTasks { tasks, existed: created.iter().filter(|task| task.existed).count() })
}

/// A warning if the agent of a new task is probably misspelt. A submit key may not see workers, so it gets no warning, which would reveal
/// the names of their agents.
fn unknown_agent(app: &AppState, caller: &Caller, created: &CreatedTask) -> Option<String> {
    let is_told = !created.existed && caller.scope != Scope::Submit;
    is_told.then(|| app.engine.replica.unknown_agent(&created.spec.agent_slug)).flatten()
}

/// Creates the tasks. Also returns the room for an answer that shows them.
async fn submit(app: &AppState, caller: &Caller, mut tasks: Vec<TaskSpec>) -> Result<(Vec<CreatedTask>, Room), Error> {
    tasks.iter_mut().try_for_each(|task| keep_within(task, app.settings.max_timeout_sec))?;
    let mut tasks = ownership::specs(app, caller, tasks).await?;
    tasks.iter_mut().for_each(|task| task.traceparent = caller.trace);
    let room = app.room(caller, bytes_of(&tasks))?;
    Ok((app.engine.writers.submit(caller.command(op::Create { tasks })).await?, room))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let Some(value) = headers.get("idempotency-key").filter(|value| !value.is_empty()) else { return Ok(None) };
    // Any bytes are accepted as a key. Bytes that are not UTF-8 are read as Latin-1.
    let bytes = value.as_bytes();
    let key = str::from_utf8(bytes).map_or_else(|_| bytes.iter().map(|byte| char::from(*byte)).collect(), str::to_owned);
    match text_problem(&key, 1, MAX_IDEMPOTENCY_KEY) {
        None => Ok(Some(key)),
        Some(wrong) => Err(Error::field("idempotency_key", wrong)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn the_idempotency_header() {
        let read = |value: &[u8]| {
            idempotency_key(&HeaderMap::from_iter([("idempotency-key".parse().unwrap(), HeaderValue::from_bytes(value).unwrap())]))
        };
        assert_eq!(read(b"").unwrap(), None);
        assert_eq!(read(b"one").unwrap().as_deref(), Some("one"));
        assert_eq!(read(b"\xe9").unwrap().as_deref(), Some("é"));
        assert_eq!(read(&[b'x'; 256]).unwrap_err().status(), 400);
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
    }
}
