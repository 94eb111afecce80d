//! Calls on one task: lease, heartbeat, complete, release, cancel, requeue, suspend, resume, edit, delete.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::limits::body_memory::Room;
use crate::messages::answer::{HandlerResult, json};
use crate::messages::error::Error;
use crate::messages::error_precedence::Ask;
use crate::messages::path_ids::TaskPath;
use crate::messages::representations::{Projects, bytes_of, lease_to_run, projects_of, show_task, spec};
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use crate::routes::files::output_objects;
use crate::routes::projects::note_clone_for_run;
use bloom_api::answers::{Completed, Lease, Leased, Renewed};
use bloom_api::complete::{Completion, bytes_besides_output};
use bloom_api::error::ErrorText;
use bloom_api::requests::{Heartbeat, NewLease, Release};
use bloom_api::results::{Artifact, TaskResult};
use bloom_api::tasks::Task;
use bloom_api::wire::Wire;
use bloom_api::workers::Worker;
use bloom_core::api_key::Scope;
use bloom_core::command::{Holder, Op, Operation};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::reply::{self, StoredResult};
use bloom_core::run_result::RunResult;
use bloom_core::task::{TaskSpec, TaskState};
use bloom_engine::Engine;

pub(crate) const LEASE: RoutePolicy = RoutePolicy::ADMIN;

/// Leases the task to a worker.
///
/// For programs that run single tasks themselves. Without `worker_id`, the server chooses among the workers that are online, serve the
/// task's `agent_slug` and have a free slot. The lease counts as an attempt.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/lease", operation_id = "leaseTask", tag = "leases",
    params(("id" = String, Path)), request_body = NewLease,
    responses(
        (status = 201, description = "Leased.", body = Leased),
        (status = 404, description = "The task or the worker does not exist.", body = ErrorText),
        (status = 409, description = "The task is not queued, or not ready.", body = ErrorText),
        (status = 503, description = "No available worker with free capacity.", body = ErrorText),
    )
)]
pub(crate) async fn lease(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    let raw = body.raw()?;
    let request = match NewLease::read(raw) {
        Ok(request) => request,
        Err(wrong) => return Err(app.most_important_error(&path, Ask::Lease, raw, wrong.into()).await),
    };
    let ttl_ms = request.ttl_seconds.map_or(app.settings.lease_ttl_ms, |seconds| seconds.0 * 1000);
    let worker = request.worker_id.map(|id| id.0);
    let reply = app.engine.lease(path.id()?, worker, ttl_ms, caller.requester()).await?;
    // The lease exists by now. If the spec can't be read, the lease is returned without its details, because the caller can run the task
    // anyway.
    let spec = spec(&app.engine, &reply.task).await.ok();
    let projects = projects_of(&app.store, spec.as_deref()).await.ok();
    let lease = match spec.as_ref().zip(projects.as_ref()) {
        // A caller that leases a task by this call has no profiles.
        Some((spec, projects)) => Lease { profile_timeout_max: None, ..to_run(&app.engine, spec, &reply.task, projects)? },
        None => active(&reply.task)?,
    };
    json(StatusCode::CREATED, &Leased { lease, worker: Worker::new(&reply.worker, reply.active_leases) })
}

pub(crate) const HEARTBEAT: RoutePolicy = RoutePolicy::WORKER.rate(Rate::General);

/// Renews the lease of a task.
///
/// The lease now lasts for its `ttl_seconds` from this call on, and a `leased` task becomes `running`. A worker with many tasks can renew
/// all its leases in one call, `workers/{id}/heartbeat`.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/heartbeat", operation_id = "heartbeatTask", tag = "leases",
    params(("id" = String, Path)), request_body = Heartbeat,
    responses(
        (status = 200, description = "The lease, renewed; with `with_task`, also its task.", body = Renewed),
        (status = 404, description = "The task does not exist, or has no active lease.", body = ErrorText),
        (status = 409, description = "Another lease holds the task.", body = ErrorText),
    )
)]
pub(crate) async fn heartbeat(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    let raw = body.raw()?;
    let read = Heartbeat::read(raw).map_err(Error::from).and_then(|heartbeat| {
        let holder = Holder { lease: heartbeat.lease_id.map(|id| id.0), worker: heartbeat.worker_id.map(|id| id.0) };
        Ok((named(&caller, holder)?, heartbeat.with_task))
    });
    let (holder, with_task) = match read {
        Ok(read) => read,
        Err(wrong) => return Err(app.most_important_error(&path, Ask::Heartbeat, raw, wrong).await),
    };
    let holder = ownership::holder(&app, &caller, path.known(), holder).await?;
    let task = path.known().ok_or(Error::fixed(404, "Task or lease not found"))?;
    let (room, known) = if with_task { room_for(&app, &caller, task, 0).await? } else { (app.room(&caller, 0)?, None) };
    let task = app.engine.writers.submit(caller.command(op::Heartbeat { task, holder })).await?;
    let lease = active(&task)?;
    app.engine.last_seen.record(&lease.worker_id, None);
    let expires_at = lease.expires_at;
    let spec = if with_task { Some(spec_of(&app, known, &task).await?) } else { None };
    let projects = projects_of(&app.store, spec.as_deref()).await?;
    let lease = match &spec {
        Some(spec) => to_run(&app.engine, spec, &task, &projects)?,
        None => lease,
    };
    room.json(StatusCode::OK, &Renewed { lease, expires_at, task: spec.as_deref().map(|spec| show_task(&app.engine, spec, &task)) })
}

