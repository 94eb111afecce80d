//! Named keys on the wire, and the enrollment of workers.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::invalid::Invalid;
use super::namespaces::Namespace;
use super::values::{Id, Int, List, Name, ShortName, Text};
use super::wire::{Problems, Wire, body, problem};
use super::words::AnyScope;
use bloom_core::Ms;
use bloom_core::api_key::{ApiKey, MAX_ENROLLED_NAME, MAX_KEY_NAME, MAX_QUOTA_BYTES, MAX_QUOTA_TASKS, Quota, Scope, is_key_name};
use bloom_core::audit::is_name_of_another_actor;
use bloom_core::limits;
use bloom_core::op;

const HOUR_SEC: i64 = 3_600;
const DAY_SEC: i64 = 86_400;
const MAX_OVERLAP_SEC: i64 = 30 * DAY_SEC;
/// Ten years.
const MAX_KEY_SEC: i64 = 3_650 * DAY_SEC;
const MAX_JOIN_SEC: i64 = 30 * DAY_SEC;
const DEFAULT_JOIN_SEC: i64 = DAY_SEC;

/// The name of a key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyName(pub String);

/// The pattern of [`KeyName`] in schemas.
const KEY_NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]*$";

impl Wire for KeyName {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Name::read(raw)?;
        if is_key_name(&text) {
            return Ok(Self(text));
        }
        problem(format!("Expected 1 to {MAX_KEY_NAME} of the characters A-Z a-z 0-9 . _ - and a letter or digit in front"))
    }

    fn describe() -> Schema {
        described(KEY_NAME_PATTERN, MAX_KEY_NAME)
    }
}

fn described(pattern: &str, max: usize) -> Schema {
    let object = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    Schema::Object(object.min_length(Some(1)).max_length(Some(max)).build())
}

/// The name of a worker that can be enrolled: it becomes a part of the name of its key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnrolledName(pub String);

impl EnrolledName {
    fn fits(text: &str) -> bool {
        text.len() <= MAX_ENROLLED_NAME && is_key_name(text) && !is_name_of_another_actor(text)
    }

    fn wrong() -> String {
        format!(
            "Expected a worker's name of 1 to {MAX_ENROLLED_NAME} of the characters A-Z a-z 0-9 . _ - and a letter or digit in front, \
             because it becomes a part of the name of the key; not api, admin, router or reconciler"
        )
    }
}

impl Wire for EnrolledName {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Name::read(raw)?;
        if Self::fits(&text) { Ok(Self(text)) } else { problem(Self::wrong()) }
    }

    fn describe() -> Schema {
        described(KEY_NAME_PATTERN, MAX_ENROLLED_NAME)
    }
}

body! {
    /// A named key to create.
    pub struct NewKey {
        /// Its name, which the audit trail shows and by which the key is rotated and revoked.
        name: KeyName,
        /// What the key allows.
        scope: Scope,
        /// The worker that a key of scope `worker` speaks for, or the only worker that a join token enrolls.
        worker: Option<ShortName>,
        /// Whether the worker may register with a `url`, which the server calls, and with `dispatch: "push"`. The server sends tasks and
        /// `MEMBRIDGE_AGENT_KEY` to that URL. For keys of scope `worker`, and for join tokens, which pass it on. Default: false.
        push: Option<bool>,
        /// The Kubernetes namespaces whose LLMTasks the worker may serve, and no other tasks: it may register only with `namespaces` among
        /// these, and gets these if it names none. For keys of scope `worker`, and for join tokens, which pass it on. Default: no limit.
        namespaces: Option<List<Namespace, 1, { limits::WORKER_NAMESPACES }>>,
        /// Seconds until the key expires. Default: it never expires; a join token expires after a day, and may last at most 30 days.
        expires_in_sec: Option<Int<1, MAX_KEY_SEC>>,
        /// The team of a key of scope `member`, which sees and changes the tasks of all keys of the team. A key of scope `submit` may also
        /// have a team: the members see its tasks, and it sees only its own.
        team: Option<KeyName>,
        /// The limits of its owner. Only for keys of the scopes `submit` and `member`. Default: no limits.
        quota: Option<NewQuota>,
    } with no unknown fields

    /// The limits of the owner of a submit or member key: at least one. An absent field means no limit.
    pub struct NewQuota {
        /// Maximum number of unfinished tasks: those that are queued, leased or running. Creating or requeuing more is refused with 409.
        max_open_tasks: Option<Int<1, MAX_QUOTA_TASKS>>,
        /// Maximum number of tasks that are created or requeued in a minute. All of them may come at once; the allowance then comes back
        /// evenly over a minute. Until then, creating and requeuing are refused with 429 and `Retry-After`.
        max_tasks_per_minute: Option<Int<1, MAX_QUOTA_TASKS>>,
        /// Maximum number of bytes of its tasks and uploads: prompts, answers, events and files, plus 2 KiB for each task. New tasks and
        /// uploads count at once; the output of runs and deletions count after about a minute. Above the limit, creating tasks, requeuing
        /// tasks and uploads are refused with 409; runs go on and keep what they produce.
        max_stored_bytes: Option<Int<1, MAX_QUOTA_BYTES>>,
    } with no unknown fields checked by has_limit

    /// How a key is rotated.
    pub struct KeyRotation {
        /// Seconds for which the previous key stays valid besides the new one, at most 30 days; 0: it is refused from now on.
        overlap_sec: Int<0, MAX_OVERLAP_SEC> = Int(HOUR_SEC),
        /// Seconds until the key expires. Default: its expiry does not change.
        expires_in_sec: Option<Int<1, MAX_KEY_SEC>>,
    } with no unknown fields

    /// The worker to enroll.
    pub struct NewEnrollment {
        /// The name of the worker.
        worker: EnrolledName,
        /// The `instance` with which the agent registers. If another agent has the worker's name and is not offline, the call is refused,
        /// and the key of that agent stays. Default: the caller counts as another agent.
        instance: Option<Id>,
    }
}

