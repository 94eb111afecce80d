//! Answers about workers' agents, and what agents report about themselves.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::error::AnyCode;
use super::tasks::Policy;
use super::values::text_problem;
use super::words::{AnyFormat, AnySession};
use bloom_core::audit::Actor;
use bloom_core::command::WorkerChange;
use bloom_core::limits;
use bloom_core::project::{MAX_PROJECT_NAME, MAX_WORKER_PROJECTS};
use bloom_core::task::{ActiveLease, TaskSpec, TaskState};
use bloom_core::worker::{KNOWN_CAPABILITIES, MAX_CONCURRENCY, WorkerStatus, other_capabilities};

/// A task as it is pushed to an agent. Agents that know leases name `lease_id` in their calls; others name only the task.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PushedTask<'a> {
    /// The task, for calls of agents that do not name the lease.
    pub task_id: Uuid,
    /// What the agent is asked to do.
    pub prompt: Cow<'a, str>,
    /// The conversation that the task belongs to.
    pub context_id: Cow<'a, str>,
    /// The kind of agent that the task is for, which chooses the agent's profile.
    pub agent_slug: Cow<'a, str>,
    /// The form that the output must have.
    pub desired_format: AnyFormat,
    /// Files in the directory of the context, by path or glob, and other references.
    #[serde(default)]
    pub context_hints: Cow<'a, [String]>,
    /// The limits of the run, which the agent enforces.
    pub policy: Policy,
    /// The URL at which the agent reaches the server.
    pub runtime_url: Option<Cow<'a, str>>,
    /// The lease of this attempt, its fencing token. `None`: the sender names no lease.
    pub lease_id: Option<Uuid>,
    /// The worker that the task was leased to.
    pub worker_id: Option<Cow<'a, str>>,
    /// Seconds that the lease lasts without a heartbeat.
    pub ttl_seconds: Option<i64>,
    /// Whether the run continues the conversation of its context.
    pub session: AnySession,
    /// The session of the CLI that the run continues; `None` if there is none yet.
    pub session_id: Option<Cow<'a, str>>,
    /// The model to run with; `None` for that of the agent's profile.
    pub model: Option<Cow<'a, str>>,
}

impl<'a> PushedTask<'a> {
    /// The task and its lease, for the agent that runs it. `runtime_url` is where the agent reaches this server.
    pub fn new(spec: &'a TaskSpec, task: &'a TaskState, lease: &'a ActiveLease, runtime_url: &'a str) -> Self {
        Self {
            task_id: spec.id,
            prompt: (&spec.prompt).into(),
            context_id: (&spec.context_id).into(),
            agent_slug: (&spec.agent_slug).into(),
            desired_format: spec.desired_format.into(),
            context_hints: (&spec.context_hints).into(),
            policy: Policy::of(task),
            runtime_url: Some(runtime_url.into()),
            lease_id: Some(lease.id),
            worker_id: Some((&lease.worker_id).into()),
            ttl_seconds: Some(lease.ttl_ms / 1000),
            session: spec.session.into(),
            session_id: task.session_id.as_deref().map(Cow::from),
            model: spec.model.as_deref().map(Cow::from),
        }
    }
}

/// A task that was delivered to an agent.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Dispatched<'a> {
    /// Always true.
    pub dispatched: bool,
    /// The task.
    pub task_id: Uuid,
    /// The worker that it was sent to.
    pub worker_id: Cow<'a, str>,
    /// The lease that the worker has.
    pub lease_id: Uuid,
    /// The agent's answer, if it arrived in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>, required = false)]
    pub execution: Option<Cow<'a, RawValue>>,
}

/// A task that could not be delivered.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct NotDispatched<'a> {
    /// Always false.
    pub dispatched: bool,
    /// The task.
    pub task_id: Uuid,
    /// The worker that it was sent to.
    pub worker_id: Cow<'a, str>,
    /// Why it was not delivered.
    pub error: Cow<'a, str>,
    /// Always `unavailable`.
    pub code: AnyCode,
}

/// The health of an agent, or why it can't be reached. It also has the fields of the agent's answer.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct AgentHealth {
    /// Whether the agent answered.
    pub reachable: bool,
    /// Why it can't be reached; absent if it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// The fields of the agent's answer.
    #[serde(flatten)]
    #[schema(ignore)]
    answer: Map<String, Value>,
}

impl AgentHealth {
    /// The agent answered. A field `reachable` of its answer is left out.
    pub fn reachable(mut answer: Map<String, Value>) -> Self {
        answer.remove("reachable");
        Self { reachable: true, error: None, answer }
    }

    /// The agent did not answer; `error` says why.
    pub fn unreachable(error: String) -> Self {
        Self { reachable: false, error: Some(error), answer: Map::new() }
    }
}

/// An agent has carried out an order. It also has the fields of the agent's answer.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct OrderDone {
    /// `updated`, `restarted` or `uninstalled`.
    pub status: Cow<'static, str>,
    /// The fields of the agent's answer.
    #[serde(flatten)]
    #[schema(ignore)]
    answer: Map<String, Value>,
}

impl OrderDone {
    /// `status` says what the agent did. A field `status` of its own answer is left out.
    pub fn new(status: &'static str, mut answer: Map<String, Value>) -> Self {
        answer.remove("status");
        Self { status: status.into(), answer }
    }
}