/// The worker key of the environment is not bound to a worker, so a call with it must name the lease or the worker that it means.
fn named(caller: &Caller, holder: Holder) -> Result<Holder, Error> {
    if caller.scope == Scope::Worker && caller.worker().is_none() && holder == Holder::default() {
        return Err(Error::field("lease_id", "Required with a worker key, unless worker_id is given"));
    }
    Ok(holder)
}

pub(crate) const COMPLETE: RoutePolicy = RoutePolicy::WORKER.rate(Rate::General).takes_outputs();

/// Completes a task.
///
/// Stores the result and the artifact, and ends the lease. After a success, the task is `completed`. After an error, it is `failed`; with
/// `retryable`, it returns to the queue instead, as long as attempts remain and `policy.budget` is not spent. If the lease has expired and
/// the task has another lease or has ended, the call is refused, but the `usage` of the run is added, once, to that of the task.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/complete", operation_id = "completeTask", tag = "leases",
    params(("id" = String, Path)), request_body = Completion,
    responses(
        (status = 200, description = "The stored completion; for a repeated call, the one that was stored first.", body = Completed),
        (status = 404, description = "Task not found.", body = ErrorText),
        (status = 409, description = "The task is not leased or running, or another lease holds it.", body = ErrorText),
    )
)]
pub(crate) async fn complete(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    let raw = body.raw()?;
    let limit = app.settings.usual_body();
    if bytes_besides_output(raw) > limit.bytes {
        return Err(limit.error());
    }
    let read = Completion::read(raw).map_err(Error::from).and_then(|completion| {
        named(&caller, completion.holder())?;
        Ok(completion)
    });
    let completion = match read {
        Ok(completion) => completion,
        Err(wrong) => return Err(app.most_important_error(&path, Ask::Complete, raw, wrong).await),
    };
    if completion.output_bytes() > app.settings.max_output_bytes {
        return Err(output_too_long(&app));
    }
    let holder = ownership::holder(&app, &caller, path.known(), completion.holder()).await?;
    let id = path.id()?;
    let (room, known) = room_for(&app, &caller, id, bytes_of_result(completion.output_bytes())).await?;
    let mut command = completion.into_command(id, holder);
    let written = output_objects::write(&app, &mut command, output_objects::deadline(&app)).await;
    let reply::Completed { task, result } = app.engine.writers.submit(caller.command(command)).await?;
    completed(&app, &caller, &task, result, Prepared { room, known, written }).await
}

/// The answer contains the output twice, in the result and in the artifact.
const fn bytes_of_result(output: usize) -> usize {
    output.saturating_mul(2)
}

pub(crate) fn output_too_long(app: &AppState) -> Error {
    let limit = app.settings.max_output_bytes;
    Error::Text {
        status: 413,
        text: format!("The output is too large: at most {limit} bytes are taken (the server's limit: MAX_OUTPUT_BYTES)").into(),
    }
}

/// What was prepared before the command of a completion.
struct Prepared {
    room: Room,
    known: Option<Arc<TaskSpec>>,
    /// The output, if it was written to the object store.
    written: Option<String>,
}

async fn completed(
    app: &AppState,
    caller: &Caller,
    task: &TaskState,
    result: StoredResult,
    Prepared { mut room, known, written }: Prepared,
) -> HandlerResult {
    let (now, before);
    let result = match result {
        StoredResult::Now(result) => {
            app.engine.last_seen.record(&result.worker_id, None);
            note_clone_for_run(app, caller, task, &result);
            now = match written {
                Some(output) => Arc::new(RunResult { output: Some(output), ..(*result).clone() }),
                None => result,
            };
            &*now
        }
        StoredResult::UsageOnly(refusal) => return Err(refusal.into()),
        StoredResult::Before(lease) => {
            let stored = app.store.result_of_lease(lease).await?;
            let stored = stored.ok_or_else(|| Error::Internal(format!("lease {lease} is completed but has no result")))?;
            // This call has changed nothing, so it may be refused now.
            drop(room);
            (room, _) = room_for(app, caller, task.id, bytes_of_result(stored.output_bytes())).await?;
            // The worker only needs to know that the result is stored, so an object store that is down must not delay the answer.
            before = output_objects::whole_or_not(app, vec![stored]).await;
            before.first().ok_or_else(|| Error::Internal(format!("the result of lease {lease} is lost")))?
        }
    };
    let spec = spec_of(app, known, task).await?;
    room.json(
        StatusCode::OK,
        &Completed { task: show_task(&app.engine, &spec, task), artifact: Artifact::from(result), result: TaskResult::from(result) },
    )
}

