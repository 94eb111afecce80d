//! Contexts: list, show, reset.

use axum::extract::State;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok, page};
use crate::messages::error::Error;
use crate::messages::path_ids::ContextPath;
use crate::messages::representations::Query;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::contexts::{Context, ContextPageParams, ContextTasks, LastTask, MAX_CONTEXTS_PAGE, RECENT};
use bloom_api::error::ErrorText;
use bloom_api::lists::invalid_cursor;
use bloom_core::namespace::namespace_of;
use bloom_core::op;
use bloom_core::task::Status;
use bloom_store::{COUNTED_TASKS, ContextRow};

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ.or_submit();

/// Lists contexts, by id or the most recent first.
///
/// Only contexts that have tasks. The header `Link` leads to the next page, if there is one; a page may have fewer contexts than its limit.
/// To list the tasks of a context, filter the list of tasks by `context_id`.
#[utoipa::path(
    get, path = "/api/runtime/contexts", operation_id = "listContexts", tag = "contexts", params(ContextPageParams),
    responses((status = 200, description = "A page of contexts.", body = Vec<Context>))
)]
pub(crate) async fn list(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    let limit = params.lenient("limit", MAX_CONTEXTS_PAGE, 1..=MAX_CONTEXTS_PAGE);
    let after = params.text("cursor")?.map(|text| cursor(&text)).transpose()?.unwrap_or_default();
    let (project, owner) = (params.text("project")?, caller.sees());
    let is_recent = !params.words("order", &[RECENT])?.is_empty();
    let mut ids = match is_recent {
        true => app.store.recent_contexts(limit as usize, project.as_deref(), owner.as_ref()).await?,
        false => app.store.context_ids(&after, limit + 1, project.as_deref(), owner.as_ref()).await?,
    };
    let more = ids.len() as i64 > limit;
    ids.truncate(limit as usize);
    let next = ids.last().filter(|_| more).map(|last| params.next_link("/api/runtime/contexts", &format!("={last}")));
    let mut rows = app.store.contexts(&ids, owner.as_ref()).await?;
    if owner.is_some() && project.is_some() {
        // There is an index for the contexts of a key or team, and one for those of a project, but none for both. So the rows are filtered
        // here.
        rows.retain(|row| row.newest.project == project);
    }
    page(&rows.iter().map(show_row).collect::<Vec<_>>().as_slice(), next)
}

/// A cursor: `=` and the id of the last context of the page.
fn cursor(text: &str) -> Result<String, Error> {
    text.strip_prefix('=').map(str::to_owned).ok_or_else(|| invalid_cursor().into())
}

pub(crate) const SHOW: RoutePolicy = RoutePolicy::READ.or_submit();

/// Shows a context.
///
/// The answer has the number of its tasks, its newest task, and the worker and the session of the last completed run. A key that sees only
/// its own or its team's tasks gets the worker and the session only if that run belongs to one of these tasks.
#[utoipa::path(
    get, path = "/api/runtime/contexts/{context_id}", operation_id = "getContext", tag = "contexts", params(("context_id" = String, Path)),
    responses(
        (status = 200, description = "The context.", body = Context),
        (status = 404, description = "No task belongs to the context.", body = ErrorText),
    )
)]
pub(crate) async fn show(State(app): State<AppState>, caller: Caller, path: ContextPath) -> HandlerResult {
    ok(&show_row(&find(&app, &caller, path.id(&app, &caller).await?).await?))
}

pub(crate) const RESET: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Resets a context: its next run begins a new session.
///
/// Use it for a conversation that is full, or whose history the model refuses. A run that a worker already has goes on, and the run after
/// it begins a new session. The files of the context stay: its directory, the worktree of its project and its branch. Repeating the call
/// has the same effect.
#[utoipa::path(
    post, path = "/api/runtime/contexts/{context_id}/reset", operation_id = "resetContext", tag = "contexts",
    params(("context_id" = String, Path)),
    responses(
        (status = 200, description = "The context, with `reset_at`.", body = Context),
        (status = 404, description = "No task belongs to the context.", body = ErrorText),
        (status = 409, description = "The caller has a member key, and keys outside its team also have tasks in the context.", body = ErrorText),
    )
)]
pub(crate) async fn reset(State(app): State<AppState>, caller: Caller, path: ContextPath, body: Content) -> HandlerResult {
    body.raw()?;
    let context_id = find(&app, &caller, path.id(&app, &caller).await?).await?.context_id;
    ownership::goes_on(&app, &caller, &context_id).await?;
    app.engine.writers.submit(caller.command(op::ResetContext { context_id: context_id.clone() })).await?;
    ok(&show_row(&find(&app, &caller, context_id).await?))
}

async fn find(app: &AppState, caller: &Caller, id: String) -> Result<ContextRow, Error> {
    app.store.contexts(&[id], caller.sees().as_ref()).await?.pop().ok_or(Error::CONTEXT_NOT_FOUND)
}

fn show_row(row: &ContextRow) -> Context<'_> {
    let count = |of: fn(&Status) -> bool| row.tasks.iter().filter(|(status, _)| of(status)).map(|(_, count)| count).sum();
    Context {
        context_id: (&row.context_id).into(),
        namespace: namespace_of(&row.context_id).map(Into::into),
        project: row.newest.project.as_ref().map(Into::into),
        tasks: ContextTasks {
            queued: count(|status| *status == Status::Queued),
            running: count(|status| status.is_active()),
            finished: count(|status| status.is_final()),
            more: row.tasks.values().sum::<i64>() >= COUNTED_TASKS,
        },
        last_task: LastTask {
            id: row.newest.id,
            status: row.newest.status.into(),
            agent_slug: (&row.newest.agent_slug).into(),
            updated_at: row.newest.updated_at,
        },
        session_id: row.session_id.as_ref().map(Into::into),
        worker_id: row.worker_id.as_ref().map(Into::into),
        usage: row.usage.into(),
        reset_at: row.reset_at,
    }
}
