//! Tasks: list, show, and their results.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::error::Error;
use crate::messages::list_streaming;
use crate::messages::paging::{cut, page_of};
use crate::messages::path_ids::TaskPath;
use crate::messages::representations::{Query, show_task};
use crate::middleware::Caller;
use crate::routes::files::output_objects;
use bloom_api::bulk::Filter;
use bloom_api::error::ErrorText;
use bloom_api::ids::IdPart;
use bloom_api::lists::{PageParams, Params, StatusParam, TaskParams};
use bloom_api::results::TaskResult;
use bloom_api::tasks::Task;
use bloom_core::ids::TaskId;
use bloom_core::task::{Reason, Status};
use bloom_store::{Listing, Page, TaskFilter};

/// How many tasks `runs` shows.
const MOST_RUNS: i64 = 50;

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ.or_submit();

/// Lists tasks, newest first.
///
/// A task must match all filters of the request. The header `Link` leads to the next page, if there is one.
#[utoipa::path(
    get, path = "/api/runtime/llm-tasks", operation_id = "listTasks", tag = "tasks", params(PageParams, StatusParam<Status>, TaskParams),
    responses((status = 200, description = "A page of tasks.", body = Vec<Task>))
)]
pub(crate) async fn list(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    let page_wanted = page_of(&params)?;
    let Some(filter) = filter_of_params(&params)? else { return ok(&[(); 0]) };
    let part = id_part(&params, &filter)?;
    let Some(filter) = with_asking(&app, ownership::filter(&app, &caller, filter).await?) else { return ok(&[(); 0]) };
    if let Some(text) = params.search()? {
        let page = Page { limit: params.limit(), before: params.cursor()? };
        let found = app.store.search(&filter, text, &page).await?;
        let next = found.next.map(|last| params.next_link(PATH, &last.to_string()));
        return show(&app, caller.client, found.rows, next, filter).await;
    }
    let Listing { rows: mut sizes, cut: is_short } = match part {
        Some(part) => app.store.task_sizes_by_id(part.beginning(), part.digits(), filter.owner.as_ref(), &page_wanted).await?,
        None => app.store.task_sizes(&filter, &page_wanted).await?,
    };
    let next = cut(&mut sizes, is_short, &params, PATH, |(id, _)| *id);
    show(&app, caller.client, sizes, next, filter).await
}

const PATH: &str = "/api/runtime/llm-tasks";

/// Sends the tasks as a list. Tasks that have changed meanwhile and no longer match the filter are left out, so a list by status never
/// contains a task with another status.
async fn show(app: &AppState, client: IpAddr, sizes: Vec<(TaskId, i64)>, next: Option<String>, filter: TaskFilter) -> HandlerResult {
    let filter = Arc::new(filter);
    let read = move |app: AppState, ids: Vec<TaskId>| {
        let filter = filter.clone();
        async move {
            let tasks = app.store.tasks(&ids).await?;
            let tasks = tasks.iter().filter(|task| filter.still_holds(task));
            list_streaming::rows(tasks.map(|task| show_task(&app.engine, &task.spec, &task.state)))
        }
    };
    list_streaming::list(app, client, sizes, next, read).await
}

/// `None` if the filter names an unknown status, which no task has.
fn filter_of_params(params: &Params) -> Result<Option<TaskFilter>, Error> {
    let filter = TaskFilter {
        ids: params.ids("ids")?,
        status: None,
        agent_slug: params.text("agent_slug")?,
        context_id: params.text("context_id")?,
        worker_id: params.text("worker_id")?,
        project: params.text("project")?,
        key: params.text("owner")?,
        team: params.text("team")?,
        owner: None,
        reason: params.word("reason", Reason::ALL)?,
        depends_on: params.id("depends_on")?,
        labels: params.labels()?.into_iter().map(|label| (label.name, label.value)).collect(),
        created_after: params.moment("created_after")?,
        created_before: params.moment("created_before")?,
        finished_after: params.moment("finished_after")?,
        asks: params.flag("asks")?,
    };
    Ok(with_status(filter, params.get("status")))
}

/// The part of an id by which tasks are looked up.
fn id_part(params: &Params, filter: &TaskFilter) -> Result<Option<IdPart>, Error> {
    let Some(text) = params.get("id") else { return Ok(None) };
    if *filter != TaskFilter::default() || params.get("search").is_some() {
        return Err(Error::field("id", "Can't be combined with other filters"));
    }
    IdPart::parse(text).map(Some).map_err(|wrong| Error::field("id", wrong))
}

