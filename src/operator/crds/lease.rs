//! `TaskLease`: the lease of an attempt that is under way.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The attempt. The server creates the object together with the lease, removes it after the end of the lease, and changes nothing in it.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "bloom-runtime.dev",
    version = "v1alpha1",
    kind = "TaskLease",
    plural = "taskleases",
    category = "bloom",
    namespaced,
    derive = "PartialEq",
    doc = "The lease of an attempt that is under way. Deleting it revokes the lease: the worker has to stop, and the task is queued again.",
    printcolumn(name = "Task", type_ = "string", json_path = ".spec.taskName"),
    printcolumn(name = "Worker", type_ = "string", json_path = ".spec.workerName"),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".spec.attempt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    selectable = ".spec.taskName",
    selectable = ".spec.workerName"
)]
#[serde(rename_all = "camelCase")]
pub struct TaskLeaseSpec {
    /// The LLMTask that is leased.
    pub task_name: String,
    /// The worker that has it.
    pub worker_name: String,
    /// The id of the lease in the HTTP API.
    pub lease_id: String,
    /// The number of the attempt, from 1.
    pub attempt: i64,
    /// When the lease began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
}
