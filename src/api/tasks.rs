//! Tasks as answers show them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::files::Input;
use super::usage::Usage;
use super::words::{AnyFormat, AnyPushMode, AnyReason, AnySession, AnyStatus, AnyWaitingReason, Word};
use bloom_core::Ms;
use bloom_core::namespace;
use bloom_core::project::PushMode;
use bloom_core::task::{self, Status, TaskSpec, TaskState};
use bloom_core::trace_context::TraceContext;

/// A task.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Task<'a> {
    /// The id of the task.
    pub id: Uuid,
    /// The conversation that the task belongs to.
    pub context_id: Cow<'a, str>,
    /// The kind of agent that runs the task.
    pub agent_slug: Cow<'a, str>,
    /// What the agent is asked to do.
    pub prompt: Cow<'a, str>,
    /// Paths or globs of files in the directory of the context; the agent inserts their content into the prompt. Other texts are
    /// references.
    pub context_hints: Cow<'a, [String]>,
    /// Limits of the run.
    pub policy: Policy,
    /// The form of the output.
    pub desired_format: AnyFormat,
    /// The status of the task.
    pub status: AnyStatus,
    /// When the task was created.
    pub created_at: Ms,
    /// When the task last changed.
    pub updated_at: Ms,
    /// When the active lease began; for a finished task, its last lease. Null if there is none.
    pub started_at: Option<Ms>,
    /// When the task ended; null if it has not.
    pub finished_at: Option<Ms>,
    /// The active lease; for a finished task, its last lease.
    pub lease_id: Option<Uuid>,
    /// The worker of the lease in `lease_id`.
    pub worker_id: Option<Cow<'a, str>>,
    /// Number of attempts that count, from 0 to `max_attempts`.
    pub attempts: i64,
    /// How many attempts the task has before it is `dead`.
    pub max_attempts: i64,
    /// 0 to 9; 9 is the most urgent.
    pub priority: i64,
    /// The task does not run before this time.
    pub not_before: Option<Ms>,
    /// Ids of the tasks that must be completed first.
    pub depends_on: Cow<'a, [Uuid]>,
    /// At most one task with this key is leased or running at a time; others wait. Null: no key.
    pub exclusive_key: Option<Cow<'a, str>>,
    /// A repeated creation with this key returns this task.
    pub idempotency_key: Option<Cow<'a, str>>,
    /// Names with values, by which lists can be filtered.
    pub labels: Cow<'a, BTreeMap<String, String>>,
    /// Whether the task continues the conversation of its context.
    pub session: AnySession,
    /// The model that the agent uses; null = that of its profile.
    pub model: Option<Cow<'a, str>>,
    /// Seconds after its end at which the task is removed; null = as the server's TASK_RETENTION_DAYS says.
    pub ttl_after_finished_sec: Option<i64>,
    /// Number of attempts that were given back; at most 20.
    pub infra_retries: i64,
    /// Whether a cancel was requested and waits for the end of the run.
    pub cancel_requested: bool,
    /// Whether the task is suspended: while it is queued, no worker gets it until it is resumed. A run that has begun goes on.
    pub suspend: bool,
    /// The conversation of the agent that the run continues.
    pub session_id: Option<Cow<'a, str>>,
    /// Why the last attempt failed; null if none failed.
    pub failure: Option<Failure<'a>>,
    /// The sum of all attempts, including failed ones.
    pub usage: Option<Usage>,
    /// What a queued task waits for, or why a running one does not go on: `needs_human`, `worker_silent`.
    pub waiting: Option<Waiting>,
    /// The submit or member key that created the task; absent if another key did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub owner: Option<Cow<'a, str>>,
    /// The team of the key that created the task, whose member keys see the task; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub team: Option<Cow<'a, str>>,
    /// The object of Kubernetes that the task was created for; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub kubernetes: Option<KubernetesObject<'a>>,
    /// The trace that the task belongs to, as the header `traceparent` of W3C Trace Context; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>)]
    pub traceparent: Option<TraceContext>,
    /// The name of the task's project, as it was when the task was created; null = the task has no project.
    pub project: Option<Cow<'a, str>>,
    /// The branch, tag or commit that the task begins with; null = the default branch of the repository.
    pub r#ref: Option<Cow<'a, str>>,
    /// Whether the agent pushes the branch with the commits of a run.
    pub push: AnyPushMode,
    /// Files that the run gets.
    pub inputs: Vec<Input<'a>>,
    /// Globs of the files that are kept as artifacts when a run ends.
    pub outputs: Cow<'a, [String]>,
    /// Only in the answer to the creation of the task, and only if there are warnings: unknown fields of the request, which were ignored,
    /// and an agent that no worker knows, which may be misspelt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub warnings: Vec<String>,
}

/// An object of Kubernetes.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct KubernetesObject<'a> {
    /// The namespace of the object.
    pub namespace: Cow<'a, str>,
    /// The name of the object.
    pub name: Cow<'a, str>,
    /// The uid of the object. If the object is deleted and created again under its name, it has a new uid.
    pub uid: Uuid,
}

