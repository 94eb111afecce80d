//! Workers: list, show, register, remove, cordon, uncordon, drain.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::messages::answer::{HandlerResult, json, ok};
use crate::messages::error::Error;
use crate::messages::list_streaming;
use crate::messages::path_ids::{WorkerPath, is_dots};
use crate::messages::representations::{Query, show_lease, show_worker};
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::answers::{Removed, WorkerWithLeases};
use bloom_api::error::ErrorText;
use bloom_api::lists::{StatusParam, WorkerPageParams, invalid_cursor};
use bloom_api::requests::NewWorker;
use bloom_api::workers::Worker;
use bloom_core::Ms;
use bloom_core::audit::is_name_of_another_actor;
use bloom_core::command::{CordonChange, Op, Operation, WorkerChange};
use bloom_core::ids::{TaskId, WorkerId};
use bloom_core::limits;
use bloom_core::op;
use bloom_core::reply::ChangedWorker;
use bloom_core::worker::WorkerStatus;

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ.or_member();

/// Lists workers, the most recently registered first.
///
/// Workers stay in the list until they are removed, even while they are offline. A member key gets only the name and the state of a worker
/// and which tasks it serves; of the tasks that the worker holds, only those of the team count.
#[utoipa::path(
    get, path = "/api/runtime/workers", operation_id = "listWorkers", tag = "workers", params(WorkerPageParams, StatusParam<WorkerStatus>),
    responses((status = 200, description = "A page of workers.", body = Vec<Worker>))
)]
pub(crate) async fn list(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    let (limit, after) = (params.limit() as usize, params.get("cursor").map(cursor).transpose()?);
    let status = match params.get("status").map(WorkerStatus::parse) {
        Some(None) => return ok(&[(); 0]),
        status => status.flatten(),
    };
    let mut keys = app.store.worker_keys().await?;
    keys.retain(|key| status.is_none_or(|status| key.shown_status == status));
    keys.sort_by(|a, b| (Reverse(a.registered_at), &a.id).cmp(&(Reverse(b.registered_at), &b.id)));
    if let Some((at, id)) = after {
        keys.drain(..keys.partition_point(|key| (Reverse(key.registered_at), &key.id) <= (Reverse(at), &id)));
    }
    let has_more = keys.len() > limit;
    keys.truncate(limit);
    let next = keys.last().filter(|_| has_more);
    let next = next.map(|last| params.next_link("/api/runtime/workers", &format!("{}.{}", last.registered_at, last.id)));
    let sizes = keys.into_iter().map(|key| (key.id, key.bytes)).collect();
    let of_team = match caller.team() {
        Some(team) => Some(held_by_worker(&app, &team).await?),
        None => None,
    };
    let read = move |app: AppState, ids: Vec<WorkerId>| read(app, ids, of_team.clone());
    list_streaming::list(&app, caller.client, sizes, next, read).await
}

/// How many tasks of the team each worker holds.
async fn held_by_worker(app: &AppState, team: &str) -> Result<Arc<HashMap<WorkerId, i64>>, Error> {
    let mut held = HashMap::new();
    for open in app.store.open_of_team(team).await? {
        if let Some(worker) = open.worker {
            *held.entry(worker).or_default() += open.count;
        }
    }
    Ok(Arc::new(held))
}

/// The workers that exist, in this order; for a member key, each with the number of tasks of the key's team that it holds.
async fn read(app: AppState, ids: Vec<WorkerId>, of_team: Option<Arc<HashMap<WorkerId, i64>>>) -> Result<Vec<u8>, Error> {
    let workers: HashMap<_, _> = app.store.workers(&ids).await?.into_iter().map(|worker| (worker.id.clone(), worker)).collect();
    list_streaming::rows(ids.iter().filter_map(|id| workers.get(id)).map(|worker| {
        let shown = show_worker(&app.engine, worker);
        match &of_team {
            Some(held) => shown.for_member(held.get(&worker.id).copied().unwrap_or_default()),
            None => shown,
        }
    }))
}

