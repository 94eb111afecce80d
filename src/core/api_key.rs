//! Named keys of the API. Only a digest of each is known here; the key itself exists only at its owner.

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
    /// Whether tasks belong to the keys that create them, which may have a team and a quota.
    pub fn owns_tasks(self) -> bool {
        matches!(self, Self::Submit | Self::Member)
    }
}

/// Whose tasks a key sees and changes, if not those of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Those that the submit key with this name created.
    Key(String),
    /// Those that the keys of this team created.
    Team(String),
}

impl Owner {
    /// In front of the names that its keys choose. Names of keys have no `:`, so no key reaches the names of a team.
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
    /// It identifies the key, in lists, in the audit trail, and as the owner of tasks.
    pub name: String,
    /// The SHA-256 digest of the key, in hexadecimal.
    pub digest: String,
    /// The key that this one has replaced, while both are valid; `None` if it was not rotated.
    pub former: Option<FormerKey>,
    /// What the key may do.
    pub scope: Scope,
    /// The worker that the key speaks for, or the only worker that the join token enrolls.
    pub worker: Option<WorkerId>,
    /// Whether that worker may name the URL that the server calls.
    pub push: bool,
    /// The Kubernetes namespaces whose tasks that worker may serve; `None` = all tasks, also those of no namespace.
    pub namespaces: Option<Vec<String>>,
    /// When it was created.
    pub created_at: Ms,
    /// From this time on it opens nothing; `None`: it never expires.
    pub expires_at: Option<Ms>,
    /// The [`Actor`](super::audit::Actor) that created it.
    pub created_by: String,
    /// The most that the tasks and uploads of the key may be; without a limit for keys that own no tasks.
    pub quota: Quota,
    /// Whose member keys see the tasks that it creates. A submit key may have one, a member key has one.
    pub team: Option<String>,
}

/// The key that stood under a name before it was rotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerKey {
    /// Its SHA-256 digest, in hexadecimal.
    pub digest: String,
    /// From this time on it opens nothing.
    pub until: Ms,
}

/// The most that the owner of a submit or member key may have; `None` = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Tasks that have not finished.
    pub max_open_tasks: Option<i64>,
    /// Tasks that are created or requeued in a minute. As many may be at once; their room comes back evenly over a minute.
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

/// Marks a key as one of this program, for people and for programs that look for secrets in texts.
pub const PREFIX: &str = "bloom_";
/// The most named keys, besides those of WorkerPools.
pub const MAX_KEYS: usize = 1_000;
/// The most keys of all WorkerPools, and of those of one Kubernetes namespace.
pub const MAX_POOL_KEYS: usize = 10_000;
/// The most keys of the WorkerPools of one Kubernetes namespace.
pub const MAX_POOL_KEYS_OF_NAMESPACE: usize = 1_000;
/// Bytes of the name of a key.
pub const MAX_KEY_NAME: usize = 63;
/// The largest limits of a [`Quota`].
pub const MAX_QUOTA_TASKS: i64 = 10_000_000;
/// The largest limit of the stored bytes of a [`Quota`].
pub const MAX_QUOTA_BYTES: i64 = 1 << 50;
/// Before the worker's name in the name of the key that enrolling creates.
const ENROLLED: &str = "worker-";
/// Limit of the names of workers that can be enrolled: the name of the key has to fit.
pub const MAX_ENROLLED_NAME: usize = MAX_KEY_NAME - ENROLLED.len();

impl ApiKey {
    /// Whose tasks it sees; `None` if its scope does not limit that.
    pub fn sees(&self) -> Option<Owner> {
        match self.scope {
            Scope::Submit => Some(Owner::Key(self.name.clone())),
            // Each has a team, and no team has this name.
            Scope::Member => Some(Owner::Team(self.team.clone().unwrap_or_else(|| "/".to_owned()))),
            Scope::Admin | Scope::Worker | Scope::Read | Scope::Join => None,
        }
    }

    /// The key that stood under this name before, as a key of its own: it opens the same until its own end.
    pub fn before_rotation(&self) -> Option<Self> {
        let FormerKey { digest, until } = self.former.clone()?;
        Some(Self { digest, expires_at: Some(until), former: None, ..self.clone() })
    }

    /// Whether the key opens nothing any more, because its time is over.
    pub fn has_expired(&self, now: Ms) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// The Kubernetes namespace whose WorkerPool has the key; `None` for the key of anybody else. The name of a key does not tell: an
    /// administrator may choose any.
    pub fn pool_namespace(&self) -> Option<&str> {
        namespace_of_actor(&self.created_by)
    }
}

/// Whether this can be the name of a key. It has no `/`, which ends the name in front of the names of a submit key's contexts.
pub fn is_key_name(name: &str) -> bool {
    (1..=MAX_KEY_NAME).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The name of the key that a worker gets when it is enrolled.
pub fn enrolled_name(worker: &str) -> String {
    format!("{ENROLLED}{worker}")
}
