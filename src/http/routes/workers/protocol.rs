//! Calls of a worker about all of its leases (claim, heartbeat, events, complete) and about the contexts that it keeps.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use tokio::time::{Instant, sleep};

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::limits::body_memory::ROOM_EVERY;
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::error::Error;
use crate::messages::path_ids::WorkerPath;
use crate::messages::representations::{Projects, bytes_of, directives, lease_to_run, projects_of, show_task};
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use crate::routes::files::output_objects;
use crate::routes::projects::note_clone_for_run;
use crate::routes::tasks::lifecycle::output_too_long;
use bloom_api::answers::{Claimed, ClaimedLease, GoneContexts, RenewedLeases, RunResult, RunResults};
use bloom_api::complete::{Completion, NewCompletions, WorkerCompletion};
use bloom_api::error::ErrorText;
use bloom_api::requests::{Claim, RunEvents, WorkerContexts, WorkerEvents, WorkerHeartbeat};
use bloom_api::wire::Wire;
use bloom_core::command::{Holder, NewEvent};
use bloom_core::ids::{TaskId, WorkerId};
use bloom_core::op;
use bloom_core::reply::{self, StoredResult};
use bloom_core::task::{TaskSpec, TaskState};
use bloom_engine::ClaimRequest;

/// How much longer than the write timeout a delivery waits. By then, clients that do not read are disconnected.
const DELIVERY_SLACK: Duration = Duration::from_secs(1);

pub(crate) const CLAIM: RoutePolicy = RoutePolicy::WORKER.waits();

/// Claims tasks.
///
/// Answers as soon as there is work for this worker, or with no leases after `wait_sec` seconds. A worker gets tasks only while such a call
/// is open. Active leases that are not in `held` are delivered again.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/claim", operation_id = "claimTasks", tag = "worker protocol",
    params(("id" = String, Path)), request_body = Claim,
    responses(
        (status = 200, description = "Leases with their tasks; possibly none.", body = Claimed),
        (status = 404, description = "Worker not found.", body = ErrorText),
        (status = 409, description = "Another agent than `instance` works under the name.", body = ErrorText),
    )
)]
pub(crate) async fn claim(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    let claim = body.read::<Claim>()?;
    let worker = path.name()?;
    let _permit = if claim.wait_sec.0 > 0 { Some(app.stream_limits.claims.take(&caller)?) } else { None };
    let is_repeatable = claim.held.is_some();
    let accounts = claim.accounts.texts();
    let request = ClaimRequest {
        worker: worker.clone(),
        max: claim.max.0,
        wait_ms: claim.wait_sec.0 * 1000,
        held: claim.held.map(|held| held.map(|id| id.0)),
        instance: claim.instance.map(|id| id.0),
        ttl_ms: app.settings.lease_ttl_ms,
        by: caller.requester(),
    };
    let leased = tokio::select! {
        biased;
        leased = app.engine.claims.claim(request) => leased?,
        // A lease that is made at this moment is not lost. It is missing in `held` of the next claim, which delivers it again.
        () = app.shutdown.cancelled() => Vec::new(),
    };
    let claimer = Claimer { worker, accounts, is_repeatable };
    deliver(&app, &caller, &claimer, leased).await
}

/// The caller of a claim.
struct Claimer {
    worker: WorkerId,
    accounts: Vec<String>,
    /// Whether the claim says which leases the worker holds.
    is_repeatable: bool,
}

/// Answers with the leases. They exist by now, so the answer is not refused. If large answers have taken all the room, this waits until
/// clients have read their answers or are disconnected because they do not; it keeps no tasks in memory meanwhile. If there is no room even
/// then, because clients read slowly, the next claim delivers the leases again. A claim that does not say which leases the worker holds
/// could not be repeated in this way, so it is answered anyway.
async fn deliver(app: &AppState, caller: &Caller, claimer: &Claimer, leased: Vec<TaskState>) -> HandlerResult {
    let until = Instant::now() + app.settings.write_timeout + DELIVERY_SLACK;
    let mut specs = specs_of(app, &leased).await?;
    let bytes = bytes_of(specs.iter().map(|spec| &**spec));
    let projects = projects_of(&app.store, specs.iter().map(|spec| &**spec)).await?;
    loop {
        if let Ok(room) = app.room(caller, bytes) {
            if specs.len() < leased.len() {
                specs = specs_of(app, &leased).await?;
            }
            return room.json(StatusCode::OK, &claimed(app, claimer, &leased, &specs, &projects));
        }
        if Instant::now() >= until {
            let delivered = if claimer.is_repeatable { Vec::new() } else { leased };
            return ok(&claimed(app, claimer, &delivered, &specs_of(app, &delivered).await?, &projects));
        }
        specs.clear();
        sleep(ROOM_EVERY).await;
    }
}

