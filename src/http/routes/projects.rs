//! Projects: create, list, show, change, delete; clones on workers, and the memory of a project.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::StatusCode;
use futures_util::{StreamExt as _, stream};
use serde_json::{Map, Value, json};

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, json as json_answer, ok, page};
use crate::messages::error::Error;
use crate::messages::path_ids::ProjectId;
use crate::messages::representations::Query;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::answers::Removed;
use bloom_api::error::ErrorText;
use bloom_api::lists::{PageParams, StatusParam};
use bloom_api::problem_texts;
use bloom_api::projects::{
    Cloned, MemorySynced, NewClone, NewMemorySync, NewProject, NodeResult, NodeStatus, Project, ProjectEdit, ProjectNode, ProjectWithNodes,
    Propagated, Propagation,
};
use bloom_core::audit::{Action, Actor, EntityType};
use bloom_core::command::Rejection;
use bloom_core::op::{self, ClonedFor, NodeClone};
use bloom_core::project::{self, CloneStatus};
use bloom_core::run_result::RunResult;
use bloom_core::task::{NOT_FETCHED, Reason, TaskState};
use bloom_core::worker::Worker;
use bloom_membridge::{Call, Upstream};

/// How many agents one call asks for clones at the same time.
const CLONES_AT_ONCE: usize = 16;
/// The maximum length of the control plane's error text.
const MAX_TEXT_CHARS: usize = 2_000;

pub(crate) const CREATE: RoutePolicy = RoutePolicy::ADMIN;

/// Creates a project.
///
/// Nothing is cloned yet.
#[utoipa::path(
    post, path = "/api/runtime/projects", operation_id = "createProject", tag = "projects", request_body = NewProject,
    responses(
        (status = 201, description = "The project.", body = Project),
        (status = 409, description = "A project with this name exists, or there are 1000 projects.", body = ErrorText),
    )
)]
pub(crate) async fn create(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    let op = op::CreateProject::from(body.read::<NewProject>()?);
    let project = app.engine.writers.submit(caller.command(op)).await?;
    json_answer(StatusCode::CREATED, &Project::from(&project))
}

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ.or_member();

/// Lists projects, newest first.
///
/// The header `Link` leads to the next page.
#[utoipa::path(
    get, path = "/api/runtime/projects", operation_id = "listProjects", tag = "projects", params(StatusParam<CloneStatus>, PageParams),
    responses((status = 200, description = "A page of projects.", body = Vec<Project>))
)]
pub(crate) async fn list(State(app): State<AppState>, Query(params): Query) -> HandlerResult {
    let (limit, after) = (params.limit() as usize, params.cursor()?);
    let status = params.get("status").map(CloneStatus::parse);
    let projects = app.store.projects().await?;
    let wanted = |project: &&project::Project| {
        status.is_none_or(|status| status == Some(project.clone_status)) && after.is_none_or(|after| project.id < after)
    };
    let rows: Vec<Project<'_>> = projects.iter().filter(wanted).take(limit + 1).map(Project::from).collect();
    let (shown, more) = rows.split_at(rows.len().min(limit));
    let last = shown.last().filter(|_| !more.is_empty());
    page(&shown, last.map(|last| params.next_link("/api/runtime/projects", &last.id.to_string())))
}

pub(crate) const GET: RoutePolicy = RoutePolicy::READ.or_member();

/// Shows a project and its clones.
///
/// `nodes` are the workers that were asked for a clone, or have run tasks of the project.
#[utoipa::path(
    get, path = "/api/runtime/projects/{id}", operation_id = "getProject", tag = "projects", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The project.", body = ProjectWithNodes),
        (status = 404, description = "Project not found.", body = ErrorText),
    )
)]
pub(crate) async fn get(State(app): State<AppState>, path: ProjectId) -> HandlerResult {
    let (project, nodes) = found_with_nodes(&app, path).await?;
    ok(&ProjectWithNodes { project: (&project).into(), nodes: nodes.iter().map(ProjectNode::from).collect() })
}

