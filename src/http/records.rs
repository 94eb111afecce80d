//! Lists of leases, artifacts and audit entries; statistics and usage.

use std::cmp::Reverse;

use axum::extract::State;
use uuid::Uuid;

use super::AppState;
use super::answer::{HandlerResult, ok, page};
use super::error::Error;
use super::list_streaming;
use super::middleware::Caller;
use super::objects;
use super::ownership;
use super::policy::RoutePolicy;
use super::show::{Query, show_lease};
use bloom_api::answers::{Audit, Lease};
use bloom_api::lists::{ArtifactParams, AuditParams, LeaseParams, MAX_LIMIT, PageParams, Params, StatusParam};
use bloom_api::reports::{LeaseStats, Stats, TaskStats, UsageRow, WorkerStats};
use bloom_api::results::Artifact;
use bloom_api::usage::{MAX_USAGE_KEYS, UsageParams, usage_keys};
use bloom_api::values::{MAX_LABEL_KEY, parse_id, text_problem};
use bloom_core::api_key::Owner;
use bloom_core::audit::Action;
use bloom_core::file::ArtifactKind;
use bloom_core::task::{LeaseStatus, Outcome};
use bloom_store::{AuditFilter, LeaseFilter, Listing, Page, UsageBy, UsageFilter};

/// Asks for one row more than are shown, to find out whether there is a next page.
pub(crate) fn page_of(params: &Params) -> Result<Page, Error> {
    Ok(Page { limit: params.limit() + 1, before: params.cursor()? })
}

/// Removes that row. Returns the link to the next page, if there is one.
pub(crate) fn cut<T>(rows: &mut Vec<T>, is_short: bool, params: &Params, path: &str, id: fn(&T) -> Uuid) -> Option<String> {
    let limit = params.limit() as usize;
    let more = is_short || rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| more).map(|last| params.next_link(path, &id(last).to_string()))
}

pub(crate) const LEASES: RoutePolicy = RoutePolicy::READ.or_submit();

/// Lists leases, newest first.
///
/// Active leases and ended ones. The header `Link` leads to the next page, as long as there is one. A submit or member key must name one of the
/// tasks that it sees.
#[utoipa::path(
    get, path = "/api/runtime/leases", operation_id = "listLeases", tag = "leases",
    params(PageParams, StatusParam<LeaseStatus>, LeaseParams),
    responses((status = 200, description = "A page of leases.", body = Vec<Lease>))
)]
pub(crate) async fn leases(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    let page_wanted = page_of(&params)?;
    let status = match params.get("status").map(LeaseStatus::parse) {
        Some(None) => return ok(&[(); 0]),
        status => status.flatten(),
    };
    let task_id = params.id("task_id")?;
    match task_id {
        None if caller.sees().is_some() => {
            return Err(Error::field("task_id", "Required with a submit or member key: the task of the leases"));
        }
        Some(task) if ownership::tasks(&app, &caller, vec![task]).await?.is_empty() => return ok(&[(); 0]),
        _ => {}
    }
    let filter = LeaseFilter { status, task_id, worker_id: params.text("worker_id")?, outcome: params.word("outcome", Outcome::ALL)? };
    let mut rows = app.store.leases(&filter, &page_wanted).await?;
    let next = cut(&mut rows, false, &params, "/api/runtime/leases", |lease| lease.id);
    page(&rows.iter().map(show_lease).collect::<Vec<_>>(), next)
}

pub(crate) const ARTIFACTS: RoutePolicy = RoutePolicy::READ.or_submit();

