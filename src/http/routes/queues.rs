//! Queues of agents: list, pause, resume, limit.

use std::collections::BTreeMap;

use axum::extract::State;

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok, page};
use crate::messages::error::Error;
use crate::messages::path_ids::QueuePath;
use crate::messages::representations::Query;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::error::ErrorText;
use bloom_api::lists::{QueuePageParams, invalid_cursor};
use bloom_api::queues::{NewQueueLimit, Queue};
use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue};
use bloom_core::command::QueueChange;
use bloom_core::op;
use bloom_engine::AgentTasks;

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ.or_member();

/// Lists queues by agent.
///
/// The first row is for all queues together. The others are the queues that are paused or limited, or that have queued or active tasks. The
/// header `Link` leads to the next page. With a member key, only its team's tasks are counted.
#[utoipa::path(
    get, path = "/api/runtime/queues", operation_id = "listQueues", tag = "queues", params(QueuePageParams),
    responses((status = 200, description = "A page of queues.", body = Vec<Queue>))
)]
pub(crate) async fn list(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    let (limit, after) = (params.limit() as usize, params.text("cursor")?.map(|text| cursor(&text)).transpose()?);
    let tasks = match caller.team() {
        Some(team) => of_team(&app, &team).await?,
        None => app.engine.replica.tasks_by_agent(),
    };
    let set = app.store.queues().await?;
    let mut queues: BTreeMap<String, AgentQueue> = tasks.keys().map(|agent| (agent.clone(), AgentQueue::new(agent.clone()))).collect();
    queues.extend(set.into_iter().map(|queue| (queue.agent_slug.clone(), queue)));
    // All queues together have the empty name, so they come first.
    let rest = queues.values().filter(|queue| after.as_ref().is_none_or(|after| queue.agent_slug > *after));
    let rows: Vec<Queue<'_>> = rest.take(limit + 1).map(|queue| show(&app, queue, &tasks)).collect();
    let (shown, more) = rows.split_at(rows.len().min(limit));
    let last = shown.last().filter(|_| !more.is_empty());
    let next = last.map(|last| params.next_link("/api/runtime/queues", &format!("={}", last.agent_slug.as_deref().unwrap_or(ALL_QUEUES))));
    page(&shown, next)
}

/// The agents for which the team has queued or active tasks.
async fn of_team(app: &AppState, team: &str) -> Result<BTreeMap<String, AgentTasks>, Error> {
    let mut tasks: BTreeMap<String, AgentTasks> = BTreeMap::new();
    for open in app.store.open_of_team(team).await? {
        let of = tasks.entry(open.agent_slug).or_default();
        *(if open.worker.is_some() { &mut of.active } else { &mut of.queued }) += open.count;
    }
    Ok(tasks)
}

/// A cursor: `=` and the slug of the last queue of the page, which is empty for all queues together.
fn cursor(text: &str) -> Result<String, Error> {
    let slug = text.strip_prefix('=').map(str::to_owned);
    slug.ok_or_else(|| invalid_cursor().into())
}

fn show<'a>(app: &AppState, queue: &'a AgentQueue, tasks: &BTreeMap<String, AgentTasks>) -> Queue<'a> {
    let of = match queue.agent_slug.as_str() {
        ALL_QUEUES => tasks
            .values()
            .fold(AgentTasks::default(), |sum, one| AgentTasks { queued: sum.queued + one.queued, active: sum.active + one.active }),
        agent => tasks.get(agent).copied().unwrap_or_default(),
    };
    let agent_slug = Some(queue.agent_slug.as_str()).filter(|agent| *agent != ALL_QUEUES);
    Queue::new(queue, of.queued, of.active, app.engine.replica.serving(agent_slug) as i64)
}

pub(crate) const PAUSE: RoutePolicy = RoutePolicy::ADMIN;

