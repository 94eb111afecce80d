//! Bulk calls: cancel or requeue many tasks.

use axum::extract::State;

use super::AppState;
use super::answer::{HandlerResult, ok};
use super::body::Content;
use super::error::Error;
use super::middleware::Caller;
use super::own;
use super::policy::Policy;
use super::tasks::filter_of_body;
use bloom_api::answers::BulkResult;
use bloom_api::bulk::{Bulk, Named};
use bloom_api::tasks::MAX_BATCH;
use bloom_core::command::Op;
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::{Status, TaskState};
use bloom_engine as engine;
use bloom_store::{Page, TaskFilter};

pub const CANCEL: Policy = Policy::ADMIN.or_submit();

/// Cancels many tasks.
///
/// Tasks are named by their ids or by a filter, at most 1000 a call; if `more` is true, call again. Finished tasks do not count. With
/// `dry_run`, the call only counts.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks:cancel", operation_id = "cancelTasks", tag = "tasks", request_body = Bulk,
    responses((status = 200, description = "The outcome.", body = BulkResult))
)]
pub async fn cancel(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    const LIVE: [Status; 3] = [Status::Queued, Status::Leased, Status::Running];
    apply(&app, &caller, body.read()?, &LIVE, |task| op::Cancel { task }.into()).await
}

pub const REQUEUE: Policy = Policy::ADMIN.or_submit();

/// Queues many failed, dead or cancelled tasks again.
///
/// Tasks are named by their ids or by a filter, at most 1000 a call; if `more` is true, call again. Tasks in other states do not count.
/// With `dry_run`, the call only counts.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks:requeue", operation_id = "requeueTasks", tag = "tasks", request_body = Bulk,
    responses((status = 200, description = "The outcome.", body = BulkResult))
)]
pub async fn requeue(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    const OVER: [Status; 3] = [Status::Failed, Status::Dead, Status::Cancelled];
    apply(&app, &caller, body.read()?, &OVER, |task| op::Requeue { task }.into()).await
}

/// Only tasks in one of `statuses` count, so a client that repeats the call while there are more comes to an end.
async fn apply(app: &AppState, caller: &Caller, bulk: Bulk, statuses: &[Status], op: fn(TaskId) -> Op) -> HandlerResult {
    let (ids, more) = match bulk.named {
        Named::Ids(ids) => (own::tasks(app, caller, ids).await?, false),
        Named::Filter(filter) => match filter_of_body(&filter) {
            Some(filter) => named_by(app, own::filter(caller, filter), statuses).await?,
            None => (Vec::new(), false),
        },
    };
    let fits = |task: &TaskState| statuses.contains(&task.status) && !(task.status.is_active() && task.cancel_requested);
    let mut states = app.store.task_states(&ids).await?;
    states.retain(fits);
    states.sort_by_key(|task| task.id);
    states.dedup_by_key(|task| task.id);
    let matched = states.len() as i64;
    if bulk.dry_run {
        return ok(&BulkResult { matched, changed: 0, more });
    }
    let commands = states.iter().map(|task| caller.command(op(task.id))).collect();
    let mut changed = 0;
    for outcome in app.engine.writers.submit_all(commands).await {
        match outcome {
            Ok(_) => changed += 1,
            // The task changed meanwhile, so the operation no longer applies.
            Err(engine::Error::Rejected(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    ok(&BulkResult { matched, changed, more })
}

/// The matching tasks, up to the limit of one call, and whether there are more.
async fn named_by(app: &AppState, filter: TaskFilter, statuses: &[Status]) -> Result<(Vec<TaskId>, bool), Error> {
    let mut ids = Vec::new();
    for status in statuses.iter().filter(|status| filter.status.is_none_or(|wanted| wanted == **status)) {
        let filter = TaskFilter { status: Some(*status), ..filter.clone() };
        // One row more shows whether there are more.
        let limit = (MAX_BATCH + 1 - ids.len()) as i64;
        ids.extend(app.store.task_ids(&filter, &Page { limit, before: None }).await?);
        if ids.len() > MAX_BATCH {
            ids.truncate(MAX_BATCH);
            return Ok((ids, true));
        }
    }
    Ok((ids, false))
}
