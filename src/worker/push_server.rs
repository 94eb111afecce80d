//! The push server: the protocol that documented servers speak.
//!
//! `GET /health` is open; everything else needs the key in `X-MEMBRIDGE-AGENT`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::task::{Lease, Task};
use super::{Agent, home, machine, run, stream};
use bloom_api::agents::PushedTask;
use bloom_api::answers::Renewed;
use bloom_api::requests::Heartbeat;
use bloom_core::worker::WorkerStatus;

/// A prompt of 1 MiB and what is around it.
const MAX_BODY: usize = 4 << 20;
const UPDATE_LIMIT: Duration = Duration::from_secs(300);
const CLONE_LIMIT: Duration = Duration::from_secs(600);
const MAX_NAME: usize = 256;

type PushResponse = (StatusCode, Json<Value>);

pub(super) async fn serve(agent: Arc<Agent>, listener: TcpListener, stopped: CancellationToken) {
    let guarded = Router::new()
        .route("/execute-task", post(execute_task))
        .route("/self-update", post(self_update))
        .route("/restart", post(restart))
        .route("/uninstall", post(uninstall))
        .route("/clone", post(clone))
        .route_layer(middleware::from_fn_with_state(agent.clone(), guard));
    let router = Router::new().route("/health", get(health)).merge(guarded);
    let router = router.layer(DefaultBodyLimit::max(MAX_BODY)).with_state(agent);
    let served = axum::serve(listener, router).with_graceful_shutdown(async move { stopped.cancelled().await });
    if let Err(error) = served.await {
        tracing::error!(%error, "the push server has stopped");
    }
}

/// Before the body is read: the key, compared in constant time.
async fn guard(State(agent): State<Arc<Agent>>, request: Request, next: Next) -> Response {
    let given = request.headers().get("x-membridge-agent").map(|value| Sha256::digest(value.as_bytes()));
    let wanted = agent.settings.push_server.as_ref().map(|push_server| Sha256::digest(push_server.key.expose_secret().as_bytes()));
    let is_right = given.zip(wanted).is_some_and(|(given, wanted)| bool::from(given.as_slice().ct_eq(wanted.as_slice())));
    if is_right { next.run(request).await } else { refuse(StatusCode::UNAUTHORIZED, "Unauthorized").into_response() }
}

fn refuse(status: StatusCode, why: &str) -> PushResponse {
    (status, Json(json!({"error": why})))
}

async fn health(State(agent): State<Arc<Agent>>) -> Json<Value> {
    Json(json!({
        "status": "ok",
        "service": "membridge-agent",
        "version": env!("CARGO_PKG_VERSION"),
        "hostname": home::hostname(),
        "node_id": agent.name,
        "worker_status": agent.offer().status,
        "os_info": machine::os_info(),
        "capabilities": agent.capabilities(agent.settings.profiles.slugs()),
        "ip_addrs": machine::addresses(agent.client.server()).await,
        "active_runs": agent.lock().len(),
    }))
}

#[derive(Deserialize)]
struct Pushed {
    task_id: Uuid,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// Takes a pushed task: asks our own server which lease that is (so a stranger's push starts nothing), and answers before it has run.
async fn execute_task(State(agent): State<Arc<Agent>>, body: Result<Json<Pushed>, JsonRejection>) -> PushResponse {
    let pushed = match body {
        Ok(Json(pushed)) => pushed,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text()),
    };
    let mut task = Value::Object(pushed.rest);
    task["task_id"] = json!(pushed.task_id);
    let task: Task = match PushedTask::deserialize(task) {
        Ok(task) => task.into(),
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    if agent.draining.load(Ordering::Relaxed) || agent.drained_since().is_some() || agent.offer().status != WorkerStatus::Online {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "This agent takes no new tasks: it is draining");
    }
    if agent.settings.profiles.of(&task.agent_slug).is_none() {
        return refuse(StatusCode::UNPROCESSABLE_ENTITY, &format!("This agent has no profile for {}", task.agent_slug));
    }
    if agent.is_closed_for(&task.agent_slug) {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "The account of this agent is out of quota, or its credentials were refused");
    }
    let path = format!("api/runtime/llm-tasks/{}/heartbeat", task.id);
    let sign = Heartbeat { lease_id: None, worker_id: Some(agent.name.as_str().into()) };
    let lease = match agent.client.post::<Renewed>(&path, &sign).await {
        Ok(renewed) => Lease::from(renewed.lease),
        Err(error) => return refuse(StatusCode::CONFLICT, &format!("The server does not confirm this push: {error}")),
    };
    if !agent.accept(lease, task) {
        return refuse(StatusCode::INSUFFICIENT_STORAGE, "The task can't be stored on this machine's disk");
    }
    (StatusCode::ACCEPTED, Json(json!({"status": "accepted", "task_id": pushed.task_id, "lease_id": lease.id, "worker_id": agent.name})))
}

