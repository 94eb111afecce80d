//! Pauses: why a worker takes no tasks, or no tasks of some agents, although it is not offline.

use serde::{Deserialize, Serialize};

use super::Ms;
use super::ids::WorkerId;
use super::words::words;

words! {
    /// What of a worker is paused.
    PauseKind { Account = "account", Profile = "profile", Worker = "worker" }
}
words! {
    /// Why it is paused.
    PauseCause {
        /// The account is out of quota.
        Quota = "quota",
        /// The provider refused the credentials of the account.
        Credentials = "credentials",
        /// The account has no credit.
        Billing = "billing",
        /// The account may not use the model of the profile.
        Model = "model",
        /// Runs of the profile end before they begin.
        Start = "start",
        /// The worker can't write to its disk.
        Disk = "disk",
    }
}

/// The text by which the message of a task shows that the task waits for [`PauseCause::Disk`]. If it is found, users are advised what to
/// do.
pub const DISK_PAUSED: &str = "a disk is full or does not work";

impl PauseCause {
    /// Whether it ends by itself, without action by a person.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Quota | Self::Disk)
    }
}

/// One reason why a worker takes no tasks, or no tasks of some agents, as its agent reports it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Pause {
    /// What is paused: an account, a profile or the whole worker.
    pub kind: PauseKind,
    /// The name of the account, the profile or the worker.
    pub name: String,
    /// Why it is paused.
    pub cause: PauseCause,
    /// Since when it is paused.
    pub since: Ms,
    /// When it ends, or when the worker tries again.
    pub until: Ms,
    /// A message for people: what is paused, why, and what to do.
    pub message: String,
    /// The agent slugs whose tasks are not taken; `None` = all that the worker serves.
    pub agents: Option<Vec<String>>,
    /// The worker that found it, if it was another worker. Only the worker that found a pause reports it to others, so that the pause ends
    /// everywhere with its origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_by: Option<WorkerId>,
    /// Whether an administrator has ended it while its agent still reports it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_resumed: bool,
}

impl Pause {
    /// Whether this is the same pause, reported again.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.kind, &self.name, self.cause, self.since) == (other.kind, &other.name, other.cause, other.since)
    }
}

/// An account with a pause that an administrator has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ResumedAccount {
    /// The name of the account.
    pub account: String,
    /// The beginning of that pause. Pauses with another beginning are not ended.
    pub since: Ms,
}

/// An account that a worker has found to be out of quota.
#[derive(Clone, Debug, PartialEq)]
pub struct PausedAccount {
    /// The name of the account.
    pub account: String,
    /// When its quota is expected to be available again, or when the worker tries again.
    pub until: Ms,
    /// The worker that found it.
    pub worker: WorkerId,
}
