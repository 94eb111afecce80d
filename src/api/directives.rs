//! What the server asks a worker to do, with its answers to claims and heartbeats. Compatible as [`answers`](super::answers) are.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use bloom_core::Ms;
use bloom_core::pause;

/// What the server asks a worker to do.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Directives {
    /// Tasks whose runs the worker must end.
    pub cancel: Vec<Uuid>,
    /// The leases of the tasks in `cancel`; absent if there are none. A worker that knows this field ends the runs of these leases and no
    /// others, because a late answer may name a task that the worker has leased again since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel_leases: Vec<Uuid>,
    /// Tasks whose runs have an answer to their question, which the worker fetches by repeating the call that asks it; absent if there are
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answered: Vec<Uuid>,
    /// The worker must take no new tasks, and finish or hand back those that it has.
    pub drain: bool,
    /// Those of the request's `accounts` that the worker must not use, because other workers found that they are out of quota; absent if there
    /// are none. An account that is no longer named may be used again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused_accounts: Vec<PausedAccount>,
    /// Accounts whose pauses an administrator has ended: the worker may use them again; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resumed_accounts: Vec<ResumedAccount>,
}

impl Directives {
    /// Whether the run of this lease must be ended.
    pub fn cancels(&self, lease: Uuid) -> bool {
        self.cancel_leases.contains(&lease)
    }
}

/// An account whose pause an administrator has ended.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ResumedAccount {
    /// The name of the account.
    pub account: String,
    /// When the pause that was ended began. A pause that began later goes on.
    pub since: Ms,
}

impl From<pause::ResumedAccount> for ResumedAccount {
    fn from(resumed: pause::ResumedAccount) -> Self {
        Self { account: resumed.account, since: resumed.since }
    }
}

/// An account that is out of quota.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PausedAccount {
    /// The name of the account.
    pub account: String,
    /// When the worker that detected it tries the account again, in milliseconds since the epoch. A worker that can check the account
    /// itself should do so after some minutes.
    pub until: Ms,
    /// The worker that detected it.
    pub worker: String,
}

impl From<pause::PausedAccount> for PausedAccount {
    fn from(paused: pause::PausedAccount) -> Self {
        Self { account: paused.account, until: paused.until, worker: paused.worker }
    }
}
