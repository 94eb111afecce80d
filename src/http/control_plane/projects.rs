//! Projects, their nodes, and who leads them.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::failure::Failure;
use super::fields::Fields;
use super::guard::Caller;
use super::{ControlPlane, seconds};
use crate::messages::answer::{self, ok};
use bloom_api::projects::canonical_id;
use bloom_core::Ms;
use bloom_core::command::Rejection;
use bloom_core::control_plane::{MemoryVersion, Node, Project};
use bloom_core::limits;
use bloom_core::op;

/// The longest lease of a leader: 31 days.
const LEASE_SECONDS: i64 = 31 * 86_400;
const DEFAULT_LEASE_SECONDS: i64 = 3_600;

type Answer = Result<Response, Failure>;

pub(crate) async fn list(State(plane): State<ControlPlane>) -> Answer {
    let now = plane.store.now().await?;
    let projects = plane.store.memory_projects().await?;
    let listed = projects.iter().map(|(project, nodes, stored_at)| {
        let mut listed = shown(project, *nodes);
        listed["preferred_primary"] = json!(project.primary(now));
        listed["memory_version"] = json!(project.memory_version);
        listed["memory_stored_at"] = json!(stored_at.map(seconds));
        listed
    });
    Ok(ok(&listed.collect::<Vec<_>>())?)
}

fn shown(project: &Project, nodes: i64) -> Value {
    json!({
        "name": project.name,
        "canonical_id": project.canonical_id,
        "created_at": seconds(project.created_at),
        "last_seen": project.last_seen.map(seconds),
        "nodes_count": nodes,
        "source": project.source,
    })
}

pub(crate) async fn register(State(plane): State<ControlPlane>, caller: Caller, body: Bytes) -> Answer {
    let mut fields = Fields::of(&body)?;
    let name = fields.name("name", limits::PROJECT_NAME_CHARS);
    fields.check()?;
    let canonical_id = canonical_id(&name);
    let added = plane.engine.writers.submit(caller.command(op::RegisterProject { name, canonical_id })).await?;
    tracing::info!(
        project = added.project.name,
        canonical_id = added.project.canonical_id,
        "a project was registered at the control plane"
    );
    Ok(answer::json(StatusCode::CREATED, &shown(&added.project, added.node_count))?)
}

pub(crate) async fn remove(State(plane): State<ControlPlane>, caller: Caller, Path(project): Path<String>) -> Answer {
    plane.engine.writers.submit(caller.command(op::RemoveProject { project: project.clone() })).await?;
    tracing::info!(project, "a project was removed from the control plane, with its memory");
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn shown_node(node: &Node, project: &Project, now: Ms) -> Value {
    json!({
        "node_id": node.node_id,
        "canonical_id": node.canonical_id,
        "role": project.role(&node.node_id, now),
        "obs_count": node.obs_count,
        "db_sha": node.db_sha,
        "last_seen": seconds(node.last_seen),
        "ip_addrs": node.ip_addrs,
        "registered_at": seconds(node.registered_at),
        "project_id": node.project_id,
    })
}

/// The project in the path, its nodes as JSON, and the time at which they have their roles.
async fn with_nodes(plane: &ControlPlane, canonical_id: &str) -> Result<(Project, Vec<Value>, Ms), Failure> {
    let project = plane.store.memory_project(canonical_id).await?.ok_or(Rejection::ProjectNotFound)?;
    let nodes = plane.store.nodes_of(canonical_id).await?;
    let now = plane.store.now().await?;
    let shown = nodes.iter().map(|node| shown_node(node, &project, now)).collect();
    Ok((project, shown, now))
}

pub(crate) async fn nodes(State(plane): State<ControlPlane>, Path(project): Path<String>) -> Answer {
    let (_, nodes, _) = with_nodes(&plane, &project).await?;
    Ok(ok(&nodes)?)
}

fn shown_version(version: &MemoryVersion) -> Value {
    json!({
        "version": version.version,
        "node_id": version.node_id,
        "term": version.term,
        "sha256": version.sha256,
        "size": version.bytes,
        "created_at": seconds(version.created_at),
    })
}

pub(crate) async fn leadership(State(plane): State<ControlPlane>, Path(project): Path<String>) -> Answer {
    let (project, nodes, now) = with_nodes(&plane, &project).await?;
    let versions = plane.store.memory_versions(&project.canonical_id).await?;
    Ok(ok(&json!({
        "canonical_id": project.canonical_id,
        "preferred_primary": project.primary(now),
        "node_count": nodes.len(),
        "nodes": nodes,
        "term": project.term,
        "lease_expires_at": project.primary(now).and(project.lease_until).map(seconds),
        "memory_version": project.memory_version,
        "memory_versions": versions.iter().map(shown_version).collect::<Vec<_>>(),
    }))?)
}

pub(crate) async fn select(State(plane): State<ControlPlane>, caller: Caller, Path(project): Path<String>, body: Bytes) -> Answer {
    let mut fields = Fields::of(&body)?;
    let node_id = fields.name("primary_node_id", limits::NAME_CHARS);
    let lease_seconds = fields.whole("lease_seconds", 1..=LEASE_SECONDS).unwrap_or(DEFAULT_LEASE_SECONDS);
    let term = fields.whole("term", 0..=limits::MAX_SAFE);
    fields.check()?;
    let selection = op::SelectLeader { canonical_id: project, node_id: node_id.clone(), lease_ms: lease_seconds * 1000, term };
    let project = plane.engine.writers.submit(caller.command(selection)).await?.project;
    tracing::info!(canonical_id = project.canonical_id, leader = node_id, term = project.term, "a leader was selected");
    Ok(ok(&json!({
        "ok": true,
        "canonical_id": project.canonical_id,
        "primary_node_id": node_id,
        "lease_seconds": lease_seconds,
        "detail": format!("{node_id} leads for {lease_seconds} s, in term {}", project.term),
        "term": project.term,
    }))?)
}
