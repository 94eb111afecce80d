//! The push server: the HTTP protocol by which servers push tasks to this agent.
//!
//! `GET /health` needs no key; everything else needs the key in `X-MEMBRIDGE-AGENT`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Agent;
use crate::git::repositories;
use crate::home;
use crate::machine::command::output;
use crate::machine::host_info;
use crate::membridge::memory;
use crate::push::connections;
use crate::push::response::{PushResponse, refuse};
use crate::run::task;
use bloom_api::answers::Renewed;
use bloom_api::requests::Heartbeat;
use bloom_api::values::Id;
use bloom_core::control_plane::MAX_MEMORY_BYTES;

/// The settings of the push server.
#[derive(Clone, Debug)]
pub struct PushServer {
    /// The key that callers must send as X-MEMBRIDGE-AGENT.
    pub key: SecretString,
    /// The URL at which servers reach the push server.
    pub url: String,
    /// Whether the agent takes only pushed tasks and does not claim any.
    pub push_only: bool,
    /// The shell command that `/self-update` runs.
    pub update_command: Option<String>,
}

/// Enough for a prompt of 1 MiB and the other fields.
const MAX_BODY: usize = 4 << 20;
/// A snapshot of a memory as base64, with its other fields.
const MAX_MEMORY_BODY: usize = MAX_MEMORY_BYTES / 3 * 4 + (64 << 10);
/// The maximum number of concurrent requests about memories, each of which is in memory as a whole.
const MAX_MEMORY_REQUESTS: usize = 2;
const MEMORY_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_DRAINED: usize = 32 << 20;
/// The time limit for reading a body, and before that for waiting until it may be read.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of concurrent requests with a body, which limits the memory that bodies take.
const MAX_REQUESTS: usize = 16;
/// The maximum number of updates and clones among these requests.
const MAX_COMMANDS: usize = 4;
const UPDATE_LIMIT: Duration = Duration::from_secs(300);

/// The state that the middleware shares between requests.
#[derive(Clone)]
struct PushServerState {
    agent: Arc<Agent>,
    requests: Arc<Semaphore>,
    max_body: usize,
    body_timeout: Duration,
    commands: Arc<Semaphore>,
}

pub(crate) async fn serve(agent: Arc<Agent>, listener: TcpListener, stopped: CancellationToken) {
    let state = PushServerState {
        agent: agent.clone(),
        requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
        max_body: MAX_BODY,
        body_timeout: BODY_TIMEOUT,
        commands: Arc::new(Semaphore::new(MAX_COMMANDS)),
    };
    let commands = Router::new()
        .route("/self-update", post(self_update))
        .route("/clone", post(repositories::clone))
        .route_layer(middleware::from_fn_with_state(state.clone(), limit_commands));
    let guarded = Router::new()
        .route("/execute-task", post(execute_task))
        .route("/restart", post(restart))
        .route("/uninstall", post(uninstall))
        .merge(commands)
        .route_layer(middleware::from_fn_with_state(state.clone(), guard));
    let of_memories = PushServerState {
        requests: Arc::new(Semaphore::new(MAX_MEMORY_REQUESTS)),
        max_body: MAX_MEMORY_BODY,
        body_timeout: MEMORY_TIMEOUT,
        ..state
    };
    let memories = Router::new()
        .route("/memory/{project}", get(memory::fetch).put(memory::deliver))
        .route_layer(middleware::from_fn_with_state(of_memories, guard));
    // `guard` has limited the body already.
    let router =
        Router::new().route("/health", get(health)).merge(guarded).merge(memories).layer(DefaultBodyLimit::disable()).with_state(agent);
    connections::serve(listener, router, stopped).await;
}

/// Compares the key in constant time, and only then reads the body: nobody without the key can make the agent read one. Handlers do not
/// wait for the body.
async fn guard(State(state): State<PushServerState>, request: Request, next: Next) -> Response {
    let given = request.headers().get("x-membridge-agent").map(|value| Sha256::digest(value.as_bytes()));
    let push_server = state.agent.settings.push_server.as_ref();
    let wanted = push_server.map(|push_server| Sha256::digest(push_server.key.expose_secret().as_bytes()));
    if !given.zip(wanted).is_some_and(|(given, wanted)| bool::from(given.as_slice().ct_eq(wanted.as_slice()))) {
        return refuse(StatusCode::UNAUTHORIZED, "Unauthorized").into_response();
    }
    // The request waits for its turn, because a refused push would end the task's lease.
    let Ok(Ok(_turn)) = timeout(state.body_timeout, state.requests.acquire()).await else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "This agent has too many requests under way, try again").into_response();
    };
    let (head, body) = request.into_parts();
    match timeout(state.body_timeout, gather(body, state.max_body)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, body.into())).await,
        Ok(Err(refusal)) => refusal.into_response(),
        Err(_) => refuse(StatusCode::REQUEST_TIMEOUT, "The request's body did not arrive in time").into_response(),
    }
}

