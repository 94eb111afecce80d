//! What the agent reads and sends of the API: only the fields that it needs, so that a newer server does not disturb it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use bloom_core::Ms;
use bloom_core::task::{EventKind, Format, Outcome, Reason, Session};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Task {
    pub id: Uuid,
    pub context_id: String,
    pub agent_slug: String,
    pub prompt: String,
    #[serde(default)]
    pub context_hints: Vec<String>,
    pub policy: Policy,
    pub desired_format: Format,
    #[serde(default = "context")]
    pub session: Session,
    #[serde(default)]
    pub model: Option<String>,
}

fn context() -> Session {
    Session::Context
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Policy {
    /// From the process's start.
    pub timeout_sec: u64,
    /// US dollars; 0 = no cap.
    #[serde(default)]
    pub budget: f64,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Lease {
    pub id: Uuid,
    pub ttl_seconds: u64,
}

#[derive(Debug, Serialize)]
pub struct Claim<'a> {
    pub max: u32,
    pub wait_sec: u64,
    pub held: &'a [Uuid],
}

#[derive(Debug, Deserialize)]
pub struct Claimed {
    pub leases: Vec<ClaimedLease>,
    pub directives: Directives,
}

#[derive(Debug, Deserialize)]
pub struct ClaimedLease {
    pub lease: Lease,
    pub task: Task,
}

#[derive(Debug, Default, Deserialize)]
pub struct Directives {
    pub cancel: Vec<Uuid>,
    pub drain: bool,
}

#[derive(Debug, Serialize)]
pub struct Heartbeat<'a> {
    pub leases: &'a [Uuid],
}

#[derive(Debug, Deserialize)]
pub struct Renewed {
    pub renewed: Vec<Uuid>,
    pub lost: Vec<Uuid>,
    pub directives: Directives,
}

/// The sign of life for a task that was pushed: it tells which lease that is.
#[derive(Debug, Serialize)]
pub struct Sign<'a> {
    pub worker_id: &'a str,
}

#[derive(Debug, Deserialize)]
pub struct Signed {
    pub lease: Lease,
}

/// A registration. What is absent keeps its value.
#[derive(Clone, Debug, Serialize)]
pub struct Registration {
    pub name: String,
    pub status: &'static str,
    pub capabilities: Capabilities,
    pub agent_version: &'static str,
    pub os_info: String,
    pub ip_addrs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    pub dispatch: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub struct Capabilities {
    pub claude_cli: bool,
    pub max_concurrency: u32,
    pub labels: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<String>>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Event {
    pub seq: u64,
    pub kind: EventKind,
    pub at: Ms,
    pub data: serde_json::Value,
}

#[derive(Debug, Serialize)]
pub struct Events<'a> {
    pub lease_id: Uuid,
    pub events: &'a [Event],
}

/// How a run ended, as `POST llm-tasks/:id/complete` takes it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Completion {
    pub lease_id: Uuid,
    pub status: Outcome,
    pub output: Option<String>,
    pub error_message: Option<String>,
    pub metrics: Metrics,
    pub artifact_tags: Vec<String>,
    pub reason: Option<Reason>,
    pub retryable: bool,
    pub retry_at: Option<Ms>,
    pub keep_attempt: bool,
    pub usage: Option<Usage>,
    pub session_id: Option<String>,
    pub model: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Completions<'a> {
    pub completions: [TaskCompletion<'a>; 1],
}

#[derive(Debug, Serialize)]
pub struct TaskCompletion<'a> {
    pub task_id: Uuid,
    #[serde(flatten)]
    pub completion: &'a Completion,
}

#[derive(Debug, Deserialize)]
pub struct Completed {
    pub results: Vec<OneCompleted>,
}

#[derive(Debug, Deserialize)]
pub struct OneCompleted {
    pub status: u16,
    #[serde(default)]
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Metrics {
    pub duration_ms: u64,
    pub tokens_used: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// US dollars.
    pub cost_usd: f64,
}

#[derive(Debug, Serialize)]
pub struct Release<'a> {
    pub lease_id: Uuid,
    pub reason: &'a str,
}
