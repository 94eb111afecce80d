//! The quotas of the submit and member keys of a working set, and their use.

use std::collections::{BTreeMap, BTreeSet};

use super::{Halt, WorkingSet, need};
use crate::Ms;
use crate::api_key::Quota;
use crate::task::TaskState;

/// The quota of a key, and how much of it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuotaUse {
    /// The limits of the key.
    pub quota: Quota,
    /// How many of its tasks have not finished.
    pub open_tasks: i64,
    /// When the whole allowance of `max_tasks_per_minute` is available again, if no further task is created.
    pub refilled_at: Ms,
    /// The stored bytes: the leader's last measurement, plus what was created since.
    pub stored_bytes: i64,
}

/// A key that is missing was not asked for. `None` means that it does not exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadedQuotas {
    /// By the names of the keys.
    pub uses: BTreeMap<String, Option<QuotaUse>>,
    /// Keys that could not be loaded because another program keeps their rows locked.
    pub locked: BTreeSet<String>,
}

/// The keys whose quota or use a batch changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirtyQuotas {
    /// Names of keys whose quota and use are written.
    pub written: BTreeSet<String>,
    /// Whether the quota of one of them changed, so that other replicas have to read it again.
    pub has_changed: bool,
}

impl WorkingSet {
    /// The quota of this key and its use; `None` if there is no such key.
    pub fn quota_use(&self, key: &str) -> Result<Option<QuotaUse>, Halt> {
        match self.loaded.quotas.uses.get(key) {
            Some(known) => Ok(*known),
            None if self.loaded.quotas.locked.contains(key) => Err(Halt::Locked),
            None => Err(need(|keys| keys.quotas.insert(key.to_owned()))),
        }
    }

    /// Writes the quota of this key and its use.
    pub fn put_quota_use(&mut self, key: &str, used: QuotaUse) {
        self.dirty.quotas.written.insert(key.to_owned());
        self.loaded.quotas.uses.insert(key.to_owned(), Some(used));
    }

    /// Updates the number of open tasks of a loaded key when one of its tasks changes.
    pub(super) fn count_open(&mut self, task: &TaskState, was_open: bool) {
        if let Some(owner) = &task.owner
            && let Some(Some(used)) = self.loaded.quotas.uses.get_mut(owner)
        {
            used.open_tasks += i64::from(!task.status.is_final()) - i64::from(was_open);
        }
    }
}
