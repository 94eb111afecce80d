//! `Worker`: a worker that the server knows.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the worker.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "bloom-runtime.dev",
    version = "v1alpha1",
    kind = "Worker",
    plural = "workers",
    shortname = "bw",
    category = "bloom",
    namespaced,
    status = "WorkerStatus",
    derive = "PartialEq",
    doc = "A worker that is registered with the server, in the cluster or elsewhere. The server creates and removes these objects.",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Slots", type_ = "integer", json_path = ".status.slots"),
    printcolumn(name = "Unschedulable", type_ = "boolean", json_path = ".spec.unschedulable"),
    printcolumn(name = "Drain", type_ = "boolean", json_path = ".spec.drain"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.agentVersion", priority = 1),
    printcolumn(name = "Agents", type_ = "string", json_path = ".status.agents", priority = 1),
    printcolumn(name = "Namespaces", type_ = "string", json_path = ".status.namespaces", priority = 1),
    selectable = ".status.phase"
)]
#[serde(rename_all = "camelCase")]
pub struct WorkerSpec {
    /// `true` cordons the worker: it gets no new tasks.
    #[serde(default)]
    pub unschedulable: bool,
    /// `true` drains the worker: it gets no new tasks, and is asked to release or finish those that it has.
    #[serde(default)]
    pub drain: bool,
}

/// The state of the worker. The server writes it, and reverts manual changes. The tasks that it has are in its TaskLeases.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    /// The generation of the object that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The name of the worker in the HTTP API. The object has another name if this is not a valid name of an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Online, Offline, Syncing (it takes no tasks for a while), Error or Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// How many tasks it runs at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<i64>,
    /// The agents whose tasks it runs; absent if it runs those of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<String>>,
    /// The namespaces whose tasks it runs, and no others; absent if it runs those of all, and tasks of the HTTP API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<String>>,
    /// The version of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Whether the server gives it no new tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
    /// Whether the server has asked it to give up its tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// Ready: the worker is online.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