async fn specs_of(app: &AppState, leased: &[TaskState]) -> Result<Vec<Arc<TaskSpec>>, Error> {
    let ids: Vec<_> = leased.iter().map(|task| task.id).collect();
    Ok(if ids.is_empty() { Vec::new() } else { app.engine.specs.by_id(&ids).await? })
}

fn claimed<'a>(
    app: &AppState,
    claimer: &Claimer,
    leased: &'a [TaskState],
    specs: &'a [Arc<TaskSpec>],
    projects: &'a Projects,
) -> Claimed<'a> {
    let leases = leased.iter().filter_map(|state| {
        let spec = specs.iter().find(|spec| spec.id == state.id)?;
        Some(ClaimedLease { lease: lease_to_run(&app.engine, spec, state, projects)?, task: show_task(&app.engine, spec, state) })
    });
    Claimed { leases: leases.collect(), directives: directives(&app.engine, &claimer.worker, &claimer.accounts) }
}

pub(crate) const HEARTBEAT: RoutePolicy = RoutePolicy::WORKER;

/// Renews leases of a worker.
///
/// Renews all its leases in one call. The answer also names the leases that the worker has lost and the runs that it must end.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/heartbeat", operation_id = "heartbeatWorker", tag = "worker protocol",
    params(("id" = String, Path)), request_body = WorkerHeartbeat,
    responses(
        (status = 200, description = "Which leases were renewed, and which are lost.", body = RenewedLeases),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn heartbeat(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    let WorkerHeartbeat { leases, instance, accounts } = body.read()?;
    let worker = path.name()?;
    let op = op::RenewLeases { worker: worker.clone(), leases: leases.map(|id| id.0) };
    let reply::RenewedLeases { renewed, lost, cancel, cancel_leases, answered } = app.engine.writers.submit(caller.command(op)).await?;
    if renewed.is_empty() {
        must_be_known(&app, &worker).await?;
    }
    app.engine.last_seen.record(&worker, instance.map(|id| id.0));
    let mut directives = directives(&app.engine, &worker, &accounts.texts());
    // The database has every requested cancel and every answer; the cache of this replica may not have it yet.
    let found = [(&mut directives.cancel, cancel), (&mut directives.cancel_leases, cancel_leases), (&mut directives.answered, answered)];
    for (known, found) in found {
        known.extend(found);
        known.sort_unstable();
        known.dedup();
    }
    ok(&RenewedLeases { renewed, lost, directives })
}

/// Called only if the request named no existing lease of the worker, because a worker with a lease exists.
async fn must_be_known(app: &AppState, worker: &str) -> Result<(), Error> {
    if app.store.worker(worker).await?.is_some() { Ok(()) } else { Err(Error::WORKER_NOT_FOUND) }
}

pub(crate) const COMPLETE: RoutePolicy = RoutePolicy::WORKER.takes_outputs();

/// Completes many tasks.
///
/// Each completion is accepted or refused on its own, and all are stored in one commit. `results` has one entry per completion, in the same
/// order.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/complete", operation_id = "completeTasks", tag = "worker protocol",
    params(("id" = String, Path)), request_body = NewCompletions,
    responses(
        (status = 200, description = "The outcome of each completion.", body = RunResults),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn complete(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    let completions = NewCompletions::read(body.raw()?)?.completions;
    let worker = path.name()?;
    let mut results = Vec::with_capacity(completions.0.len());
    let mut commands = Vec::with_capacity(completions.0.len());
    let mut positions = Vec::with_capacity(completions.0.len());
    let until = output_objects::deadline(&app);
    let sent = completions.0.iter().filter_map(|sent| sent.completion.as_ref().ok()).map(|(task, ..)| *task);
    let seen: HashSet<TaskId> = ownership::tasks(&app, &caller, sent.collect()).await?.into_iter().collect();
    for WorkerCompletion { task_id, completion } in completions.0 {
        let read = completion.map_err(Error::from).and_then(|(task, lease, completion)| {
            let holder = Holder { lease: Some(lease), worker: Some(worker.clone()) };
            checked(&app, completion).map(|completion| completion.into_command(task, holder))
        });
        let (status, error, code) = match read {
            Ok(command) if !seen.contains(&command.task) => {
                let failure = Error::TASK_NOT_FOUND;
                (failure.status(), Some(failure.line()), Some(failure.code().into()))
            }
            Ok(mut command) => {
                output_objects::write(&app, &mut command, until).await;
                positions.push(results.len());
                commands.push(caller.command(command));
                (200, None, None)
            }
            Err(failure) => (400, Some(failure.line()), Some(failure.code().into())),
        };
        results.push(RunResult { task_id, status, error, code });
    }
    let mut is_holder = false;
    for (position, outcome) in positions.into_iter().zip(app.engine.writers.submit_all(commands).await) {
        let outcome = outcome.and_then(|reply::Completed { task, result }| match result {
            StoredResult::UsageOnly(refusal) => Err(refusal.into()),
            StoredResult::Now(result) => {
                note_clone_for_run(&app, &caller, &task, &result);
                Ok(true)
            }
            StoredResult::Before(_) => Ok(false),
        });
        match outcome {
            Ok(is_now) => is_holder |= is_now,
            Err(error) => {
                let failure = Error::from(error);
                // The outcome is unknown, so the whole call fails. A call that is repeated stores nothing twice.
                if failure.status() >= 500 {
                    return Err(failure);
                }
                refuse(&mut results[position], &failure);
            }
        }
    }
    if is_holder {
        app.engine.last_seen.record(&worker, None);
    }
    answer(&app, &worker, results).await
}

/// Records in the result why the data of a run was not stored.
fn refuse(result: &mut RunResult, failure: &Error) {
    result.status = failure.status();
    result.error = Some(failure.line());
    result.code = Some(failure.code().into());
}

async fn answer(app: &AppState, worker: &str, results: Vec<RunResult>) -> HandlerResult {
    if results.iter().all(|result| result.status != 200) {
        must_be_known(app, worker).await?;
    }
    ok(&RunResults { results })
}

pub(crate) const EVENTS: RoutePolicy = RoutePolicy::WORKER.rate(Rate::Events);

/// Records events of many runs of a worker.
///
/// Records the events of each run as `POST llm-tasks/{id}/events` does, all in one commit if they fit into one. `results` has one entry per
/// run, in the same order. If the status of a run is 500 or more, send its events again; events that are already stored are not stored
/// twice.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/events", operation_id = "sendWorkerEvents", tag = "worker protocol",
    params(("id" = String, Path)), request_body = WorkerEvents,
    responses(
        (status = 200, description = "The outcome for each run.", body = RunResults),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn events(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    let WorkerEvents { runs } = body.read()?;
    let worker = path.name()?;
    let mut results: Vec<_> =
        runs.0.iter().map(|run| RunResult { task_id: Some(run.task_id.0.to_string()), status: 200, error: None, code: None }).collect();
    let sent = runs.0.iter().map(|run| run.task_id.0).collect();
    let seen: HashSet<TaskId> = ownership::tasks(&app, &caller, sent).await?.into_iter().collect();
    let (mut commands, mut positions) = (Vec::new(), Vec::new());
    for (position, RunEvents { task_id, lease_id, events }) in runs.0.into_iter().enumerate() {
        if !seen.contains(&task_id.0) {
            refuse(&mut results[position], &Error::TASK_NOT_FOUND);
            continue;
        }
        let op = op::AppendEvents { task: task_id.0, lease: lease_id.0, worker: Some(worker.clone()), events: events.map(NewEvent::from) };
        commands.push(caller.command(op));
        positions.push(position);
    }
    let mut last_failure = None;
    for (position, outcome) in positions.into_iter().zip(app.engine.writers.submit_all(commands).await) {
        if let Err(error) = outcome {
            let failure = Error::from(error);
            refuse(&mut results[position], &failure);
            last_failure = Some(failure);
        }
    }
    // If the events of one run can't be stored now, those of the others are stored anyway. If none can be stored, the database has failed.
    if let Some(failure) = last_failure.filter(|_| results.iter().all(|result| result.status >= 500)) {
        return Err(failure);
    }
    answer(&app, &worker, results).await
}

pub(crate) const CONTEXTS: RoutePolicy = RoutePolicy::WORKER;

/// Finds the contexts that no longer have tasks.
///
/// A context is gone when all its tasks were deleted or were removed after their retention. The agent can then delete what it keeps for the
/// context. If a task is created in the context later, the context begins anew.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/contexts", operation_id = "findGoneContexts", tag = "worker protocol",
    params(("id" = String, Path)), request_body = WorkerContexts,
    responses(
        (status = 200, description = "Those of the contexts that are gone.", body = GoneContexts),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn contexts(State(app): State<AppState>, path: WorkerPath, body: Content) -> HandlerResult {
    let WorkerContexts { context_ids } = body.read()?;
    must_be_known(&app, &path.name()?).await?;
    ok(&GoneContexts { gone: app.store.contexts_without_tasks(&context_ids.texts()).await? })
}

fn checked(app: &AppState, completion: Completion) -> Result<Completion, Error> {
    if completion.output_bytes() > app.settings.max_output_bytes { Err(output_too_long(app)) } else { Ok(completion) }
}
