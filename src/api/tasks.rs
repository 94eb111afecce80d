//! Tasks on the wire: what a client sends to create one, and how tasks are shown.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::usage::Usage;
use super::values::{Id, Int, Labels, List, MAX_SAFE, Moment, Name, NonEmpty, ShortName, Text, Usd};
use super::wire::body;
use super::words::{AnyFormat, AnyReason, AnySession, AnyStatus, AnyWaitingReason};
use bloom_core::Ms;
use bloom_core::namespace;
use bloom_core::task::{self, Format, Session, TaskSpec, TaskState};
use bloom_core::trace_context::TraceContext;

pub const MAX_DEPENDENCIES: usize = 100;
pub const MAX_BATCH: usize = 1000;
const DEFAULT_TIMEOUT_SEC: i64 = 120;
const MAX_TIMEOUT_SEC: i64 = 3600;
const MAX_ATTEMPTS: Int<1, 10> = Int(3);
/// 9 is the most urgent.
pub type Priority = Int<0, 9>;
const PRIORITY: Priority = Int(5);

body! {
    /// Limits of a run, which the agent enforces.
    pub struct NewPolicy {
        /// Seconds after the start of the process at which the agent ends the run.
        timeout_sec: Int<1, MAX_TIMEOUT_SEC> = Int(DEFAULT_TIMEOUT_SEC),
        /// US dollars that all attempts together may cost; 0 = the task sets no limit. A requeued task begins with its whole budget.
        budget: Usd = Usd(0.0),
    }

    /// A task to run.
    pub struct NewTask: Default {
        /// The conversation: tasks with the same context continue it one after the other.
        context_id: Name,
        /// The kind of agent that runs it.
        agent_slug: ShortName,
        /// What the agent is asked to do.
        prompt: NonEmpty,
        /// Files in the directory of the context, by path or glob, that the agent inserts; other texts are references. Default: none.
        context_hints: List<Text> = List(Vec::new()),
        /// Limits of the run. Default: 120 seconds, no budget.
        policy: Option<NewPolicy>,
        /// The form of the output. With `json`, the task fails if the output is not JSON.
        desired_format: Format = Format::Text,
        /// How many attempts the task has before it is `dead`.
        max_attempts: Int<1, 10> = MAX_ATTEMPTS,
        /// 0 to 9; 9 is the most urgent.
        priority: Priority = PRIORITY,
        /// Milliseconds since the epoch; the task does not run before this time.
        not_before: Option<Moment>,
        /// Tasks that must be completed first. If one of them ends otherwise, this task is cancelled.
        depends_on: List<Id, 0, MAX_DEPENDENCIES> = List(Vec::new()),
        /// At most one task with this key is leased or running.
        exclusive_key: Option<Name>,
        /// A repeated call with this key returns the first task. The header Idempotency-Key has the same meaning.
        idempotency_key: Option<Name>,
        /// Names with values, by which lists can be filtered: at most 32. Default: none.
        labels: Labels = Labels::default(),
        /// `context`: continue the conversation of its context. `none`: run on its own.
        session: Session = Session::Context,
        /// The model that the agent uses. Default: that of the agent's profile.
        model: Option<ShortName>,
        /// Seconds after its end at which the task is removed.
        ttl_after_finished_sec: Option<Int<0, MAX_SAFE>>,
        /// Create it suspended: no worker gets it until it is resumed.
        suspend: bool = false,
    }

    /// Tasks to create, all of them or none.
    pub struct NewTasks {
        /// The tasks, in the order of their creation: 1 to 1000.
        tasks: List<NewTask, 1, MAX_BATCH>,
    }
}

