//! Proxies calls to the membridge control plane. Clients use this server's key; the control plane's key is added here and never shown.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use serde_json::json;

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, typed};
use crate::messages::error::Error;
use crate::messages::path_ids::ProjectPath;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::error::ErrorText;
use bloom_api::requests::LeaderSelection;
use bloom_core::audit::{Action, Actor, EntityType};
use bloom_core::op;
use bloom_membridge::{Call, Reply, Upstream};

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

pub(crate) const HEALTH: RoutePolicy = RoutePolicy::READ;

/// Returns the health of the control plane.
///
/// Returns the answer of the control plane unchanged. This server adds the control plane's key to the call.
#[utoipa::path(
    get, path = "/api/membridge/health", operation_id = "getMembridgeHealth", tag = "membridge",
    responses((status = 200, description = "The answer of the control plane, unchanged.", body = serde_json::Value), Refusals)
)]
pub(crate) async fn health(State(app): State<AppState>) -> HandlerResult {
    get(&app, Call::Health).await
}

pub(crate) const PROJECTS: RoutePolicy = RoutePolicy::READ;

/// Lists the projects of the control plane.
///
/// Returns the answer of the control plane unchanged. This server adds the control plane's key to the call.
#[utoipa::path(
    get, path = "/api/membridge/projects", operation_id = "listMembridgeProjects", tag = "membridge",
    responses((status = 200, description = "The answer of the control plane, unchanged.", body = serde_json::Value), Refusals)
)]
pub(crate) async fn projects(State(app): State<AppState>) -> HandlerResult {
    get(&app, Call::Projects).await
}

pub(crate) const LEADERSHIP: RoutePolicy = RoutePolicy::READ;

/// Returns the leader of a project.
///
/// Returns the answer of the control plane unchanged. This server adds the control plane's key to the call.
#[utoipa::path(
    get, path = "/api/membridge/projects/{cid}/leadership", operation_id = "getLeadership", tag = "membridge",
    params(("cid" = String, Path)),
    responses((status = 200, description = "The answer of the control plane, unchanged.", body = serde_json::Value), Refusals)
)]
pub(crate) async fn leadership(State(app): State<AppState>, ProjectPath(project): ProjectPath) -> HandlerResult {
    get(&app, Call::Leadership { project: &project }).await
}

pub(crate) const NODES: RoutePolicy = RoutePolicy::READ;

/// Lists the nodes of a project.
///
/// Returns the answer of the control plane unchanged. This server adds the control plane's key to the call.
#[utoipa::path(
    get, path = "/api/membridge/projects/{cid}/nodes", operation_id = "listNodes", tag = "membridge",
    params(("cid" = String, Path)),
    responses((status = 200, description = "The answer of the control plane, unchanged.", body = serde_json::Value), Refusals)
)]
pub(crate) async fn nodes(State(app): State<AppState>, ProjectPath(project): ProjectPath) -> HandlerResult {
    get(&app, Call::Nodes { project: &project }).await
}

pub(crate) const JOBS: RoutePolicy = RoutePolicy::READ;

/// Lists the newest pushes and pulls of memories.
///
/// Returns the answer of the control plane unchanged. This server adds the control plane's key to the call.
#[utoipa::path(
    get, path = "/api/membridge/jobs", operation_id = "listMembridgeJobs", tag = "membridge",
    responses((status = 200, description = "The answer of the control plane, unchanged.", body = serde_json::Value), Refusals)
)]
pub(crate) async fn jobs(State(app): State<AppState>) -> HandlerResult {
    get(&app, Call::Jobs).await
}

pub(crate) const SELECT: RoutePolicy = RoutePolicy::ADMIN;

/// Makes a node the leader of a project.
///
/// Returns the answer of the control plane unchanged. The change is recorded in the audit trail.
#[utoipa::path(
    post, path = "/api/membridge/projects/{cid}/leadership/select", operation_id = "selectLeader", tag = "membridge",
    params(("cid" = String, Path)), request_body = LeaderSelection,
    responses((status = 200, description = "The answer of the control plane, unchanged.", body = serde_json::Value), Refusals)
)]
pub(crate) async fn select(State(app): State<AppState>, caller: Caller, ProjectPath(project): ProjectPath, body: Content) -> HandlerResult {
    let selection = body.read::<LeaderSelection>()?;
    let body = json!({ "primary_node_id": selection.primary_node_id.0, "lease_seconds": selection.lease_seconds.0 });
    let reply = reply(app.membridge.call(Call::SelectLeader { project: &project, body: &body }).await)?;
    if !reply.is_success() {
        return Err(Error::Text { status: reply.status, text: String::from_utf8_lossy(&reply.body).into_owned().into() });
    }
    let (action, entity_type) = (Action::LeadershipPromote, EntityType::Project);
    let entry = op::RecordAudit { action, entity_type, entity_id: project, actor: Actor::Admin, detail: selection.primary_node_id.0 };
    app.engine.writers.submit(caller.command(entry)).await?;
    through(reply)
}

async fn get(app: &AppState, call: Call<'_>) -> HandlerResult {
    let reply = reply(app.membridge.call(call).await)?;
    if !reply.is_success() {
        return Err(Error::Text { status: reply.status, text: format!("Membridge returned {}", reply.status).into() });
    }
    through(reply)
}

fn reply(answer: Upstream) -> Result<Reply, Error> {
    match answer {
        Upstream::Reply(reply) => Ok(reply),
        Upstream::Down(error) => Err(Error::Text { status: 502, text: error.into() }),
    }
}

/// Passes the body on unchanged. A body that is not JSON is sent as plain text, so that no browser runs a page of the control plane as a
/// page of this server.
fn through(reply: Reply) -> HandlerResult {
    let status = StatusCode::from_u16(reply.status).map_err(|error| Error::Internal(error.to_string()))?;
    let content_type = reply.content_type.filter(|text| is_json(text)).and_then(|text| HeaderValue::try_from(text).ok());
    Ok(typed(status, content_type.unwrap_or(PLAIN_TEXT), Bytes::from(reply.body)))
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// The other answers of these calls.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "it only describes these answers in OpenAPI")]
enum Refusals {
    /// The control plane can't be reached.
    #[response(status = 502)]
    Down(ErrorText<'static>),
    /// The control plane answered with this error status.
    #[response(status = "default")]
    Other(ErrorText<'static>),
}
