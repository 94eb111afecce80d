//! Named keys of the API. The server stores only a digest of each key; the key itself exists only at its owner.

use std::fmt;

use super::Ms;
use super::audit::namespace_of_actor;
use super::ids::WorkerId;
use super::words::words;

words! {
    /// What a key may do.
    Scope {
        /// Everything.
        Admin = "admin",
        /// Create tasks, and see, cancel and requeue those that it created.
        Submit = "submit",
        /// Create tasks, and see, cancel and requeue those of its team; read what tasks of the team used, and what they can run on.
        Member = "member",
        /// What a worker needs: claim, report, complete. A named key speaks for one worker only.
        Worker = "worker",
        /// Read everything, change nothing.
        Read = "read",
        /// Enroll one worker, once.
        Join = "join",
    }
}

impl Scope {
    /// Whether tasks belong to the keys of this scope that create them. Such keys may have a team and a quota.
    pub fn owns_tasks(self) -> bool {
        matches!(self, Self::Submit | Self::Member)
    }
}

/// The owner whose tasks a key may see and change, if the key may not see all tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The tasks that the submit key with this name created.
    Key(String),
    /// The tasks that the keys of this team created.
    Team(String),
}

impl Owner {
    /// The prefix of the names that its keys choose. Names of keys have no `:`, so no key can use the names of a team.
    pub fn prefix(&self) -> String {
        match self {
            Self::Key(name) => name.clone(),
            Self::Team(name) => format!("team:{name}"),
        }
    }
}

/// A named key, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// The name, which identifies the key in lists, in the audit trail, and as the owner of tasks.
    pub name: String,
    /// The SHA-256 digest of the key, in hexadecimal.
    pub digest: String,
    /// The key that this one has replaced, while both are valid; `None` if it was not rotated.
    pub former: Option<FormerKey>,
    /// What the key may do.
    pub scope: Scope,
    /// The worker that the key speaks for, or the only worker that the join token enrolls.
    pub worker: Option<WorkerId>,
    /// Whether that worker may set the URL that the server calls.
    pub push: bool,
    /// The Kubernetes namespaces whose tasks that worker may serve; `None` = all tasks, including those of no namespace.
    pub namespaces: Option<Vec<String>>,
    /// When it was created.
    pub created_at: Ms,
    /// When the key stops working; `None`: it never expires.
    pub expires_at: Option<Ms>,
    /// The [`Actor`](super::audit::Actor) that created it.
    pub created_by: String,
    /// The limits of the key's tasks and uploads. Keys that own no tasks have no limits.
    pub quota: Quota,
    /// The team whose member keys see the tasks that it creates. A submit key may have a team; a member key always has one.
    pub team: Option<String>,
}

/// The previous key of this name, before it was rotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerKey {
    /// Its SHA-256 digest, in hexadecimal.
    pub digest: String,
    /// When the previous key stops working.
    pub until: Ms,
}

/// The limits of the owner of a submit or member key; `None` = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Tasks that have not finished.
    pub max_open_tasks: Option<i64>,
    /// Tasks that are created or requeued in a minute. The whole allowance may be used at once; it is refilled evenly over a minute.
    pub max_tasks_per_minute: Option<i64>,
    /// Bytes of its uploads and tasks: prompts, answers, events and files, and [`TASK_BYTES`](super::task::TASK_BYTES) for each task.
    pub max_stored_bytes: Option<i64>,
}

impl Quota {
    /// Whether it limits nothing.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.max_open_tasks.map(|most| format!("{most} open tasks")),
            self.max_tasks_per_minute.map(|most| format!("{most} tasks a minute")),
            self.max_stored_bytes.map(|most| format!("{most} stored bytes")),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "no quota".to_owned() } else { parts.join(", ") }.as_str())
    }
}

/// The prefix of every key of this program. It marks a key for people, and for programs that look for secrets in texts.
pub const PREFIX: &str = "bloom_";
/// The maximum number of named keys, without those of WorkerPools.
pub const MAX_KEYS: usize = 1_000;
/// The maximum number of keys of all WorkerPools together.
pub const MAX_POOL_KEYS: usize = 10_000;
/// The maximum number of keys of the WorkerPools of one Kubernetes namespace.
pub const MAX_POOL_KEYS_OF_NAMESPACE: usize = 1_000;
/// Bytes of the name of a key.
pub const MAX_KEY_NAME: usize = 63;
/// The largest limit of tasks in a [`Quota`].
pub const MAX_QUOTA_TASKS: i64 = 10_000_000;
/// The largest limit of the stored bytes of a [`Quota`].
pub const MAX_QUOTA_BYTES: i64 = 1 << 50;
/// The prefix of the name of a key that enrolling creates; the worker's name follows.
const ENROLLED: &str = "worker-";
/// The maximum length of the names of workers that can be enrolled, so that the name of the key fits.
pub const MAX_ENROLLED_NAME: usize = MAX_KEY_NAME - ENROLLED.len();

impl ApiKey {
    /// Whose tasks the key may see; `None` if its scope does not limit that.
    pub fn sees(&self) -> Option<Owner> {
        match self.scope {
            Scope::Submit => Some(Owner::Key(self.name.clone())),
            // Each member key has a team, and no team has this name.
            Scope::Member => Some(Owner::Team(self.team.clone().unwrap_or_else(|| "/".to_owned()))),
            Scope::Admin | Scope::Worker | Scope::Read | Scope::Join => None,
        }
    }

    /// The previous key of this name, as a separate key. It has the same rights until it expires.
    pub fn before_rotation(&self) -> Option<Self> {
        let FormerKey { digest, until } = self.former.clone()?;
        Some(Self { digest, expires_at: Some(until), former: None, ..self.clone() })
    }

    /// Whether the key has expired.
    pub fn has_expired(&self, now: Ms) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// The Kubernetes namespace whose WorkerPool has the key; `None` for all other keys. The key's name can't show this, because an
    /// administrator may choose any name.
    pub fn pool_namespace(&self) -> Option<&str> {
        namespace_of_actor(&self.created_by)
    }
}

/// Whether this can be the name of a key. It must not contain `/`, which separates the key's name from the names of a submit key's
/// contexts.
pub fn is_key_name(name: &str) -> bool {
    (1..=MAX_KEY_NAME).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The name of the key that a worker gets when it is enrolled.
pub fn enrolled_name(worker: &str) -> String {
    format!("{ENROLLED}{worker}")
}