async fn found(app: &AppState, path: ProjectId) -> Result<project::Project, Error> {
    Ok(app.store.project(path.id()?).await?.ok_or(Rejection::ProjectNotFound)?)
}

async fn found_with_nodes(app: &AppState, path: ProjectId) -> Result<(project::Project, Vec<project::ProjectNode>), Error> {
    Ok(app.store.project_with_nodes(path.id()?).await?.ok_or(Rejection::ProjectNotFound)?)
}

pub(crate) const EDIT: RoutePolicy = RoutePolicy::ADMIN;

/// Changes a project.
///
/// Only the prefix of its contexts' branches can be changed.
#[utoipa::path(
    patch, path = "/api/runtime/projects/{id}", operation_id = "editProject", tag = "projects", params(("id" = String, Path)),
    request_body = ProjectEdit,
    responses(
        (status = 200, description = "The project.", body = Project),
        (status = 404, description = "Project not found.", body = ErrorText),
    )
)]
pub(crate) async fn edit(State(app): State<AppState>, caller: Caller, path: ProjectId, body: Content) -> HandlerResult {
    let branch_prefix = body.read::<ProjectEdit>()?.branch_prefix.0;
    let edited = app.engine.writers.submit(caller.command(op::EditProject { project: path.id()?, branch_prefix })).await?;
    ok(&Project::from(&edited))
}

pub(crate) const DELETE: RoutePolicy = RoutePolicy::ADMIN;

/// Deletes a project.
///
/// The server's records of its clones are also deleted. The clones themselves stay on the workers.
#[utoipa::path(
    delete, path = "/api/runtime/projects/{id}", operation_id = "deleteProject", tag = "projects", params(("id" = String, Path)),
    responses(
        (status = 200, description = "Deleted.", body = Removed),
        (status = 404, description = "Project not found.", body = ErrorText),
    )
)]
pub(crate) async fn delete(State(app): State<AppState>, caller: Caller, path: ProjectId) -> HandlerResult {
    let project = path.id()?;
    app.engine.writers.submit(caller.command(op::DeleteProject { project })).await?;
    ok(&Removed { removed: true, id: project.to_string().into() })
}

pub(crate) const NODE_STATUS: RoutePolicy = RoutePolicy::READ;

/// Lists the project's clones by worker.
///
/// The list also has the workers with a URL that were not asked to clone the project yet and have not run a task of it: their clone is
/// `pending`.
#[utoipa::path(
    get, path = "/api/runtime/projects/{id}/node-status", operation_id = "getNodeStatus", tag = "projects", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The clones, by the names of the workers.", body = Vec<NodeStatus>),
        (status = 404, description = "Project not found.", body = ErrorText),
    )
)]
pub(crate) async fn node_status(State(app): State<AppState>, path: ProjectId) -> HandlerResult {
    let (project, nodes) = found_with_nodes(&app, path).await?;
    let workers = workers(&app).await?;
    let mut rows: BTreeMap<&str, NodeStatus<'_>> = BTreeMap::new();
    for worker in workers.values().filter(|worker| !worker.url.is_empty()) {
        let node = ProjectNode::pending(project.id, &worker.id);
        rows.insert(&worker.id, NodeStatus { node, worker_status: Some(worker.shown_status().as_str().into()) });
    }
    for node in &nodes {
        let worker_status = workers.get(&node.node_id).map(|worker| worker.shown_status().as_str().into());
        rows.insert(&node.node_id, NodeStatus { node: node.into(), worker_status });
    }
    ok(&rows.into_values().collect::<Vec<_>>())
}

async fn workers(app: &AppState) -> Result<BTreeMap<String, Worker>, Error> {
    let names: Vec<String> = app.store.worker_keys().await?.into_iter().map(|key| key.id).collect();
    Ok(app.store.workers(&names).await?.into_iter().map(|worker| (worker.id.clone(), worker)).collect())
}

pub(crate) const CLONE: RoutePolicy = RoutePolicy::ADMIN.waits();