impl NewKey {
    /// # Errors
    /// The fields do not fit together.
    pub fn into_op(self, digest: String) -> Result<op::CreateKey, Invalid> {
        let worker = self.worker.map(|worker| worker.0);
        let mut seconds = self.expires_in_sec.map(|seconds| seconds.0);
        match (self.scope, &worker) {
            (Scope::Worker, None) => {
                return Err(Invalid::field("worker", "Required for a key of scope 'worker': the worker that the key speaks for"));
            }
            (Scope::Join, Some(worker)) if !EnrolledName::fits(worker) => return Err(Invalid::field("worker", EnrolledName::wrong())),
            (Scope::Admin | Scope::Submit | Scope::Member | Scope::Read, Some(_)) => {
                return Err(Invalid::field("worker", "Only keys of the scopes 'worker' and 'join' are for a worker: leave it out"));
            }
            _ => {}
        }
        let push = self.push.unwrap_or(false);
        if push && !matches!(self.scope, Scope::Worker | Scope::Join) {
            return Err(Invalid::field("push", "Only keys of the scopes 'worker' and 'join' are for a worker: leave it out"));
        }
        let namespaces = self.namespaces.map(|names| names.map(|name| name.0));
        if namespaces.is_some() && !matches!(self.scope, Scope::Worker | Scope::Join) {
            return Err(Invalid::field("namespaces", "Only keys of the scopes 'worker' and 'join' are for a worker: leave it out"));
        }
        match (&self.team, self.scope) {
            (None, Scope::Member) => return Err(Invalid::field("team", "Required for a key of scope 'member': whose tasks it sees")),
            (Some(_), scope) if !scope.owns_tasks() => {
                return Err(Invalid::field("team", "Only keys of the scopes 'submit' and 'member' have a team: leave it out"));
            }
            _ => {}
        }
        if self.quota.is_some() && !self.scope.owns_tasks() {
            return Err(Invalid::field("quota", "Only keys of the scopes 'submit' and 'member' have quotas: leave it out"));
        }
        if self.scope == Scope::Join {
            if seconds.is_some_and(|seconds| seconds > MAX_JOIN_SEC) {
                return Err(Invalid::field("expires_in_sec", "A join token lasts 30 days at most"));
            }
            seconds.get_or_insert(DEFAULT_JOIN_SEC);
        }
        let lasts_ms = seconds.map(|seconds| seconds * 1000);
        let quota = self.quota.map(Quota::from).unwrap_or_default();
        let team = self.team.map(|team| team.0);
        Ok(op::CreateKey { name: self.name.0, digest, scope: self.scope, worker, push, namespaces, lasts_ms, quota, team })
    }
}