/// Lists artifacts, newest first.
///
/// Each completion stores one artifact: the output of the run if it succeeded. Files are artifacts, too: uploads, which belong to no task, and
/// those of runs; lists have no content of them. The header `Link` leads to the next page. The content of an output in the object store is null
/// while that can't deliver it. A submit or member key that names no task gets the files that it uploaded itself.
#[utoipa::path(
    get, path = "/api/runtime/artifacts", operation_id = "listArtifacts", tag = "records", params(PageParams, ArtifactParams),
    responses((status = 200, description = "A page of artifacts.", body = Vec<Artifact>))
)]
pub(crate) async fn artifacts(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    let page_wanted = page_of(&params)?;
    let kind = params.word("kind", ArtifactKind::ALL)?;
    let task = match params.get("task_id").map(parse_id) {
        Some(None) => return ok(&[(); 0]),
        task => task.flatten(),
    };
    let Listing { rows: mut sizes, cut: is_short } = match (task, caller.owner()) {
        // What it uploaded are files.
        (None, Some(_)) if kind == Some(ArtifactKind::Answer) => return ok(&[(); 0]),
        (None, Some(key)) => app.store.upload_sizes(key, &page_wanted).await?,
        (Some(task), _) if ownership::tasks(&app, &caller, vec![task]).await?.is_empty() => return ok(&[(); 0]),
        _ => app.store.artifact_sizes(task, kind, &page_wanted).await?,
    };
    let next = cut(&mut sizes, is_short, &params, "/api/runtime/artifacts", |(id, _)| *id);
    let read = |app: AppState, ids: Vec<Uuid>| async move {
        let results = objects::whole_or_not(&app, app.store.artifacts(&ids).await?).await;
        let files = app.store.files(&ids).await?;
        let mut artifacts: Vec<Artifact<'_>> = results.iter().map(Artifact::from).chain(files.iter().map(Artifact::from)).collect();
        artifacts.sort_unstable_by_key(|artifact| Reverse(artifact.id));
        list_streaming::rows(artifacts)
    };
    list_streaming::list(&app, caller.client, sizes, next, read).await
}

pub(crate) const AUDIT: RoutePolicy = RoutePolicy::READ;

/// Lists the audit trail, newest first.
///
/// All filters that are given must match. An entry commits together with the change that it describes. Heartbeats leave none. The header
/// `Link` leads to the next page.
#[utoipa::path(
    get, path = "/api/runtime/audit", operation_id = "listAudit", tag = "records", params(PageParams, AuditParams),
    responses((status = 200, description = "A page of entries.", body = Vec<Audit>))
)]
pub(crate) async fn audit(State(app): State<AppState>, Query(params): Query) -> HandlerResult {
    let page_wanted = page_of(&params)?;
    let (actions, is_of_people) = (params.words("action", Action::ALL)?, params.flag("people")?);
    let filter = AuditFilter {
        task_id: params.id("task_id")?,
        worker_id: params.text("worker_id")?,
        actor: params.text("actor")?,
        request_id: params.text("request_id")?,
        actions: if is_of_people && actions.is_empty() { Action::OF_PEOPLE.to_vec() } else { actions },
        is_of_clients: is_of_people,
        created_after: params.moment("created_after")?,
        created_before: params.moment("created_before")?,
    };
    let mut rows = app.store.audit(&filter, &page_wanted).await?;
    let next = cut(&mut rows, false, &params, "/api/runtime/audit", |entry| entry.id);
    page(&rows.iter().map(Audit::from).collect::<Vec<_>>(), next)
}

pub(crate) const STATS: RoutePolicy = RoutePolicy::READ;

/// Counts tasks, leases and workers.
///
/// At the same cost however many there are.
#[utoipa::path(
    get, path = "/api/runtime/stats", operation_id = "getStats", tag = "records",
    responses((status = 200, description = "Counts.", body = Stats))
)]
pub(crate) async fn stats(State(app): State<AppState>) -> HandlerResult {
    let stats = app.engine.replica.stats();
    let counted = stats.tasks_by_status.iter().filter(|(_, count)| **count > 0);
    ok(&Stats {
        tasks: TaskStats {
            total: stats.tasks_by_status.values().sum(),
            by_status: counted.map(|(status, count)| (status.as_str().into(), *count)).collect(),
        },
        leases: LeaseStats { total: stats.leases_total, active: stats.leases_active },
        workers: WorkerStats { total: stats.workers_total, online: stats.workers_online },
    })
}

pub(crate) const USAGE: RoutePolicy = RoutePolicy::READ.or_submit();