/// A cursor: when the last worker of the page was registered, and its name.
fn cursor(text: &str) -> Result<(Ms, String), Error> {
    let parts = text.split_once('.').and_then(|(at, id)| Some((at.parse().ok()?, id.to_owned())));
    parts.ok_or_else(|| invalid_cursor().into())
}

pub(crate) const GET: RoutePolicy = RoutePolicy::READ.or_member();

/// Shows a worker and its active leases.
///
/// `active_leases` is the number of tasks that it holds now. A member key gets the same fields as in the list, and only the leases of its
/// team's tasks.
#[utoipa::path(
    get, path = "/api/runtime/workers/{id}", operation_id = "getWorker", tag = "workers", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The worker.", body = WorkerWithLeases),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn get(State(app): State<AppState>, caller: Caller, path: WorkerPath) -> HandlerResult {
    let store = &app.store;
    let worker = store.worker(&path.name()?).await?.ok_or(Error::WORKER_NOT_FOUND)?;
    let mut rows = store.leases_of(&worker.id).await?;
    let seen: HashSet<TaskId> =
        ownership::tasks(&app, &caller, rows.iter().map(|lease| lease.task_id).collect()).await?.into_iter().collect();
    rows.retain(|lease| seen.contains(&lease.task_id));
    // Counted from the same rows, so that the count and the list agree.
    let shown = Worker::new(&worker, rows.len() as i64);
    let shown = if caller.team().is_some() { shown.for_member(rows.len() as i64) } else { shown };
    ok(&WorkerWithLeases { worker: shown, leases: rows.iter().map(show_lease).collect() })
}

pub(crate) const REGISTER: RoutePolicy = RoutePolicy::WORKER.rate(Rate::General);

/// Registers a worker, or updates a registered one.
///
/// Absent fields keep their value, with the exceptions that the body describes. A registration counts as a heartbeat. If the agent sends
/// its `instance`, no other agent can register under the worker's name until this one is offline.
#[utoipa::path(
    post, path = "/api/runtime/workers", operation_id = "registerWorker", tag = "workers", request_body = NewWorker,
    responses(
        (status = 201, description = "Registered.", body = Worker),
        (status = 200, description = "The worker was registered before and is updated.", body = Worker),
        (status = 409, description = "An agent with another `instance` has the name and is not offline.", body = ErrorText),
    )
)]
pub(crate) async fn register(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    let mut change = WorkerChange::from(body.read::<NewWorker>()?);
    ownership::worker(&app, &caller, &change.id)?;
    ownership::url(&app, &caller, &change)?;
    ownership::namespaces(&app, &caller, &mut change)?;
    let wrong = match &change.id {
        name if is_dots(name) => Some("Must not be . or .., because no URL can name such a worker: choose another name"),
        name if is_name_of_another_actor(name) => Some(
            "Must not be api, admin, router or reconciler, or begin with key:, because the audit trail names others so: choose another name",
        ),
        _ => None,
    };
    // A worker with an invalid name is still accepted if it was registered before names were checked.
    if let Some(wrong) = wrong
        && app.store.worker(&change.id).await?.is_none()
    {
        return Err(Error::field("name", wrong));
    }
    let (agents, profiles) = (change.agents.as_ref().and_then(Option::as_ref), change.profiles.as_ref().and_then(Option::as_ref));
    for (field, names) in [("agents", agents), ("profiles", profiles), ("namespaces", change.namespaces.as_ref())] {
        if names.into_iter().flatten().map(String::len).sum::<usize>() > limits::WORKER_AGENTS_BYTES {
            let wrong = format!("{field}: Strings must have at most {} bytes together", limits::WORKER_AGENTS_BYTES);
            return Err(Error::field("capabilities", wrong));
        }
    }
    let of_pauses = change.pauses.iter().flatten().filter_map(|pause| pause.agents.as_ref());
    if of_pauses.flatten().map(String::len).sum::<usize>() > limits::WORKER_AGENTS_BYTES {
        return Err(Error::field("pauses", format!("agents: Strings must have at most {} bytes together", limits::WORKER_AGENTS_BYTES)));
    }
    // The number of workers is limited because every server keeps all of them in memory. Other servers may register a few more at this
    // moment, which does no harm.
    let (is_known, count) = app.engine.replica.knows_worker(&change.id);
    if !is_known && count >= limits::WORKERS {
        return Err(TOO_MANY_WORKERS);
    }
    worker_reply(&app, &caller, change).await
}