/// Orders a worker to clone the project.
///
/// The server calls `/clone` at the worker's URL with the agents' key. A failure is recorded in the project, and in its clone on the
/// worker. A project that other workers have cloned becomes `partial`; a worker that can't be called changes nothing in such a project.
#[utoipa::path(
    post, path = "/api/runtime/projects/{id}/clone", operation_id = "cloneProject", tag = "projects", params(("id" = String, Path)),
    request_body = NewClone,
    responses(
        (status = 200, description = "Cloned.", body = Cloned),
        (status = 404, description = "Project not found.", body = ErrorText),
        (status = 502, description = "The worker is unknown or has no URL, or its agent refused or can't be reached.", body = ErrorText),
    )
)]
pub(crate) async fn clone(State(app): State<AppState>, caller: Caller, path: ProjectId, body: Content) -> HandlerResult {
    body.raw()?;
    let (project, nodes) = found_with_nodes(&app, path).await?;
    let node = body.read::<NewClone>()?.node_id.map(|node| node.0).or_else(|| project.primary_node_id.clone());
    let node = node.ok_or(NO_NODE)?;
    let url = url_of(&node, app.store.worker(&node).await?.as_ref());
    if let Err(why) = &url
        && nodes.iter().any(|node| node.clone_status == CloneStatus::Cloned)
    {
        return Err(bad_gateway(why.clone()));
    }
    let permit = app.stream_limits.agents.take(&caller)?;
    // In a background task, so that the outcome of the clone is recorded even if the client disconnects.
    let done = tokio::spawn(async move {
        let _permit = permit;
        let answer = clone_at(&app, url, &wanted(&project)).await;
        let outcome = answer.as_ref().map(path_of).map_err(Clone::clone);
        let nodes = vec![NodeClone { node_id: node.clone(), outcome }];
        app.engine.writers.submit(caller.command(op::RecordClones { project: project.id, nodes, cloned_for: ClonedFor::Call })).await?;
        let result = answer.map_err(bad_gateway)?;
        ok(&Cloned { status: CloneStatus::Cloned.as_str().into(), node: node.into(), result })
    });
    done.await.map_err(|error| Error::Internal(error.to_string()))?
}

const NO_NODE: Error = Error::fixed(400, problem_texts::NO_NODE);

fn bad_gateway(text: String) -> Error {
    Error::Text { status: 502, text: text.into() }
}

/// Records whether a worker has a clone of the project of a run that has ended. It has one if the agent reported a branch, and none if the
/// first run there could not fetch the repository. Each of these is recorded once, in the background; if that fails, the next run tries
/// again. The project is shown to everybody, so no text about a single task may get there.
pub(crate) fn note_clone_for_run(app: &AppState, caller: &Caller, task: &TaskState, result: &RunResult) {
    let outcome = match &task.failure {
        _ if result.branch.is_some() => Ok(None),
        Some(failure) if failure.reason == Reason::Project && failure.message.starts_with(NOT_FETCHED) => Err(failure.message.clone()),
        _ => return,
    };
    let (app, caller, task, node_id) = (app.clone(), caller.clone(), result.task_id, result.worker_id.clone());
    tokio::spawn(async move {
        let noted = async {
            let specs = app.engine.specs.by_id(&[task]).await?;
            let Some(project) = specs.first().and_then(|spec| spec.project.as_ref()).map(|project| project.id) else { return Ok(()) };
            let Some((_, nodes)) = app.store.project_with_nodes(project).await? else { return Ok(()) };
            let is_recorded = nodes.iter().filter(|node| node.node_id == node_id).any(|node| match &outcome {
                Ok(_) => node.clone_status == CloneStatus::Cloned,
                // A failure after a clone was made says nothing about the clone: it may be the network's.
                Err(why) => node.clone_status == CloneStatus::Cloned || node.error_message.as_ref() == Some(why),
            });
            if is_recorded {
                return Ok(());
            }
            let nodes = vec![NodeClone { node_id, outcome }];
            app.engine.writers.submit(caller.command(op::RecordClones { project, nodes, cloned_for: ClonedFor::Run })).await?;
            Ok::<_, Error>(())
        };
        // The project may have been deleted meanwhile.
        if let Err(error) = noted.await {
            tracing::debug!(?error, "the clone of a run is not noted");
        }
    });
}

