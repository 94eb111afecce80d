//! `LLMTask`: a task that is wanted, and how far it is.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A task for an LLM agent. The server leases it to a worker, which runs it; `status` has its state. Only `cancel`, `priority`, `suspend`
/// and `ttlSecondsAfterFinished` can be changed later.
// The schemas of the fields that the HTTP API has too come from there, see `crds::schema`.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "bloom-runtime.dev",
    version = "v1alpha1",
    kind = "LLMTask",
    plural = "llmtasks",
    shortname = "lt",
    category = "bloom",
    namespaced,
    status = "LLMTaskStatus",
    derive = "PartialEq",
    doc = "A task for an LLM agent: a prompt, and the conditions under which it runs. Once its condition Complete or Failed is True, it has ended.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Worker", type_ = "string", json_path = ".status.workerName"),
    printcolumn(name = "Attempts", type_ = "integer", json_path = ".status.attempts"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Context", type_ = "string", json_path = ".spec.contextId", priority = 1),
    printcolumn(name = "Agent", type_ = "string", json_path = ".spec.agentSlug", priority = 1),
    printcolumn(name = "Cost", type_ = "number", json_path = ".status.usage.costUsd", priority = 1),
    selectable = ".spec.agentSlug",
    selectable = ".spec.contextId",
    selectable = ".status.phase",
    selectable = ".status.workerName"
)]
#[serde(rename_all = "camelCase")]
pub struct LLMTaskSpec {
    /// The conversation: tasks with the same context continue it one after the other.
    pub context_id: String,
    /// The kind of agent that runs the task.
    pub agent_slug: String,
    /// What the agent is asked to do. `None`: the prompt is in `prompt_from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Where the prompt is, if it is not in the object itself. Exactly one of `prompt` and `promptFrom` is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_from: Option<PromptSource>,
    /// Files in the directory of the context, by path or glob, and other references.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_hints: Option<Vec<String>>,
    /// Globs of files below the directory of the run that are kept as artifacts when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<String>>,
    /// Limits of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// The form of the output, `text` or `json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_format: Option<String>,
    /// How many attempts the task has before it is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// From 0 to 9; 9 is the most urgent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The task does not run before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// Names of LLMTasks of the same namespace that must be completed first. If one of them ends otherwise, this task is cancelled. If one
    /// does not exist yet, the task waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    /// At most one task with this key is leased or running at a time; others wait. Default: no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_key: Option<String>,
    /// A repeated creation with this key gets the first task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Names with values, by which tasks can be filtered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// `context` or `none`: whether the run continues the conversation of its context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The model that the agent uses. `None`: that of the agent's profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The name or the id of the project in whose checkout the task runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The branch, tag or commit to begin with. `None`: the default branch of the repository.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    /// `branch` or `never`: whether the agent pushes the commits of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<String>,
    /// Seconds after the end of the task at which this object, and the task with it, is removed. Without it, both stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i64>,
    /// `true` suspends the task: no worker gets it until this is `false` again. A run that is under way goes on.
    #[serde(default)]
    pub suspend: bool,
    /// `true` cancels the task. A run that is under way is stopped; a success that it still reports is kept.
    #[serde(default)]
    pub cancel: bool,
}

/// A key of a ConfigMap or of a Secret of the same namespace; exactly one of them.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptSource {
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    /// A key of a Secret that has the label `bloom-runtime.dev/prompt` with the value `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
}

/// One entry of a ConfigMap or Secret.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct KeyRef {
    /// The name of the ConfigMap or Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,
    /// The key whose value is the prompt.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Limits of a run, which the agent enforces.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Seconds after its start at which the run is ended. `None`: as the agent's profile says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_sec: Option<i64>,
    /// US dollars that all attempts together may cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
}

/// The state of the task. The server writes it, and reverts manual changes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LLMTaskStatus {
    /// The generation of the object that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The id of the task in the HTTP API and on the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// A summary: Pending (not accepted yet, see the condition Queued), Queued, Running, Completed, Failed (a run ended with an error), Dead
    /// (no attempt is left) or Cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Why the task does not run yet, or why it did not succeed, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Number of attempts that count, from 0 to `maxAttempts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i64>,
    /// The worker that runs the task or ran it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_name: Option<String>,
    /// The TaskLease of the current attempt. Deleting that object revokes the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_name: Option<String>,
    /// When the current or last attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the task ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// What all attempts used, failed ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The beginning of the result, at most 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_preview: Option<String>,
    /// Where the whole result is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultRef>,
    /// Queued: the task waits for its turn. Leased: a worker has it. Complete: it ended with a result. Failed: it ended without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Tokens and US dollars that runs used.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Number of tokens that the model read.
    pub input_tokens: i64,
    /// Number of tokens that the model wrote.
    pub output_tokens: i64,
    /// US dollars.
    pub cost_usd: f64,
    /// Whether a part of the US dollars is estimated, because a run ended without a total; absent if not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_estimated: Option<bool>,
}

/// A result that is stored by the server.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct ResultRef {
    /// The path of the result in the HTTP API; with the server in front if it knows its public URL.
    pub uri: String,
    /// The size of the result in bytes.
    pub bytes: i64,
}