const TOO_MANY_WORKERS: Error =
    Error::fixed(409, "There are as many workers as this server takes (10,000): remove those that are gone, with bloom-runtime worker rm");

async fn worker_reply(app: &AppState, caller: &Caller, op: impl Operation<Reply = ChangedWorker> + Into<Op>) -> HandlerResult {
    let ChangedWorker { worker, created, active_leases } = app.engine.writers.submit(caller.command(op)).await?;
    json(if created { StatusCode::CREATED } else { StatusCode::OK }, &Worker::new(&worker, active_leases))
}

pub(crate) const REMOVE: RoutePolicy = RoutePolicy::ADMIN;

/// Removes a worker.
///
/// Its active leases end, and their tasks go back to the queue. If the control plane still lists the worker, the server adds it again when
/// it next reads that list.
#[utoipa::path(
    delete, path = "/api/runtime/workers/{id}", operation_id = "removeWorker", tag = "workers", params(("id" = String, Path)),
    responses(
        (status = 200, description = "Removed. A worker that the control plane still lists comes back.", body = Removed),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn remove(State(app): State<AppState>, caller: Caller, path: WorkerPath) -> HandlerResult {
    let id = path.name()?;
    app.engine.writers.submit(caller.command(op::RemoveWorker { worker: id.clone() })).await?;
    ok(&Removed { removed: true, id: id.into() })
}

pub(crate) const CORDON: RoutePolicy = RoutePolicy::ADMIN;

/// Cordons a worker.
///
/// It gets no new tasks and finishes those that it has. Repeating the call changes nothing.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/cordon", operation_id = "cordonWorker", tag = "workers", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The worker.", body = Worker),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn cordon(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    change_cordon(&app, &caller, path, &body, CordonChange::Cordon).await
}

pub(crate) const UNCORDON: RoutePolicy = RoutePolicy::ADMIN;

/// Uncordons a worker.
///
/// It gets tasks again, also after a drain. Repeating the call changes nothing.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/uncordon", operation_id = "uncordonWorker", tag = "workers", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The worker.", body = Worker),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn uncordon(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    change_cordon(&app, &caller, path, &body, CordonChange::Uncordon).await
}

pub(crate) const DRAIN: RoutePolicy = RoutePolicy::ADMIN;

/// Drains a worker.
///
/// It gets no new tasks, and its agent is asked to finish or hand back those that it has.
#[utoipa::path(
    post, path = "/api/runtime/workers/{id}/drain", operation_id = "drainWorker", tag = "workers", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The worker.", body = Worker),
        (status = 404, description = "Worker not found.", body = ErrorText),
    )
)]
pub(crate) async fn drain(State(app): State<AppState>, caller: Caller, path: WorkerPath, body: Content) -> HandlerResult {
    change_cordon(&app, &caller, path, &body, CordonChange::Drain).await
}

async fn change_cordon(app: &AppState, caller: &Caller, path: WorkerPath, body: &Content, change: CordonChange) -> HandlerResult {
    body.raw()?;
    worker_reply(app, caller, op::Cordon { worker: path.name()?, change }).await
}

#[cfg(test)]
mod tests {
    use super::cursor;

    #[test]
    fn a_cursor_names_a_time_and_a_worker() {
        assert_eq!(cursor("12.a.b").unwrap(), (12, "a.b".into()));
        assert!(cursor("a.b").is_err());
        assert!(cursor("12").is_err());
    }
}