pub(crate) const RELEASE: RoutePolicy = RoutePolicy::WORKER;

/// Hands a task back to the queue.
///
/// For a worker that can't finish the run. The lease ends, and the attempt does not count. A task can be handed back at most 20 times.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/release", operation_id = "releaseTask", tag = "leases",
    params(("id" = String, Path)), request_body = Release,
    responses(
        (status = 200, description = "The task, back in the queue.", body = Task),
        (status = 404, description = "The task does not exist, or has no active lease.", body = ErrorText),
        (status = 409, description = "Another lease holds the task.", body = ErrorText),
    )
)]
pub(crate) async fn release(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    let raw = body.raw()?;
    let release = match Release::read(raw) {
        Ok(release) => release,
        Err(wrong) => return Err(app.most_important_error(&path, Ask::Release, raw, wrong.into()).await),
    };
    ownership::lease(&app, &caller, path.known(), release.lease_id.0).await?;
    let task = path.id()?;
    show_reply(&app, &caller, task, op::Release { task, lease: release.lease_id.0, reason: release.reason.0 }).await
}

pub(crate) const CANCEL: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Cancels a task.
///
/// A queued task is cancelled at once. A leased or running one is cancelled when its worker has ended the run; if the run reports a success
/// before that, the task is `completed`. Repeating the call changes nothing.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/cancel", operation_id = "cancelTask", tag = "tasks", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The task.", body = Task),
        (status = 404, description = "Task not found.", body = ErrorText),
        (status = 409, description = "The task is finished.", body = ErrorText),
    )
)]
pub(crate) async fn cancel(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    body.raw()?;
    let task = path.id()?;
    show_reply(&app, &caller, task, op::Cancel { task }).await
}

pub(crate) const SUSPEND: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Suspends a task.
///
/// While the task is queued, no worker gets it until it is resumed; later tasks of its context wait behind it. A leased or running task
/// goes on; if it returns to the queue, it is suspended there. Repeating the call changes nothing.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/suspend", operation_id = "suspendTask", tag = "tasks", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The task, suspended.", body = Task),
        (status = 404, description = "Task not found.", body = ErrorText),
        (status = 409, description = "The task is finished.", body = ErrorText),
    )
)]
pub(crate) async fn suspend(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    body.raw()?;
    let task = path.id()?;
    show_reply(&app, &caller, task, op::Suspend { task, suspend: true }).await
}

pub(crate) const RESUME: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Resumes a suspended task.
///
/// A worker gets the task as soon as nothing else keeps it from running. Repeating the call changes nothing.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/resume", operation_id = "resumeTask", tag = "tasks", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The task, resumed.", body = Task),
        (status = 404, description = "Task not found.", body = ErrorText),
        (status = 409, description = "The task is finished.", body = ErrorText),
    )
)]
pub(crate) async fn resume(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    body.raw()?;
    let task = path.id()?;
    show_reply(&app, &caller, task, op::Suspend { task, suspend: false }).await
}

pub(crate) async fn show_reply(
    app: &AppState,
    caller: &Caller,
    task: TaskId,
    op: impl Operation<Reply = TaskState> + Into<Op>,
) -> HandlerResult {
    let (room, known) = room_for(app, caller, task, 0).await?;
    let state = app.engine.writers.submit(caller.command(op)).await?;
    let spec = spec_of(app, known, &state).await?;
    room.json(StatusCode::OK, &show_task(&app.engine, &spec, &state))
}

/// Reserves room for an answer with the task and this many more bytes. Also returns the spec of the task, if it exists; the command refuses
/// a task that does not.
async fn room_for(app: &AppState, caller: &Caller, task: TaskId, more: usize) -> Result<(Room, Option<Arc<TaskSpec>>), Error> {
    let mut specs = app.engine.specs.by_id(&[task]).await?;
    let room = app.room(caller, bytes_of(specs.iter().map(|spec| &**spec)).saturating_add(more))?;
    Ok((room, specs.pop()))
}

/// The spec that was read before the command, if it was. The task may be removed right after the command, and the answer must be sent
/// anyway.
async fn spec_of(app: &AppState, known: Option<Arc<TaskSpec>>, task: &TaskState) -> Result<Arc<TaskSpec>, Error> {
    match known {
        Some(known) => Ok(known),
        None => spec(&app.engine, task).await,
    }
}

/// The lease that was just made or renewed.
fn active(task: &TaskState) -> Result<Lease<'_>, Error> {
    Lease::active(task).ok_or_else(|| without_lease(task))
}

/// The same lease, as the worker that is to run the task gets it.
fn to_run<'a>(engine: &Engine, spec: &'a TaskSpec, task: &'a TaskState, projects: &'a Projects) -> Result<Lease<'a>, Error> {
    lease_to_run(engine, spec, task, projects).ok_or_else(|| without_lease(task))
}

fn without_lease(task: &TaskState) -> Error {
    Error::Internal(format!("task {} has no lease", task.id))
}