/// The change of a worker that its agent's health reports. Agents have many versions, so values that a registration would refuse are
/// ignored.
pub fn change_of_health(worker: &str, answer: &Map<String, Value>) -> WorkerChange {
    let capabilities = answer.get("capabilities").and_then(Value::as_object);
    let capability = |name: &str| capabilities.and_then(|given| given.get(name));
    let status = |name: &str| answer.get(name).and_then(Value::as_str).and_then(WorkerStatus::parse);
    WorkerChange {
        id: worker.to_owned(),
        // An agent that answers is online, even if its `status` is not one of a worker, such as `ok`. `worker_status` takes precedence,
        // because a healthy agent may be unable to take tasks.
        status: status("worker_status").or_else(|| status("status")).or(Some(WorkerStatus::Online)),
        claude_cli: capability("claude_cli").and_then(Value::as_bool),
        max_concurrency: capability("max_concurrency").and_then(Value::as_i64).filter(|slots| (1..=MAX_CONCURRENCY).contains(slots)),
        labels: capability("labels").and_then(|given| texts(given, limits::WORKER_LABELS, limits::WORKER_LABEL_CHARS)),
        agents: capability("agents").and_then(|given| texts(given, limits::WORKER_AGENTS, limits::NAME_CHARS)).map(Some),
        profiles: capability("profiles").and_then(|given| texts(given, limits::WORKER_AGENTS, limits::NAME_CHARS)).map(Some),
        git: capability("git").and_then(Value::as_bool),
        projects: capability("projects").and_then(|given| texts(given, MAX_WORKER_PROJECTS, MAX_PROJECT_NAME)).map(Some),
        other_capabilities: capabilities.and_then(other).filter(|other| !other.is_empty()),
        ip_addrs: answer.get("ip_addrs").and_then(|given| texts(given, limits::IP_ADDRS, limits::IP_ADDR_CHARS)),
        agent_version: answer
            .get("agent_version")
            .or_else(|| answer.get("version"))
            .and_then(|given| text(given, limits::AGENT_VERSION_CHARS)),
        os_info: answer.get("os_info").and_then(|given| text(given, limits::OS_INFO_CHARS)),
        actor: Actor::Admin,
        ..WorkerChange::default()
    }
}

fn other(given: &Map<String, Value>) -> Option<BTreeMap<String, String>> {
    let named = given.iter().filter(|(name, value)| !KNOWN_CAPABILITIES.contains(&name.as_str()) && !value.is_null());
    other_capabilities(named.map(|(name, value)| (name.clone(), value.to_string())).collect()).ok()
}

fn text(value: &Value, most: usize) -> Option<String> {
    value.as_str().filter(|text| text_problem(text, 0, most).is_none()).map(str::to_owned)
}

fn texts(value: &Value, most: usize, chars: usize) -> Option<Vec<String>> {
    value.as_array().filter(|list| list.len() <= most)?.iter().map(|value| text(value, chars)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(answer: Value) -> WorkerChange {
        change_of_health("w", answer.as_object().unwrap())
    }

    #[test]
    fn what_is_well_formed_is_taken_over() {
        let full = change(serde_json::json!({
            "status": "ok", "version": "2.1", "os_info": "Linux", "ip_addrs": ["10.0.0.1"], "reachable": "?",
            "capabilities": { "claude_cli": false, "max_concurrency": 4, "labels": ["gpu"], "agents": ["coder"] },
        }));
        assert_eq!((full.status, full.agent_version.as_deref()), (Some(WorkerStatus::Online), Some("2.1")));
        assert_eq!((full.claude_cli, full.max_concurrency), (Some(false), Some(4)));
        assert_eq!((full.labels, full.agents), (Some(vec!["gpu".into()]), Some(Some(vec!["coder".into()]))));
        assert_eq!((full.os_info.as_deref(), full.ip_addrs), (Some("Linux"), Some(vec!["10.0.0.1".into()])));
        assert_eq!(change(serde_json::json!({ "status": "error" })).status, Some(WorkerStatus::Error));
        assert_eq!(change(serde_json::json!({ "status": "ok", "worker_status": "error" })).status, Some(WorkerStatus::Error));
    }

    #[test]
    fn what_is_not_is_passed_over() {
        let odd = change(serde_json::json!({
            "status": 7, "version": "a\u{0}", "os_info": null, "ip_addrs": [1], "capabilities": { "max_concurrency": 99, "labels": "x" },
        }));
        assert_eq!((odd.status, odd.agent_version, odd.os_info, odd.ip_addrs), (Some(WorkerStatus::Online), None, None, None));
        assert_eq!((odd.max_concurrency, odd.labels), (None, None));
        let long = change(serde_json::json!({
            "version": "v".repeat(limits::AGENT_VERSION_CHARS + 1), "os_info": "o".repeat(limits::OS_INFO_CHARS + 1),
            "ip_addrs": vec!["a"; limits::IP_ADDRS + 1], "capabilities": { "labels": ["l".repeat(limits::WORKER_LABEL_CHARS + 1)] },
        }));
        assert_eq!((long.agent_version, long.os_info, long.ip_addrs, long.labels), (None, None, None, None));
    }
}
