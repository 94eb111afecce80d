//! The push server: the protocol that documented servers speak.
//!
//! `GET /health` is open; everything else needs the key in `X-MEMBRIDGE-AGENT`.

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
use secrecy::ExposeSecret;
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

use super::command::output;
use super::push_response::{PushResponse, refuse};
use super::{Agent, connections, home, machine, repositories, task};
use bloom_api::answers::Renewed;
use bloom_api::requests::Heartbeat;
use bloom_api::values::Id;
use bloom_core::worker::WorkerStatus;

/// A prompt of 1 MiB and what is around it.
const MAX_BODY: usize = 4 << 20;
const MAX_DRAINED: usize = 32 << 20;
/// For a body, and for the turn to send it.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests with a body under way: what they hold in memory is limited by this.
const MAX_REQUESTS: usize = 16;
/// Of them, updates and clones.
const MAX_COMMANDS: usize = 4;
const UPDATE_LIMIT: Duration = Duration::from_secs(300);

/// What the calls to the push server share.
#[derive(Clone)]
struct Context {
    agent: Arc<Agent>,
    requests: Arc<Semaphore>,
    commands: Arc<Semaphore>,
}

pub(super) async fn serve(agent: Arc<Agent>, listener: TcpListener, stopped: CancellationToken) {
    let context = Context {
        agent: agent.clone(),
        requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
        commands: Arc::new(Semaphore::new(MAX_COMMANDS)),
    };
    let commands = Router::new()
        .route("/self-update", post(self_update))
        .route("/clone", post(repositories::clone))
        .route_layer(middleware::from_fn_with_state(context.clone(), limit_commands));
    let guarded = Router::new()
        .route("/execute-task", post(execute_task))
        .route("/restart", post(restart))
        .route("/uninstall", post(uninstall))
        .merge(commands)
        .route_layer(middleware::from_fn_with_state(context, guard));
    // The guard has limited the body.
    let router = Router::new().route("/health", get(health)).merge(guarded).layer(DefaultBodyLimit::disable()).with_state(agent);
    connections::serve(listener, router, stopped).await;
}

/// The key is compared in constant time, before the body is read. The body is read before any handler waits for it.
async fn guard(State(context): State<Context>, request: Request, next: Next) -> Response {
    let given = request.headers().get("x-membridge-agent").map(|value| Sha256::digest(value.as_bytes()));
    let push_server = context.agent.settings.push_server.as_ref();
    let wanted = push_server.map(|push_server| Sha256::digest(push_server.key.expose_secret().as_bytes()));
    if !given.zip(wanted).is_some_and(|(given, wanted)| bool::from(given.as_slice().ct_eq(wanted.as_slice()))) {
        return refuse(StatusCode::UNAUTHORIZED, "Unauthorized").into_response();
    }
    // It waits for its turn: a refusal of a dispatched task is its end.
    let Ok(Ok(_turn)) = timeout(BODY_TIMEOUT, context.requests.acquire()).await else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "This agent has too many requests under way, try again").into_response();
    };
    let (head, body) = request.into_parts();
    match timeout(BODY_TIMEOUT, gather(body)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, body.into())).await,
        Ok(Err(refusal)) => refusal.into_response(),
        Err(_) => refuse(StatusCode::REQUEST_TIMEOUT, "The request's body did not arrive in time").into_response(),
    }
}

/// What is too long is read on for a while and dropped, so that the caller, still sending, gets to see the answer.
async fn gather(body: Body) -> Result<Vec<u8>, PushResponse> {
    let mut pieces = body.into_data_stream();
    let (mut whole, mut length) = (Vec::new(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| refuse(StatusCode::BAD_REQUEST, "The request's body could not be read"))?;
        length += piece.len();
        if length <= MAX_BODY {
            whole.extend_from_slice(&piece);
        } else if length > MAX_DRAINED {
            break;
        }
    }
    match length <= MAX_BODY {
        true => Ok(whole),
        false => Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, &format!("The body is too large: at most {MAX_BODY} bytes are taken"))),
    }
}

/// These take minutes, and must leave room for tasks.
async fn limit_commands(State(context): State<Context>, request: Request, next: Next) -> Response {
    match context.commands.try_acquire() {
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
        "os_info": machine::os_info(),
        "capabilities": agent.capabilities(agent.settings.profiles.slugs()),
        "ip_addrs": machine::addresses(agent.client.server()).await,
        "active_runs": agent.lock().len(),
    }))
}

/// What is read of a push. The task itself comes from the server, with its lease.
#[derive(Deserialize)]
struct Pushed {
    task_id: Uuid,
    lease_id: Option<Uuid>,
}

/// Takes a pushed task, and answers before it has run. The push only says where to look: what is run is what our own server has, so
/// nobody else can have anything run here.
async fn execute_task(State(agent): State<Arc<Agent>>, body: Result<Json<Pushed>, JsonRejection>) -> PushResponse {
    let pushed = match body {
        Ok(Json(pushed)) => pushed,
        Err(rejection) => return refuse(rejection.status(), &rejection.body_text()),
    };
    if agent.draining.load(Ordering::Relaxed) || agent.drained_since().is_some() || agent.offer().status != WorkerStatus::Online {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "This agent takes no new tasks: it is draining");
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
    let (lease, task) = match task::taken(lease, task) {
        Ok(taken) => taken,
        Err(wrong) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, &format!("This agent can't run the task: {wrong}")),
    };
    if agent.settings.profiles.of(&task.agent_slug).is_none() {
        return refuse(StatusCode::UNPROCESSABLE_ENTITY, &format!("This agent has no profile for {}", task.agent_slug));
    }
    if agent.is_closed_for(&task.agent_slug) {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "The account of this agent is out of quota, or its credentials were refused");
    }
    let lease_id = lease.id;
    if !agent.accept(lease, task) {
        return refuse(StatusCode::INSUFFICIENT_STORAGE, "The task can't be stored on this machine's disk");
    }
    (StatusCode::ACCEPTED, Json(json!({"status": "accepted", "task_id": pushed.task_id, "lease_id": lease_id, "worker_id": agent.name})))
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