/// The URL at which the agent of a worker is called.
///
/// # Errors
/// The agent can't be called; the error says why.
fn url_of(node: &str, worker: Option<&Worker>) -> Result<String, String> {
    match worker {
        Some(worker) if !worker.url.is_empty() => Ok(worker.url.clone()),
        Some(_) => Err(format!("Worker \"{node}\" takes its tasks by itself (no URL): it clones the project with its first task")),
        None => Err(format!("Worker \"{node}\" not found or has no URL")),
    }
}

/// Asks the agent of a worker to clone a project.
async fn clone_at(app: &AppState, url: Result<String, String>, wanted: &Value) -> Result<Map<String, Value>, String> {
    app.agents.clone_project(&url?, wanted).await
}

/// The body of a call to an agent's `/clone`.
fn wanted(project: &project::Project) -> Value {
    let mut wanted = json!({ "repo_url": project.repo_url, "project_name": project.name });
    if let Some(path) = &project.target_path {
        wanted["target_path"] = path.as_str().into();
    }
    wanted
}

/// The path of the clone according to the agent's answer.
fn path_of(answer: &Map<String, Value>) -> Option<String> {
    let path = answer.get("path")?.as_str()?;
    (path.len() <= MAX_TEXT_CHARS && !path.contains('\0')).then(|| path.to_owned())
}

pub(crate) const PROPAGATE: RoutePolicy = RoutePolicy::ADMIN.waits();

/// Orders all workers that lack the project to clone it.
///
/// The server calls `/clone` at the URL of each of these workers, several at a time. With `node_ids`, it calls only the named workers.
#[utoipa::path(
    post, path = "/api/runtime/projects/{id}/propagate", operation_id = "propagateProject", tag = "projects", params(("id" = String, Path)),
    request_body = Propagation,
    responses(
        (status = 200, description = "The outcome for each worker.", body = Propagated),
        (status = 404, description = "Project not found.", body = ErrorText),
    )
)]
pub(crate) async fn propagate(State(app): State<AppState>, caller: Caller, path: ProjectId, body: Content) -> HandlerResult {
    body.raw()?;
    let (project, nodes) = found_with_nodes(&app, path).await?;
    let named: Option<BTreeSet<String>> = body.read::<Propagation>()?.node_ids.map(|ids| ids.texts().into_iter().collect());
    let have: BTreeSet<String> =
        nodes.into_iter().filter(|node| node.clone_status == CloneStatus::Cloned).map(|node| node.node_id).collect();
    let lacks = |worker: &Worker| !worker.url.is_empty() && !have.contains(&worker.id);
    let is_named = |worker: &Worker| named.as_ref().is_none_or(|named| named.contains(&worker.id));
    let known = workers(&app).await?;
    let mut asked: Vec<(String, Result<String, String>)> = known
        .values()
        .filter(|worker| lacks(worker) && is_named(worker))
        .map(|worker| (worker.id.clone(), Ok(worker.url.clone())))
        .collect();
    let named_without_url = named.into_iter().flatten().filter(|name| !have.contains(name)).filter_map(|name| {
        let why = url_of(&name, known.get(&name)).err()?;
        Some((name, Err(why)))
    });
    asked.extend(named_without_url);
    if asked.is_empty() {
        let message = Some("All nodes already have this project".into());
        return ok(&Propagated { status: "nothing_to_propagate".into(), results: None, message });
    }
    let permit = app.stream_limits.agents.take(&caller)?;
    let done = tokio::spawn(async move {
        let _permit = permit;
        let (state, body) = (&app, &wanted(&project));
        let clone = |(node_id, url): (String, Result<String, String>)| async move {
            let outcome = clone_at(state, url, body).await.map(|answer| path_of(&answer));
            NodeClone { node_id, outcome }
        };
        let mut nodes: Vec<NodeClone> = stream::iter(asked).map(clone).buffer_unordered(CLONES_AT_ONCE).collect().await;
        nodes.sort_by(|a, b| a.node_id.cmp(&b.node_id));
        let results: Vec<NodeResult<'_>> = nodes
            .iter()
            .map(|NodeClone { node_id, outcome }| NodeResult {
                node_id: node_id.clone().into(),
                status: if outcome.is_ok() { CloneStatus::Cloned } else { CloneStatus::Failed }.as_str().into(),
                error: outcome.clone().err().map(Into::into),
            })
            .collect();
        let is_whole = nodes.iter().all(|node| node.outcome.is_ok());
        app.engine
            .writers
            .submit(caller.command(op::RecordClones { project: project.id, nodes, cloned_for: ClonedFor::Propagation }))
            .await?;
        let status = if is_whole { CloneStatus::Synced } else { CloneStatus::Partial };
        ok(&Propagated { status: status.as_str().into(), results: Some(results), message: None })
    });
    done.await.map_err(|error| Error::Internal(error.to_string()))?
}