/// Shows how many tokens and US dollars runs used.
///
/// One row per group: days newest first, all else by name. The header `Link` leads to the next page; each page adds everything up again. These
/// records are kept when their tasks are removed: for removed tasks, `from` and `to` are rounded to whole days. `created_by` is empty if the
/// audit trail has forgotten it. `week` is its Monday. A member key gets the runs of its team's tasks, a submit key
/// those of the tasks that it created.
#[utoipa::path(
    get, path = "/api/runtime/usage", operation_id = "getUsage", tag = "records", params(UsageParams),
    responses((status = 200, description = "A page of rows.", body = Vec<UsageRow>))
)]
pub(crate) async fn usage(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    UsageParams::check_names(&params)?;
    let mut by = params.several("by", MAX_USAGE_KEYS, |word| usage_key(word).map(|by| (word.to_owned(), by)))?;
    if by.is_empty() {
        by.push(("day".to_owned(), UsageBy::Day));
    }
    if by.iter().skip(1).any(|key| *key == by[0]) {
        return Err(Error::field("by", format!("'{}' is there twice", by[0].0)));
    }
    let created_by = params.text("created_by")?;
    let own = match caller.sees() {
        Some(Owner::Key(name)) => Some(format!("key:{name}")),
        Some(Owner::Team(_)) | None => None,
    };
    let (team, own_team) = (params.text("team")?, caller.team());
    let is_of_others = |given: &Option<String>, own: &Option<String>| own.is_some() && given.is_some() && given != own;
    if is_of_others(&created_by, &own) || is_of_others(&team, &own_team) {
        return page(&Vec::<UsageRow<'_>>::new(), None);
    }
    let filter = UsageFilter {
        from: params.moment("from")?,
        to: params.moment("to")?,
        agent_slug: params.text("agent_slug")?,
        context_id: ownership::context_wanted(&app, &caller, params.text("context_id")?).await?,
        project: params.text("project")?,
        worker_id: params.text("worker_id")?,
        created_by: created_by.or(own),
        team: team.or(own_team),
        labels: params.labels()?.into_iter().map(|label| (label.name, label.value)).collect(),
    };
    if filter.from.zip(filter.to).is_some_and(|(from, to)| from >= to) {
        // Rounded to whole days, it would have the removed tasks of a day.
        return page(&Vec::<UsageRow<'_>>::new(), None);
    }
    let (limit, skip) = (params.lenient("limit", MAX_LIMIT, 1..=MAX_LIMIT), params.row_cursor()?);
    let (words, by): (Vec<String>, Vec<UsageBy>) = by.into_iter().unzip();
    let mut rows = app.store.usage(&filter, &by, limit + 1, skip).await?;
    let next = (rows.len() as i64 > limit).then(|| params.next_link("/api/runtime/usage", &(skip + limit).to_string()));
    rows.truncate(limit as usize);
    let shown = rows.iter().map(|row| UsageRow {
        key: row.keys.first().map(String::as_str).unwrap_or_default().into(),
        keys: words.iter().cloned().zip(row.keys.iter().map(|key| key.as_str().into())).collect(),
        runs: row.sums.runs,
        input_tokens: row.sums.input_tokens,
        output_tokens: row.sums.output_tokens,
        // Sums of binary fractions: 2.3000000000000003.
        cost_usd: (row.sums.cost_usd * 1e9).round() / 1e9,
        cost_estimated: row.sums.cost_estimated,
    });
    page(&shown.collect::<Vec<_>>(), next)
}

fn usage_key(word: &str) -> Result<UsageBy, String> {
    Ok(match word {
        "day" => UsageBy::Day,
        "week" => UsageBy::Week,
        "agent_slug" => UsageBy::AgentSlug,
        "model" => UsageBy::Model,
        "context_id" => UsageBy::ContextId,
        "project" => UsageBy::Project,
        "worker_id" => UsageBy::WorkerId,
        "created_by" => UsageBy::CreatedBy,
        "team" => UsageBy::Team,
        _ => match word.strip_prefix("label:").filter(|name| text_problem(name, 1, MAX_LABEL_KEY).is_none()) {
            Some(name) => UsageBy::Label(name.to_owned()),
            None => return Err(format!("Expected '{}' | 'label:NAME'", usage_keys().join("' | '"))),
        },
    })
}
