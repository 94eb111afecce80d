//! `WorkerPool`: agents that run as pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, LocalObjectReference, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The desired state of the pool. Each pod is one worker, which takes tasks of the pool's namespaces from the server.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "bloom-runtime.dev",
    version = "v1alpha1",
    kind = "WorkerPool",
    plural = "workerpools",
    shortname = "bwp",
    category = "bloom",
    namespaced,
    status = "WorkerPoolStatus",
    derive = "PartialEq",
    doc = "A number of agents that run as pods and take tasks from the server. A pod whose worker has a task is not removed by scaling.",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas", label_selector_path = ".status.selector"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.desiredReplicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Busy", type_ = "integer", json_path = ".status.busyReplicas"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.image", priority = 1),
    printcolumn(name = "Namespaces", type_ = "string", json_path = ".status.namespaces", priority = 1),
    selectable = ".spec.image",
    selectable = ".spec.runner"
)]
#[serde(rename_all = "camelCase")]
pub struct WorkerPoolSpec {
    /// The number of pods. It is not used while `maxReplicas` is set. `kubectl scale` changes it.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i64,
    /// The minimum number of pods when they are scaled by the queue; 0 if left out. Needs `maxReplicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: Option<i64>,
    /// The maximum number of pods. If it is set, the server chooses how many there are: enough slots for the tasks that the pool's workers
    /// have and for those that are ready to run and that they could take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: Option<i64>,
    /// With `maxReplicas`: for how many seconds fewer pods must have been enough before a pod is taken out of service; 0 counts as 1.
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 0, max = 86_400))]
    pub scale_down_delay_seconds: i64,
    /// The namespaces whose LLMTasks the workers run; the pool's own if left out. Only pools in the namespace of the server may name others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")))]
    pub namespaces: Vec<String>,
    /// How many tasks each pod runs at a time.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 32))]
    pub slots: i64,
    /// The image of the agent; that of the server's setting OPERATOR_AGENT_IMAGE if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// When the image is pulled: Always, IfNotPresent or Never. By default as for any pod: Always for the tag `latest`, otherwise IfNotPresent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Secrets of the pool's namespace with the credentials for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Environment variables of the agent and of its runs, such as ANTHROPIC_API_KEY from a Secret. Names that begin with BLOOM_ are set by
    /// the other fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub env: Vec<EnvVar>,
    /// ConfigMaps and Secrets of the pool's namespace all of whose keys become environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub env_from: Vec<EnvFromSource>,
    /// Where the profiles are, which say what program runs the tasks of an agent slug, and how. Without profiles, the Claude CLI runs all
    /// tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Profiles>,
    /// What runs tasks that have no profile: `claude`, `echo` (which answers with the prompt), or the name of a profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub runner: Option<String>,
    /// CPU and memory of each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Where the contexts of tasks, and the clones in them, are kept. An empty directory that goes with the pod if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// The service account of the pods. They get no token of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Labels of the nodes on which the pods may run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
    /// Where the pods are scheduled, with the fields of `pod.spec.affinity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub affinity: Option<Value>,
    /// The priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Further labels of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_labels: BTreeMap<String, String>,
    /// Further annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_annotations: BTreeMap<String, String>,
    /// How many seconds a pod that is deleted, evicted or on a node that is drained has to end. Its agent lets runs go on until 30 seconds
    /// before that, then it hands their tasks back. Scaling waits for the end of runs, however long they take.
    #[serde(default = "grace_seconds")]
    #[schemars(range(min = 60, max = 86_400))]
    pub termination_grace_period_seconds: i64,
}

/// When to pull an image.
#[expect(
    missing_docs,
    reason = "documented variants would become alternatives in the custom resource definition, and these are those of Kubernetes"
)]
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// A file of profiles in a ConfigMap of the pool's namespace. All keys of the ConfigMap are files beside it, so profiles can name them.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Profiles {
    /// The name of the ConfigMap.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub config_map_name: String,
    /// The key whose value is the file, in TOML.
    #[serde(default = "profiles_key")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// What each pod may use at most, and what is reserved for it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Resources {
    /// The most that a pod may use, such as `memory: 4Gi`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
    /// What is reserved for a pod, such as `cpu: 500m`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
}

/// The directory of the agent: an empty one with a limit, or a volume; not both.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Workspace {
    /// The size at which a pod with an empty directory is evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<Quantity>,
    /// A volume for each pod, which is kept for the next pod with the same number, so that contexts continue. It is removed with the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim: Option<VolumeClaim>,
}

/// The PersistentVolumeClaim of each pod.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaim {
    /// The size of the volume, such as `20Gi`.
    pub storage: Quantity,
    /// The storage class; the cluster's default if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
    /// How the volume is mounted: ReadWriteOnce if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 32)))]
    pub access_modes: Vec<String>,
}

/// The state of the pool. The server writes it, and reverts manual changes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerPoolStatus {
    /// The generation of the object that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many pods there are, those that are drained included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// How many pods there should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i64>,
    /// How many pods have a worker that is online.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i64>,
    /// How many pods match the current spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i64>,
    /// How many pods have a task; updated at most every ten seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_replicas: Option<i64>,
    /// The pods of the pool, as a selector of labels, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The image of new pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The namespaces whose tasks the pool runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<String>>,
    /// Accepted: the server can serve this pool. Ready: as many workers as wanted are online. Progressing: pods are being created, drained
    /// or replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn one() -> i64 {
    1
}

fn five_minutes() -> i64 {
    300
}

fn grace_seconds() -> i64 {
    330
}

fn profiles_key() -> String {
    "profiles.toml".to_owned()
}

/// A schema of its own would be larger than all the rest.
fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}