impl NewTask {
    /// Converts it for the core, which assigns the id. `idempotency_key` is the header's; a key in the body takes precedence.
    pub fn into_spec(self, idempotency_key: Option<String>) -> TaskSpec {
        let (timeout_sec, budget) = self.policy.map_or((DEFAULT_TIMEOUT_SEC, 0.0), |policy| (policy.timeout_sec.0, policy.budget.0));
        let depends_on = self.depends_on.map(|id| id.0).into_iter().collect::<BTreeSet<_>>();
        TaskSpec {
            id: Uuid::nil(),
            context_id: self.context_id.0,
            agent_slug: self.agent_slug.0,
            prompt: self.prompt.0,
            context_hints: self.context_hints.texts(),
            timeout_sec,
            budget,
            desired_format: self.desired_format,
            max_attempts: self.max_attempts.0,
            priority: self.priority.0,
            not_before: self.not_before.map(|at| at.0),
            depends_on: depends_on.into_iter().collect(),
            exclusive_key: self.exclusive_key.map(|key| key.0),
            idempotency_key: self.idempotency_key.map(|key| key.0).or(idempotency_key),
            labels: self.labels.0,
            session: self.session,
            model: self.model.map(|model| model.0),
            ttl_after_finished_sec: self.ttl_after_finished_sec.map(|seconds| seconds.0),
            owner: None,
            suspend: self.suspend,
            object: None,
            traceparent: None,
        }
    }
}

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
    /// Files in the directory of the context, by path or glob, that the agent inserts; other texts are references.
    #[serde(default)]
    #[schema(required)]
    pub context_hints: Cow<'a, [String]>,
    /// Limits of the run.
    pub policy: Policy,
    /// The form of the output.
    pub desired_format: AnyFormat,
    /// How far the task is.
    pub status: AnyStatus,
    /// When the task was created.
    pub created_at: Ms,
    /// When the task last changed.
    pub updated_at: Ms,
    /// The active lease; for a finished task, its last lease.
    pub lease_id: Option<Uuid>,
    /// The worker of that lease.
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
    /// At most one task with this key is leased or running.
    pub exclusive_key: Option<Cow<'a, str>>,
    /// A repeated creation with this key returns this task.
    pub idempotency_key: Option<Cow<'a, str>>,
    /// Names with values, by which lists can be filtered.
    pub labels: Cow<'a, BTreeMap<String, String>>,
    /// Whether the task continues the conversation of its context.
    #[serde(default = "in_its_context")]
    #[schema(required)]
    pub session: AnySession,
    /// The model that the agent uses; null = that of its profile.
    pub model: Option<Cow<'a, str>>,
    /// Seconds after its end at which the task is removed; null = by the server's retention.
    pub ttl_after_finished_sec: Option<i64>,
    /// Number of attempts that were given back; at most 20.
    pub infra_retries: i64,
    /// Whether a cancel waits for the end of the run.
    pub cancel_requested: bool,
    /// Whether the task is suspended: while it is queued, no worker gets it until it is resumed. A run that has begun goes on.
    #[serde(default)]
    #[schema(required)]
    pub suspend: bool,
    /// The conversation of the agent that the run continues.
    pub session_id: Option<Cow<'a, str>>,
    /// Why the last attempt failed; null if none failed.
    pub failure: Option<Failure<'a>>,
    /// The sum of all attempts, including failed ones.
    pub usage: Option<Usage>,
    /// What a queued task waits for, or why a running one does not go on: `needs_human`.
    pub waiting: Option<Waiting>,
    /// The submit key that created the task; absent if another key did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub owner: Option<Cow<'a, str>>,
    /// The object of Kubernetes that the task was created for; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub kubernetes: Option<KubernetesObject<'a>>,
    /// The trace that the task belongs to, as the header `traceparent` of W3C Trace Context; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>)]
    pub traceparent: Option<TraceContext>,
}

/// An object of Kubernetes.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct KubernetesObject<'a> {
    /// The namespace of the object.
    pub namespace: Cow<'a, str>,
    /// The name of the object.
    pub name: Cow<'a, str>,
    /// Another one for each object, also if it is deleted and created again under its name.
    pub uid: Uuid,
}

impl<'a> From<&'a namespace::KubernetesObject> for KubernetesObject<'a> {
    fn from(object: &'a namespace::KubernetesObject) -> Self {
        Self { namespace: (&object.namespace).into(), name: (&object.name).into(), uid: object.uid }
    }
}

/// The session of a task that comes from an earlier version, which does not send it.
pub fn in_its_context() -> AnySession {
    Session::Context.into()
}

/// Limits of a run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub struct Policy {
    /// Seconds after the start of the process at which the agent ends the run.
    pub timeout_sec: i64,
    /// US dollars that all attempts together may cost; 0 = no limit.
    #[serde(default)]
    #[schema(required)]
    pub budget: f64,
}

