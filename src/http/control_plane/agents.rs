//! Health, agents, and the heartbeats of nodes.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::fields::Fields;
use super::guard::Caller;
use super::{ControlPlane, seconds};
use crate::messages::answer::{ok, typed};
use crate::routes::probes;
use bloom_core::Ms;
use bloom_core::control_plane::Agent;
use bloom_core::limits;
use bloom_core::op;
use bloom_core::worker::WorkerStatus;

/// Room for all agent slugs that a worker may name, and some more.
const CAPABILITIES_BYTES: usize = limits::WORKER_AGENTS_BYTES + (4 << 10);
const STATUSES: &str = "online, offline, syncing, error, unknown";
/// Fields that an agent may send about itself besides the documented ones, with the limits of their lengths.
const DETAILS: [(&str, usize); 4] = [
    ("agent_version", limits::AGENT_VERSION_CHARS),
    ("os_info", limits::OS_INFO_CHARS),
    ("install_method", limits::INSTALL_METHOD_CHARS),
    // An agent recognizes its own registration by this field.
    ("instance", limits::INSTALL_METHOD_CHARS),
];

type Answer = Result<Response, Failure>;

pub(crate) async fn health(State(plane): State<ControlPlane>) -> Answer {
    let counts = plane.store.control_plane_counts().await?;
    Ok(ok(&json!({
        "status": "ok",
        "service": "membridge-control-plane",
        "version": env!("CARGO_PKG_VERSION"),
        "projects": counts.projects,
        "agents": counts.agents,
    }))?)
}

pub(crate) async fn alive() -> Answer {
    Ok(ok(&json!({ "status": "ok" }))?)
}

pub(crate) async fn ready(State(plane): State<ControlPlane>) -> Answer {
    probes::check(&plane.store, &plane.shutdown).await?;
    Ok(ok(&json!({ "status": "ready" }))?)
}

pub(crate) async fn metrics(State(plane): State<ControlPlane>) -> Response {
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    typed(StatusCode::OK, text, plane.metrics.render().into())
}

pub(crate) async fn list(State(plane): State<ControlPlane>) -> Answer {
    let now = plane.store.now().await?;
    let agents = plane.store.agents().await?;
    Ok(ok(&agents.iter().map(|agent| shown(agent, now)).collect::<Vec<_>>())?)
}

fn shown(agent: &Agent, now: Ms) -> Value {
    let object = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let mut shown = json!({
        "name": agent.name,
        "url": agent.url,
        "status": agent.shown_status(now),
        "capabilities": object(&agent.capabilities),
        "registered_at": seconds(agent.registered_at),
        "last_seen": agent.last_seen.map(seconds),
        "ip_addrs": agent.ip_addrs,
        "obs_count": agent.obs_count,
        "db_sha": agent.db_sha,
    });
    if let Value::Object(fields) = &mut shown {
        fields.extend(object(&agent.details));
    }
    shown
}

pub(crate) async fn register(State(plane): State<ControlPlane>, caller: Caller, body: Bytes) -> Answer {
    let mut fields = Fields::of(&body)?;
    let name = fields.name("name", limits::NAME_CHARS);
    let url = fields.url("url", limits::URL_CHARS);
    let status = fields.one_of("status", STATUSES, WorkerStatus::parse).unwrap_or(WorkerStatus::Online);
    let capabilities = fields.object("capabilities", CAPABILITIES_BYTES).unwrap_or_default();
    let ip_addrs = fields.texts("ip_addrs", limits::IP_ADDRS, limits::IP_ADDR_CHARS).unwrap_or_default();
    let details: Map<String, Value> =
        DETAILS.iter().filter_map(|(name, chars)| Some(((*name).to_owned(), fields.text(name, 0..=*chars)?.into()))).collect();
    fields.check()?;
    let is_repeatable = details.contains_key("instance");
    let agent = Agent {
        name,
        url,
        status,
        capabilities: Value::Object(capabilities).to_string(),
        details: Value::Object(details).to_string(),
        obs_count: 0,
        db_sha: String::new(),
        ip_addrs,
        registered_at: 0,
        last_seen: None,
    };
    let agent = plane.engine.writers.submit(caller.command(op::RegisterAgent { agent, is_repeatable })).await?;
    // An agent that was seen before only repeats its registration.
    if agent.last_seen.is_none() {
        tracing::info!(agent = agent.name, url = agent.url, "an agent was registered at the control plane");
    }
    Ok(crate::messages::answer::json(StatusCode::CREATED, &shown(&agent, agent.registered_at))?)
}

pub(crate) async fn remove(State(plane): State<ControlPlane>, caller: Caller, Path(name): Path<String>) -> Answer {
    plane.engine.writers.submit(caller.command(op::RemoveAgent { name: name.clone() })).await?;
    tracing::info!(agent = name, "an agent was removed from the control plane");
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) async fn heartbeat(State(plane): State<ControlPlane>, caller: Caller, body: Bytes) -> Answer {
    let mut fields = Fields::of(&body)?;
    let node_id = fields.name("node_id", limits::NAME_CHARS);
    let canonical_id = fields.name("canonical_id", limits::CANONICAL_ID_CHARS);
    let obs_count = fields.whole("obs_count", 0..=limits::MAX_SAFE);
    let db_sha = fields.text("db_sha", 0..=limits::DB_SHA_CHARS);
    let ip_addrs = fields.texts("ip_addrs", limits::IP_ADDRS, limits::IP_ADDR_CHARS);
    let project_id = fields.text("project_id", 0..=limits::PROJECT_NAME_CHARS);
    fields.check()?;
    // A node may send the name of its project. Any other text is an id from another system.
    let named = project_id.as_ref().filter(|name| bloom_api::projects::canonical_id(name) == canonical_id);
    let name = named.unwrap_or(&canonical_id).clone();
    let heartbeat = op::RecordNode { canonical_id: canonical_id.clone(), name, node_id, obs_count, db_sha, ip_addrs, project_id };
    let role = plane.engine.writers.submit(caller.command(heartbeat)).await?;
    Ok(ok(&json!({ "ok": true, "role": role, "canonical_id": canonical_id }))?)
}