/// A misspelled name must not remove a quota.
fn has_limit(quota: &NewQuota) -> Result<(), Problems> {
    if Quota::from(quota.clone()).is_unlimited() {
        return problem(format!("Give at least one of {}", NewQuota::FIELDS.join(", ")));
    }
    Ok(())
}

impl From<NewQuota> for Quota {
    fn from(new: NewQuota) -> Self {
        Self {
            max_open_tasks: new.max_open_tasks.map(|most| most.0),
            max_tasks_per_minute: new.max_tasks_per_minute.map(|most| most.0),
            max_stored_bytes: new.max_stored_bytes.map(|most| most.0),
        }
    }
}

/// The quota of a submit or member key, and how much of it is used. Only what has a limit is counted.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct KeyQuota {
    /// Maximum number of open tasks; null: no limit.
    pub max_open_tasks: Option<i64>,
    /// Maximum number of tasks that are created or requeued in a minute; null: no limit.
    pub max_tasks_per_minute: Option<i64>,
    /// Maximum number of bytes of its tasks and uploads; null: no limit.
    pub max_stored_bytes: Option<i64>,
    /// Number of its open tasks now.
    pub open_tasks: Option<i64>,
    /// Number of bytes of its tasks and uploads: the last measurement, plus what was added since.
    pub stored_bytes: Option<i64>,
}

impl KeyQuota {
    /// `None` for a key without a quota.
    pub fn of(key: &ApiKey, open_tasks: Option<i64>, stored_bytes: Option<i64>) -> Option<Self> {
        let Quota { max_open_tasks, max_tasks_per_minute, max_stored_bytes } = key.quota;
        (!key.quota.is_unlimited()).then_some(Self { max_open_tasks, max_tasks_per_minute, max_stored_bytes, open_tasks, stored_bytes })
    }
}

/// A named key, without the key itself.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Key<'a> {
    /// The name, by which the key is revoked.
    pub name: Cow<'a, str>,
    /// What the key allows.
    pub scope: AnyScope,
    /// The worker that it speaks for, or the only worker that the join token enrolls.
    pub worker: Option<Cow<'a, str>>,
    /// Whether that worker may register with a `url` and with `dispatch: "push"`.
    pub push: bool,
    /// The Kubernetes namespaces whose LLMTasks that worker may serve; null: no limit.
    pub namespaces: Option<Cow<'a, [String]>>,
    /// When it was created.
    pub created_at: Ms,
    /// When it expires; null: never.
    pub expires_at: Option<Ms>,
    /// `admin`, or `key:` and the name of the key that was used to create it.
    pub created_by: Cow<'a, str>,
    /// When it was last used, accurate to about ten seconds; null: never.
    pub last_used_at: Option<Ms>,
    /// Until when the previous key, which the last rotation replaced, is also valid; null: it is no longer valid, or the key was never
    /// rotated.
    pub former_until: Option<Ms>,
    /// The team whose member keys see its tasks; null: none.
    pub team: Option<Cow<'a, str>>,
    /// The limits of its owner, and how much of them is used; null: no limits.
    pub quota: Option<KeyQuota>,
}

impl<'a> From<&'a ApiKey> for Key<'a> {
    fn from(key: &'a ApiKey) -> Self {
        Self {
            name: (&key.name).into(),
            scope: key.scope.into(),
            worker: key.worker.as_deref().map(Cow::from),
            push: key.push,
            namespaces: key.namespaces.as_deref().map(Cow::from),
            created_at: key.created_at,
            expires_at: key.expires_at,
            created_by: (&key.created_by).into(),
            last_used_at: None,
            former_until: key.former.as_ref().map(|former| former.until),
            team: key.team.as_deref().map(Cow::from),
            quota: KeyQuota::of(key, None, None),
        }
    }
}

/// The caller of a request.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct WhoAmI<'a> {
    /// What the caller may do.
    pub scope: AnyScope,
    /// The caller's named key, with its quota and how much of it is used; null: the caller has no key, or one of the server's settings.
    pub key: Option<Key<'a>>,
    /// Whether the server asks for no key, so that everybody may do everything.
    pub open: bool,
}

/// A key that was just created.
#[derive(Clone, Deserialize, Serialize, ToSchema)]
pub struct CreatedKey<'a> {
    /// The properties of the key, without the key itself.
    #[serde(flatten)]
    pub about: Key<'a>,
    /// The key itself. It is shown only here, because the server keeps only a digest of it.
    pub key: Cow<'a, str>,
}