/// The same filter, from a body, with the statuses of which it is; none means any. `None` if it names only unknown statuses, which no task
/// has.
pub(crate) fn filter_of_body(filter: &Filter) -> Option<(TaskFilter, Vec<Status>)> {
    let [created_after, created_before, finished_after] = filter.times();
    let read = TaskFilter {
        ids: Vec::new(),
        status: None,
        agent_slug: filter.agent_slug.0.clone(),
        context_id: filter.context_id.0.clone(),
        worker_id: filter.worker_id.0.clone(),
        project: filter.project.0.clone(),
        key: filter.owner.0.clone(),
        team: filter.team.0.clone(),
        owner: None,
        reason: filter.reason,
        depends_on: filter.depends_on.as_ref().map(|id| id.0),
        labels: filter.pairs().collect(),
        created_after,
        created_before,
        finished_after,
        asks: filter.asks,
    };
    let statuses: Vec<Status> = filter.status.0.iter().flat_map(|words| words.split(',')).filter_map(Status::parse).collect();
    (filter.status.0.is_none() || !statuses.is_empty()).then_some((read, statuses))
}

/// If the filter is about tasks with an open question, limits it to their ids. `None` if there are no such tasks.
pub(crate) fn with_asking(app: &AppState, filter: TaskFilter) -> Option<TaskFilter> {
    if !filter.asks {
        return Some(filter);
    }
    let mut ids = app.engine.replica.asking();
    ids.retain(|id| filter.ids.is_empty() || filter.ids.contains(id));
    (!ids.is_empty()).then_some(TaskFilter { ids, ..filter })
}

fn with_status(filter: TaskFilter, status: Option<&str>) -> Option<TaskFilter> {
    match status.map(Status::parse) {
        None => Some(filter),
        Some(None) => None,
        Some(known) => Some(TaskFilter { status: known, ..filter }),
    }
}

pub(crate) const RUNS: RoutePolicy = RoutePolicy::READ;

/// Lists the 50 newest tasks.
///
/// For overviews. This list has no filters and no pages; `llm-tasks` has both.
#[utoipa::path(
    get, path = "/api/runtime/runs", operation_id = "listRuns", tag = "tasks",
    responses((status = 200, description = "Tasks, newest first.", body = Vec<Task>))
)]
pub(crate) async fn runs(State(app): State<AppState>, caller: Caller) -> HandlerResult {
    let filter = TaskFilter::default();
    let newest = app.store.task_sizes(&filter, &Page { limit: MOST_RUNS, before: None }).await?;
    show(&app, caller.client, newest.rows, None, filter).await
}

pub(crate) const GET: RoutePolicy = RoutePolicy::READ.or_submit();

/// Shows one task.
///
/// The answer has the state of the task, its policy, and what it waits for. Its output is returned by a separate call,
/// `llm-tasks/{id}/result`.
#[utoipa::path(
    get, path = "/api/runtime/llm-tasks/{id}", operation_id = "getTask", tag = "tasks", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The task.", body = Task),
        (status = 404, description = "Task not found.", body = ErrorText),
    )
)]
pub(crate) async fn get(State(app): State<AppState>, path: TaskPath) -> HandlerResult {
    let row = app.store.task(path.id()?).await?.ok_or(Error::TASK_NOT_FOUND)?;
    ok(&show_task(&app.engine, &row.spec, &row.state))
}

pub(crate) const RESULT: RoutePolicy = RoutePolicy::READ.or_submit();

/// Shows the newest result of a task.
///
/// Each completion stores a result, even if the run failed. This call returns the newest one.
#[utoipa::path(
    get, path = "/api/runtime/llm-tasks/{id}/result", operation_id = "getResult", tag = "tasks", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The result.", body = TaskResult),
        (status = 404, description = "The task does not exist, or has no result yet.", body = ErrorText),
    )
)]
pub(crate) async fn result(State(app): State<AppState>, path: TaskPath) -> HandlerResult {
    let id = path.id()?;
    if let Some(result) = app.store.newest_result(id).await? {
        return ok(&TaskResult::from(&output_objects::whole(&app, result).await?));
    }
    let known = app.store.task_states(&[id]).await?;
    Err(if known.is_empty() { Error::TASK_NOT_FOUND } else { Error::fixed(404, "Result not found") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_queries() {
        let read = |query| filter_of_params(&Params::parse(Some(query)));
        assert_eq!(read("status=").unwrap(), Some(TaskFilter::default()));
        assert_eq!(read("status=sleeping").unwrap(), None);
        let filter = read("label=a=1&label=b=x%3Dy&status=dead&created_after=12").unwrap().unwrap();
        assert_eq!(filter.labels, [("a".into(), "1".into()), ("b".into(), "x=y".into())]);
        assert_eq!((filter.status, filter.created_after), (Some(Status::Dead), Some(12)));
        assert!(read("label=a").is_err());
        assert!(read("context_id=a%00b").is_err());
        assert!(read("created_after=soon").is_err());
        assert!(read("asks=true").unwrap().unwrap().asks && !read("asks=false").unwrap().unwrap().asks && read("asks=1").is_err());
    }
}