/// Pauses the queue of an agent.
///
/// The server creates no new leases of its tasks. Active leases go on.
#[utoipa::path(
    post, path = "/api/runtime/queues/{agent_slug}/pause", operation_id = "pauseQueue", tag = "queues", params(("agent_slug" = String, Path)),
    responses(
        (status = 200, description = "The queue. It was paused now or before.", body = Queue),
        (status = 404, description = "No agent can have this slug.", body = ErrorText),
        (status = 409, description = "Too many queues are paused or limited.", body = ErrorText),
    )
)]
pub(crate) async fn pause(State(app): State<AppState>, caller: Caller, path: QueuePath, body: Content) -> HandlerResult {
    body.raw()?;
    change(&app, &caller, path.agent_slug()?, QueueChange::Pause).await
}

pub(crate) const RESUME: RoutePolicy = RoutePolicy::ADMIN;

/// Resumes the queue of an agent.
///
/// Its tasks still wait while all queues are paused.
#[utoipa::path(
    post, path = "/api/runtime/queues/{agent_slug}/resume", operation_id = "resumeQueue", tag = "queues", params(("agent_slug" = String, Path)),
    responses(
        (status = 200, description = "The queue. It was resumed now, or not paused.", body = Queue),
        (status = 404, description = "No agent can have this slug.", body = ErrorText),
    )
)]
pub(crate) async fn resume(State(app): State<AppState>, caller: Caller, path: QueuePath, body: Content) -> HandlerResult {
    body.raw()?;
    change(&app, &caller, path.agent_slug()?, QueueChange::Resume).await
}

pub(crate) const LIMIT: RoutePolicy = RoutePolicy::ADMIN;

/// Limits the queue of an agent.
///
/// At most `max_concurrency` leases of its tasks are active at a time; null removes the limit. Active leases above a new limit go on.
#[utoipa::path(
    post, path = "/api/runtime/queues/{agent_slug}/limit", operation_id = "limitQueue", tag = "queues", params(("agent_slug" = String, Path)),
    request_body = NewQueueLimit,
    responses(
        (status = 200, description = "The queue.", body = Queue),
        (status = 404, description = "No agent can have this slug.", body = ErrorText),
        (status = 409, description = "Too many queues are paused or limited.", body = ErrorText),
    )
)]
pub(crate) async fn limit(State(app): State<AppState>, caller: Caller, path: QueuePath, body: Content) -> HandlerResult {
    body.raw()?;
    let agent_slug = path.agent_slug()?;
    let limit = body.read::<NewQueueLimit>()?.max_concurrency.map(|limit| limit.0);
    change(&app, &caller, agent_slug, QueueChange::Limit(limit)).await
}

pub(crate) const PAUSE_ALL: RoutePolicy = RoutePolicy::ADMIN;

/// Pauses all queues.
///
/// The server creates no new leases of any task. Active leases go on.
#[utoipa::path(
    post, path = "/api/runtime/queues:pause", operation_id = "pauseAllQueues", tag = "queues",
    responses((status = 200, description = "All queues together; they were paused now or before.", body = Queue))
)]
pub(crate) async fn pause_all(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    body.raw()?;
    change(&app, &caller, ALL_QUEUES.to_owned(), QueueChange::Pause).await
}

pub(crate) const RESUME_ALL: RoutePolicy = RoutePolicy::ADMIN;

/// Ends the pause of all queues.
///
/// Queues that were paused one by one stay paused.
#[utoipa::path(
    post, path = "/api/runtime/queues:resume", operation_id = "resumeAllQueues", tag = "queues",
    responses((status = 200, description = "All queues together.", body = Queue))
)]
pub(crate) async fn resume_all(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    body.raw()?;
    change(&app, &caller, ALL_QUEUES.to_owned(), QueueChange::Resume).await
}

async fn change(app: &AppState, caller: &Caller, agent_slug: String, change: QueueChange) -> HandlerResult {
    let queue = app.engine.writers.submit(caller.command(op::ChangeQueue { agent_slug, change })).await?;
    ok(&show(app, &queue, &app.engine.replica.tasks_by_agent()))
}