/// The program goes on as a new process of itself; runs are not disturbed.
async fn restart(State(agent): State<Arc<Agent>>) -> PushResponse {
    agent.restart.cancel();
    (StatusCode::OK, Json(json!({"status": "restarting"})))
}

async fn self_update(State(agent): State<Arc<Agent>>) -> PushResponse {
    let Some(command) = agent.settings.push_server.as_ref().and_then(|push_server| push_server.update_command.clone()) else {
        return refuse(StatusCode::NOT_IMPLEMENTED, "This agent has no update command: start it with --update-command");
    };
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command);
    // A caller that goes away must not end it in the middle.
    let updated = tokio::spawn(output(shell, UPDATE_LIMIT)).await.unwrap_or_else(|error| Err(error.to_string()));
    match updated {
        Ok(said) => {
            agent.restart.cancel();
            (StatusCode::OK, Json(json!({"status": "updated", "previous_version": env!("CARGO_PKG_VERSION"), "output": said})))
        }
        Err(why) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &format!("the update failed: {why}")),
    }
}

/// Hands back what it runs, and ends for good: with status 0, so that a supervisor leaves it at that.
async fn uninstall(State(agent): State<Arc<Agent>>) -> PushResponse {
    agent.leave.cancel();
    (StatusCode::OK, Json(json!({"status": "uninstalling", "active_runs": agent.lock().len()})))
}

#[derive(Deserialize)]
struct Clone {
    repo_url: String,
    project_name: String,
    target_path: Option<String>,
}

/// Clones a repository below the work directory.
async fn clone(State(agent): State<Arc<Agent>>, body: Result<Json<Clone>, JsonRejection>) -> PushResponse {
    let wanted = match body {
        Ok(Json(wanted)) => wanted,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text()),
    };
    if !(wanted.repo_url.starts_with("https://") || wanted.repo_url.starts_with("git@")) {
        return refuse(StatusCode::BAD_REQUEST, "repo_url must begin with https:// or git@");
    }
    let place = wanted.target_path.as_deref().unwrap_or(&wanted.project_name);
    let is_name =
        |part: &str| !part.starts_with('.') && !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || " ._-".contains(c));
    if place.len() > MAX_NAME || !place.split('/').all(is_name) {
        return refuse(
            StatusCode::BAD_REQUEST,
            "project_name and target_path must be a path below the work directory, of letters, digits, space . _ - and /",
        );
    }
    let target = agent.home.root().join("projects").join(place);
    let cloned = tokio::spawn(clone_to(wanted.repo_url, target)).await;
    cloned.unwrap_or_else(|error| refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))
}

/// Clones beside the place and moves it there when it is whole.
async fn clone_to(repo_url: String, target: PathBuf) -> PushResponse {
    if target.exists() {
        return refuse(StatusCode::CONFLICT, "The target already exists");
    }
    let part = target.with_file_name(format!(".clone-{}", Uuid::now_v7()));
    if let Err(error) = part.parent().map_or(Ok(()), home::private_dir) {
        return refuse(StatusCode::INSUFFICIENT_STORAGE, &format!("the directory can't be created: {error}"));
    }
    let mut git = Command::new("git");
    // Nobody is there to be asked for a password.
    git.env("GIT_TERMINAL_PROMPT", "0").args(["clone", "--quiet", "--", &repo_url]).arg(&part);
    let cloned = output(git, CLONE_LIMIT).await.map_err(|why| (StatusCode::BAD_GATEWAY, format!("git clone failed: {why}")));
    let moved = cloned.and_then(|_| std::fs::rename(&part, &target).map_err(|error| (StatusCode::CONFLICT, error.to_string())));
    match moved {
        Ok(()) => (StatusCode::OK, Json(json!({"status": "cloned", "path": target}))),
        Err((status, why)) => {
            let _ = std::fs::remove_dir_all(&part);
            refuse(status, &why)
        }
    }
}

/// What a command that should succeed says; else why it did not.
async fn output(mut command: Command, limit: Duration) -> Result<String, String> {
    run::scrub(&mut command);
    command.stdin(std::process::Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(limit, command.output()).await.map_err(|_| format!("it took longer than {} s", limit.as_secs()))?;
    let ended = ended.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| stream::cut(String::from_utf8_lossy(bytes).trim(), 2_000).to_owned();
    if ended.status.success() { Ok(text(&ended.stdout)) } else { Err(format!("{} ({})", text(&ended.stderr), ended.status)) }
}