pub(crate) const SYNC_MEMORY: RoutePolicy = RoutePolicy::ADMIN.waits();

/// Moves the project's memory between a worker and the control plane.
///
/// The server calls `/sync/push` or `/sync/pull` of the control plane, and adds the control plane's key.
#[utoipa::path(
    post, path = "/api/runtime/projects/{id}/sync-memory", operation_id = "syncMemory", tag = "projects", params(("id" = String, Path)),
    request_body = NewMemorySync,
    responses(
        (status = 200, description = "The memory was moved.", body = MemorySynced),
        (status = 404, description = "Project not found.", body = ErrorText),
        (status = 502, description = "The control plane refused, or it can't be reached.", body = ErrorText),
    )
)]
pub(crate) async fn sync_memory(State(app): State<AppState>, caller: Caller, path: ProjectId, body: Content) -> HandlerResult {
    body.raw()?;
    let project = found(&app, path).await?;
    let NewMemorySync { direction, node_id } = body.read()?;
    let node = node_id.map(|node| node.0).or_else(|| project.primary_node_id.clone()).ok_or(NO_NODE)?;
    let permit = app.stream_limits.agents.take(&caller)?;
    let done = tokio::spawn(async move {
        let _permit = permit;
        let sent = json!({ "project": project.name, "agent": node });
        let reply = match app.membridge.call(Call::SyncMemory { direction: direction.as_str(), body: &sent }).await {
            Upstream::Reply(reply) => reply,
            Upstream::Down(error) => return Err(bad_gateway(error)),
        };
        if !reply.is_success() {
            let text: String = String::from_utf8_lossy(&reply.body).chars().filter(|c| *c != '\0').take(MAX_TEXT_CHARS).collect();
            return Err(bad_gateway(format!("Membridge returned {}: {}", reply.status, text.trim())));
        }
        let unknown = |_| {
            let text = "without JSON, so it is not known whether it did that: check the address of the control plane";
            bad_gateway(format!("Membridge returned {} {text}", reply.status))
        };
        let result = serde_json::from_slice(&reply.body).map_err(unknown)?;
        let action = if direction.as_str() == "push" { Action::MemorySyncPush } else { Action::MemorySyncPull };
        let (entity_type, entity_id) = (EntityType::Project, project.id.to_string());
        let detail = format!("{}, worker {node}", project.name);
        let entry = op::RecordAudit { action, entity_type, entity_id, actor: Actor::Admin, detail };
        app.engine.writers.submit(caller.command(entry)).await?;
        ok(&MemorySynced { status: "ok".into(), direction, node: node.into(), result })
    });
    done.await.map_err(|error| Error::Internal(error.to_string()))?
}