/// Reads the body. If it is too long, the rest is read up to a limit and dropped, so that a caller that is still sending sees the answer.
async fn gather(body: Body, most: usize) -> Result<Vec<u8>, PushResponse> {
    let mut pieces = body.into_data_stream();
    let (mut whole, mut length) = (Vec::new(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| refuse(StatusCode::BAD_REQUEST, "The request's body could not be read"))?;
        length += piece.len();
        if length <= most {
            whole.extend_from_slice(&piece);
        } else if length > MAX_DRAINED {
            break;
        }
    }
    match length <= most {
        true => Ok(whole),
        false => Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, &format!("The body is too large: at most {most} bytes are taken"))),
    }
}

/// Updates and clones take minutes, so they must not use up the concurrent requests.
async fn limit_commands(State(state): State<PushServerState>, request: Request, next: Next) -> Response {
    match state.commands.try_acquire() {
        Ok(_turn) => next.run(request).await,
        Err(_) => {
            refuse(StatusCode::SERVICE_UNAVAILABLE, "This agent runs too many updates and clones at once, try again later").into_response()
        }
    }
}

async fn health(State(agent): State<Arc<Agent>>) -> Json<Value> {
    Json(json!({
        "status": "ok",
        "service": "membridge-agent",
        "version": env!("CARGO_PKG_VERSION"),
        "hostname": home::hostname(),
        "node_id": agent.name,
        "worker_status": agent.offer().status,
        "os_info": host_info::os_info(),
        "capabilities": agent.capabilities(agent.settings.profiles.slugs()),
        "ip_addrs": host_info::addresses(agent.client.server()).await,
        "active_runs": agent.lock().len(),
    }))
}

/// The fields of a push that the agent reads. The task itself comes from the server, with its lease.
#[derive(Deserialize)]
struct Pushed {
    task_id: Uuid,
    lease_id: Option<Uuid>,
}

/// Accepts a pushed task, and answers before it has run. The push is only a hint: the task is read from the agent's own server, so nobody
/// else can run anything here.
async fn execute_task(State(agent): State<Arc<Agent>>, body: Result<Json<Pushed>, JsonRejection>) -> PushResponse {
    let pushed = match body {
        Ok(Json(pushed)) => pushed,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text()),
    };
    if agent.draining.load(Ordering::Relaxed) || agent.drained_since().is_some() {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "This agent takes no new tasks: it is draining");
    }
    if agent.is_disk_paused() {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "This agent takes no new tasks: its directory could not be written a moment ago");
    }
    let path = format!("api/runtime/llm-tasks/{}/heartbeat", pushed.task_id);
    let sign = Heartbeat { lease_id: pushed.lease_id.map(Id), worker_id: Some(agent.name.as_str().into()), with_task: true };
    let Renewed { lease, task, .. } = match agent.client.post(&path, &sign).await {
        Ok(renewed) => renewed,
        Err(error) => return refuse(StatusCode::CONFLICT, &format!("The server does not confirm this push: {error}")),
    };
    let Some(task) = task else {
        return refuse(StatusCode::CONFLICT, "The server is older than this agent and does not send it pushed tasks: update the server");
    };
    let is_pushed = task.id == pushed.task_id && lease.task_id == pushed.task_id && pushed.lease_id.is_none_or(|id| id == lease.id);
    if !is_pushed || lease.worker_id != agent.name {
        return refuse(StatusCode::CONFLICT, "The server confirmed another task or lease than the one that was pushed");
    }
    let (lease, task) = match task::taken(&lease, &task) {
        Ok(taken) => taken,
        Err(wrong) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, &format!("This agent can't run the task: {wrong}")),
    };
    if agent.settings.profiles.of(&task.agent_slug).is_none() {
        return refuse(StatusCode::UNPROCESSABLE_ENTITY, &format!("This agent has no profile for {}", task.agent_slug));
    }
    if agent.is_closed_for(&task.agent_slug) {
        return refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "The account or the profile of this task is paused: its quota, its credentials, or runs that do not start",
        );
    }
    let lease_id = lease.id;
    if !agent.accept(lease, task) {
        return refuse(StatusCode::INSUFFICIENT_STORAGE, "The task can't be stored on this machine's disk");
    }
    (StatusCode::ACCEPTED, Json(json!({"status": "accepted", "task_id": pushed.task_id, "lease_id": lease_id, "worker_id": agent.name})))
}

/// Restarts the program in the same process; runs continue.
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
    // Spawned, so that the update is not cancelled when the caller disconnects.
    let updated = tokio::spawn(output(shell, UPDATE_LIMIT)).await.unwrap_or_else(|error| Err(error.to_string()));
    match updated {
        Ok(said) => {
            agent.restart.cancel();
            (StatusCode::OK, Json(json!({"status": "updated", "previous_version": env!("CARGO_PKG_VERSION"), "output": said})))
        }
        Err(why) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &format!("the update failed: {why}")),
    }
}

/// Hands back all tasks and ends permanently, with status 0, so that a supervisor does not start the agent again.
async fn uninstall(State(agent): State<Arc<Agent>>) -> PushResponse {
    agent.leave.cancel();
    (StatusCode::OK, Json(json!({"status": "uninstalling", "active_runs": agent.lock().len()})))
}