impl Policy {
    pub fn of(spec: &TaskSpec) -> Self {
        Self { timeout_sec: spec.timeout_sec, budget: spec.budget }
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
    /// The kind of obstacle.
    pub reason: AnyWaitingReason,
    /// What it waits for, for people.
    pub message: String,
    /// When the obstacle ends by itself; absent if that is not known.
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
    pub fn new(spec: &'a TaskSpec, state: &'a TaskState, waiting: Option<Waiting>) -> Self {
        let shown = state.shown_lease();
        Self {
            id: spec.id,
            context_id: (&spec.context_id).into(),
            agent_slug: (&spec.agent_slug).into(),
            prompt: (&spec.prompt).into(),
            context_hints: (&spec.context_hints).into(),
            policy: Policy::of(spec),
            desired_format: spec.desired_format.into(),
            status: state.status.into(),
            created_at: state.created_at(),
            updated_at: state.updated_at,
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
            kubernetes: spec.object.as_ref().map(KubernetesObject::from),
            traceparent: spec.traceparent,
        }
    }
}

/// Created tasks.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct CreatedTasks<'a> {
    /// The tasks, in the order of the request.
    pub tasks: Vec<Task<'a>>,
    /// How many of them existed already: they were found by their idempotency keys.
    #[serde(default)]
    #[schema(required)]
    pub existed: usize,
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::invalid::Invalid;
    use crate::wire::Wire;

    fn read(body: &str) -> Result<NewTask, String> {
        let raw: &RawValue = serde_json::from_str(body).unwrap();
        NewTask::read(raw).map_err(|problems| Invalid::from(problems).line())
    }

    fn with(fields: &str) -> Result<NewTask, String> {
        read(&format!(r#"{{"context_id": "c", "agent_slug": "a", "prompt": "p", {fields}}}"#))
    }

    #[test]
    fn defaults() {
        let spec = with(r#""policy": null, "labels": null, "unknown": 1"#).unwrap().into_spec(Some("key".into()));
        assert_eq!((spec.timeout_sec, spec.budget, spec.max_attempts, spec.priority), (120, 0.0, 3, 5));
        assert_eq!((spec.desired_format, spec.session), (Format::Text, Session::Context));
        assert_eq!(spec.idempotency_key.as_deref(), Some("key"));
        let spec =
            with(r#""policy": {"budget": 1.5}, "max_attempts": 2.0, "idempotency_key": "own""#).unwrap().into_spec(Some("key".into()));
        assert_eq!((spec.timeout_sec, spec.budget, spec.max_attempts), (120, 1.5, 2));
        assert_eq!(spec.idempotency_key.as_deref(), Some("own"));
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        assert_eq!(read("[]").unwrap_err(), "Expected object, received array");
        assert_eq!(
            read(r#"{"prompt": "", "max_attempts": 11, "policy": {"timeout_sec": 0}, "desired_format": "xml"}"#).unwrap_err(),
            "agent_slug: Required; context_id: Required; \
             desired_format: Invalid enum value. Expected 'json' | 'text', received 'xml'; \
             max_attempts: Number must be less than or equal to 10; \
             policy: timeout_sec: Number must be greater than or equal to 1; \
             prompt: String must contain at least 1 character(s)"
        );
    }

    #[test]
    fn values_of_a_wrong_kind() {
        let check = |fields: &str, expected: &str| assert_eq!(with(fields).unwrap_err(), expected, "{fields}");
        check(r#""context_hints": "x""#, "context_hints: Expected array, received string");
        check(r#""context_hints": ["x", null]"#, "context_hints: 1: Expected string, received null");
        check(r#""priority": 1.5"#, "priority: Expected integer, received float");
        check(r#""priority": "5""#, "priority: Expected number, received string");
        check(r#""policy": {"budget": -1}"#, "policy: budget: Number must be greater than or equal to 0");
        check(r#""policy": 5"#, "policy: Expected object, received number");
        check(r#""model": "a\u0000b""#, "model: String must not contain NUL characters");
        check(r#""model": "\ud800""#, "model: Not valid text: an escape in it stands for no character");
        check(r#""depends_on": ["x"]"#, "depends_on: 0: Invalid uuid");
        check(r#""labels": {"a": 1}"#, "labels: a: Expected string, received number");
        check(r#""labels": {"": "x"}"#, "labels: The name of a label: String must contain at least 1 character(s)");
        check(r#""not_before": -1"#, "not_before: Number must be greater than or equal to 0");
        check(r#""not_before": 1e30"#, "not_before: Number must be less than or equal to 281474976710655");
    }

    #[test]
    fn the_last_of_repeated_names_counts() {
        assert_eq!(with(r#""model": 5, "model": "m""#).unwrap().model, Some(Text("m".into())));
        assert_eq!(with(r#""model": "m", "mod\u0065l": "n""#).unwrap().model, Some(Text("n".into())));
    }
}