impl<'a> From<&'a namespace::KubernetesObject> for KubernetesObject<'a> {
    fn from(object: &'a namespace::KubernetesObject) -> Self {
        Self { namespace: (&object.namespace).into(), name: (&object.name).into(), uid: object.uid }
    }
}

/// Limits of a run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub struct Policy {
    /// Seconds after the start of the process at which the agent ends the run.
    pub timeout_sec: i64,
    /// Whether the client set no time limit: that of the agent's profile, if it has one, then replaces `timeout_sec`.
    pub timeout_is_default: bool,
    /// US dollars that all attempts together may cost; 0 = no limit.
    pub budget: f64,
}

impl Policy {
    /// The limits may have been changed since the task was created.
    pub fn of(state: &TaskState) -> Self {
        Self { timeout_sec: state.timeout_sec, timeout_is_default: state.profile_timeout_max.is_some(), budget: state.budget }
    }
}

/// Why the last attempt failed.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Failure<'a> {
    /// The kind of failure.
    pub reason: AnyReason,
    /// What went wrong, for people.
    pub message: Cow<'a, str>,
    /// When it failed.
    pub at: Ms,
}

/// What a queued task waits for, or why a running one does not go on.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct Waiting {
    /// The kind of reason for which it waits.
    pub reason: AnyWaitingReason,
    /// What it waits for, for people.
    pub message: String,
    /// When that reason ends by itself; absent if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub until: Option<Ms>,
}

impl<'a> From<&'a task::Failure> for Failure<'a> {
    fn from(failure: &'a task::Failure) -> Self {
        Self { reason: failure.reason.into(), message: (&failure.message).into(), at: failure.at }
    }
}

impl<'a> Task<'a> {
    /// How long its lease has lasted, or its last lease did; `None` if it has none.
    pub fn lasted(&self, now: Ms) -> Option<Ms> {
        self.started_at.map(|at| (self.finished_at.unwrap_or(now) - at).max(0))
    }

    /// Whether a worker has it.
    pub fn is_leased(&self) -> bool {
        matches!(self.status, Word::Known(Status::Leased | Status::Running))
    }

    /// Why its last attempt did not succeed; `None` while a worker has it, because that was an earlier attempt.
    pub fn last_failure(&self) -> Option<&Failure<'_>> {
        self.failure.as_ref().filter(|_| !self.is_leased())
    }

    /// A task as the API shows it. `waiting` says why it is not running or does not go on; `None` if nothing keeps it.
    pub fn new(spec: &'a TaskSpec, state: &'a TaskState, waiting: Option<Waiting>) -> Self {
        let shown = state.shown_lease();
        Self {
            id: spec.id,
            context_id: (&spec.context_id).into(),
            agent_slug: (&spec.agent_slug).into(),
            prompt: (&spec.prompt).into(),
            context_hints: (&spec.context_hints).into(),
            policy: Policy::of(state),
            desired_format: spec.desired_format.into(),
            status: state.status.into(),
            created_at: state.created_at(),
            updated_at: state.updated_at,
            started_at: state.started_at(),
            finished_at: state.finished_at,
            lease_id: shown.map(|(lease, _)| lease),
            worker_id: shown.map(|(_, worker)| worker.into()),
            attempts: state.attempts,
            max_attempts: spec.max_attempts,
            priority: state.priority,
            not_before: state.not_before,
            depends_on: (&spec.depends_on).into(),
            exclusive_key: spec.exclusive_key.as_deref().map(Cow::from),
            idempotency_key: spec.idempotency_key.as_deref().map(Cow::from),
            labels: Cow::Borrowed(state.labels(spec)),
            session: spec.session.into(),
            model: spec.model.as_deref().map(Cow::from),
            ttl_after_finished_sec: spec.ttl_after_finished_sec,
            infra_retries: state.infra_retries,
            cancel_requested: state.cancel_requested,
            suspend: state.suspend,
            session_id: state.session_id.as_deref().map(Cow::from),
            failure: state.failure.as_ref().map(Failure::from),
            usage: state.usage.map(Usage::from),
            waiting,
            owner: spec.owner.as_deref().map(Cow::from),
            team: spec.team.as_deref().map(Cow::from),
            kubernetes: spec.object.as_ref().map(KubernetesObject::from),
            traceparent: spec.traceparent,
            project: spec.project.as_ref().map(|project| (&project.name).into()),
            r#ref: spec.project.as_ref().and_then(|project| project.git_ref.as_deref()).map(Cow::from),
            push: spec.project.as_ref().map_or(PushMode::Never, |project| project.push).into(),
            inputs: spec.inputs.iter().map(Input::from).collect(),
            outputs: (&spec.outputs).into(),
            warnings: Vec::new(),
        }
    }
}

/// Created tasks.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct CreatedTasks<'a> {
    /// The tasks, in the order of the request.
    pub tasks: Vec<Task<'a>>,
    /// How many of them existed already: they were found by their idempotency keys.
    pub existed: usize,
}
