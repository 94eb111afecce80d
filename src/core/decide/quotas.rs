//! Quotas of submit and member keys: they are changed here, and checked when the keys create or requeue tasks or upload files.

use crate::Ms;
use crate::api_key::{ApiKey, Quota};
use crate::audit::{Action, Actor, EntityType};
use crate::operation::Operation;
use crate::rejection::Rejection;
use crate::row_keys::RowKeys;
use crate::working_set::{Halt, QuotaUse, WorkingSet};

const MINUTE_MS: Ms = 60_000;

/// Changes the quota of a submit or member key, from its next call on. Existing tasks and uploads stay.
#[derive(Clone, Debug)]
pub struct SetQuota {
    /// The name of the key.
    pub name: String,
    /// The new limits of the key.
    pub quota: Quota,
}

impl Operation for SetQuota {
    /// The key with its quota.
    type Reply = ApiKey;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.add_api_key(&self.name);
        keys.quotas.insert(self.name.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ApiKey, Halt> {
        let key = set.find_api_key(&self.name)?.ok_or(Rejection::KeyNotFound)?.clone();
        if !key.scope.owns_tasks() {
            return Err(Rejection::NoQuotaFor(key.scope).into());
        }
        let used = set.quota_use(&self.name)?.ok_or(Rejection::KeyNotFound)?;
        if used.quota != self.quota {
            set.audit(Action::QuotaChanged, EntityType::Key, &self.name, &Actor::Admin, self.quota.to_string());
            set.put_quota_use(&self.name, QuotaUse { quota: self.quota, ..used });
            set.dirty.quotas.has_changed = true;
        }
        Ok(ApiKey { quota: self.quota, ..key })
    }
}

/// What a call adds to the use of its key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Added {
    /// Tasks that become open: new ones, and those that are queued again.
    pub tasks: i64,
    pub bytes: i64,
}

/// A key, and the use of its quota after a call.
pub(super) struct Used {
    key: String,
    used: QuotaUse,
}

/// The use of the requester's quota after this call; `None` if it has no quota.
///
/// # Errors
/// The quota has no room for it.
pub(super) fn check(set: &WorkingSet, added: Added) -> Result<Option<Used>, Halt> {
    let Some(key) = set.by.key.as_deref().filter(|_| set.by.has_quota) else { return Ok(None) };
    // If there is no row, the key was revoked while the call was on its way, so its limits are unknown.
    let used = set.quota_use(key)?.ok_or(Rejection::KeyGone)?;
    Ok(Some(Used { key: key.to_owned(), used: after(set, used, added)? }))
}

/// Like [`check`], but for the key that created a task, if another key of its team requeues it. Administrators are not limited.
///
/// # Errors
/// The quota has no room for it.
pub(super) fn check_creator(set: &WorkingSet, creator: Option<&str>, added: Added) -> Result<Option<Used>, Halt> {
    let Some(key) = creator.filter(|key| set.by.owns_tasks && set.by.key.as_deref() != Some(*key)) else { return Ok(None) };
    // A revoked key has no quota any more.
    let Some(used) = set.quota_use(key)?.filter(|used| !used.quota.is_unlimited()) else { return Ok(None) };
    let used = after(set, used, added).map_err(|refusal| Rejection::QuotaOfCreator(key.to_owned(), Box::new(refusal)))?;
    Ok(Some(Used { key: key.to_owned(), used }))
}

fn after(set: &WorkingSet, used: QuotaUse, added: Added) -> Result<QuotaUse, Rejection> {
    let Quota { max_open_tasks, max_tasks_per_minute, max_stored_bytes } = used.quota;
    if let Some(most) = max_open_tasks.filter(|most| added.tasks > 0 && used.open_tasks + added.tasks > *most) {
        return Err(Rejection::QuotaOfOpenTasks { most, open: used.open_tasks });
    }
    // This applies to requeued tasks too, because every run stores something.
    if let Some(most) = max_stored_bytes.filter(|most| used.stored_bytes.saturating_add(added.bytes.max(1)) > *most) {
        return Err(Rejection::QuotaOfStoredBytes { most, stored: used.stored_bytes });
    }
    let refilled_at = match max_tasks_per_minute.filter(|_| added.tasks > 0) {
        None => used.refilled_at,
        Some(most) if added.tasks > most => return Err(Rejection::QuotaOfOneCall { most }),
        Some(most) => {
            let now = set.now();
            // A clock that was set back, or a changed quota, must not make the key wait for longer than a minute.
            let begins = used.refilled_at.clamp(now, now + MINUTE_MS);
            let refilled_at = begins + (added.tasks * MINUTE_MS + most - 1) / most;
            if refilled_at > now + MINUTE_MS {
                return Err(Rejection::QuotaOfTasksPerMinute { most, wait_ms: refilled_at - now - MINUTE_MS });
            }
            refilled_at
        }
    };
    Ok(QuotaUse { refilled_at, stored_bytes: used.stored_bytes.saturating_add(added.bytes), ..used })
}

/// Writes the result of [`check`] or [`check_creator`]. It must be called after them and before the tasks change.
pub(super) fn take(set: &mut WorkingSet, used: Option<Used>) {
    if let Some(Used { key, used }) = used {
        set.put_quota_use(&key, used);
    }
}
