//! The flags that limit what the owner of a key may have, and `key quota`, which changes only the limits that are named.

use std::ops::RangeInclusive;

use clap::Args;
use serde_json::Value;

use super::number::within;
use super::server_calls::{Server, read};
use crate::CommandError;
use bloom_api::keys::{Key, NewQuota};
use bloom_api::values::Int;
use bloom_client::part;
use bloom_core::api_key::{MAX_QUOTA_BYTES, MAX_QUOTA_TASKS, Quota};

/// The names of the fields of [`QuotaFlags`] and [`QuotaChange`].
pub(crate) const FLAGS: [&str; 3] = ["max_open_tasks", "max_tasks_per_minute", "max_stored_mib"];
const TASKS: RangeInclusive<i64> = 1..=MAX_QUOTA_TASKS;
const MIB: RangeInclusive<i64> = 1..=MAX_QUOTA_BYTES >> 20;

/// What the owner of a new submit or member key may have at most.
#[derive(Args, Debug)]
pub struct QuotaFlags {
    /// Maximum number of unfinished tasks of its owner, for a key of scope submit or member [default: no limit]
    #[arg(long, value_name = "N", value_parser = within(TASKS))]
    max_open_tasks: Option<i64>,
    /// Maximum number of tasks that its owner creates or requeues in a minute, for a key of scope submit or member [default: no limit]
    #[arg(long, value_name = "N", value_parser = within(TASKS))]
    max_tasks_per_minute: Option<i64>,
    /// Maximum size of the tasks and uploads of its owner, in MiB: prompts, answers, events and files; for a key of scope submit or member
    /// [default: no limit]
    #[arg(long, value_name = "MIB", value_parser = within(MIB))]
    max_stored_mib: Option<i64>,
}

impl QuotaFlags {
    /// `None` if no limit is given.
    pub(crate) fn given(&self) -> Option<NewQuota> {
        let max_stored_bytes = self.max_stored_mib.map(|mib| mib << 20);
        body(Quota { max_open_tasks: self.max_open_tasks, max_tasks_per_minute: self.max_tasks_per_minute, max_stored_bytes })
    }
}

/// How the quota of a key changes. A limit whose flag is not given stays as it is.
#[derive(Args, Debug)]
pub struct QuotaChange {
    /// Maximum number of unfinished tasks of its owner, or none to remove this limit [default: it stays]
    #[arg(long, value_name = "N|none", value_parser = limit(TASKS), allow_negative_numbers = true)]
    max_open_tasks: Option<Limit>,
    /// Maximum number of tasks that its owner creates or requeues in a minute, or none to remove this limit [default: it stays]
    #[arg(long, value_name = "N|none", value_parser = limit(TASKS), allow_negative_numbers = true)]
    max_tasks_per_minute: Option<Limit>,
    /// Maximum size of the tasks and uploads of its owner, in MiB: prompts, answers, events and files; or none to remove this limit
    /// [default: it stays]
    #[arg(long, value_name = "MIB|none", value_parser = limit(MIB), allow_negative_numbers = true)]
    max_stored_mib: Option<Limit>,
    /// Remove all limits
    #[arg(long, conflicts_with_all = FLAGS)]
    none: bool,
}

/// A limit as it shall be; `None`: no limit.
#[derive(Clone, Copy, Debug)]
struct Limit(Option<i64>);

fn limit(range: RangeInclusive<i64>) -> impl Fn(&str) -> Result<Limit, String> + Clone + Send + Sync + 'static {
    let number = within(range);
    move |text| match text {
        "none" => Ok(Limit(None)),
        _ => number(text).map(|most| Limit(Some(most))).map_err(|wrong| format!("{wrong}, or none")),
    }
}

impl QuotaChange {
    /// The quota of a key that had `before`.
    fn applied_to(&self, before: Quota) -> Quota {
        if self.none {
            return Quota::default();
        }
        let limit = |changed: Option<Limit>, before| changed.map_or(before, |limit| limit.0);
        Quota {
            max_open_tasks: limit(self.max_open_tasks, before.max_open_tasks),
            max_tasks_per_minute: limit(self.max_tasks_per_minute, before.max_tasks_per_minute),
            max_stored_bytes: limit(self.max_stored_mib.map(|limit| Limit(limit.0.map(|mib| mib << 20))), before.max_stored_bytes),
        }
    }

    /// Changes the quota of this key, and returns the key as it is then. The call replaces the whole quota, so the former one is read first.
    pub(crate) async fn send(&self, name: &str, server: &Server) -> Result<Value, CommandError> {
        let path = format!("api/runtime/keys/{}/quota", part(name));
        let before = if self.none { Quota::default() } else { quota_of(name, server).await? };
        match body(self.applied_to(before)) {
            Some(quota) => server.post(&path, &quota).await,
            None => server.delete(&path).await,
        }
    }
}

/// No limits if there is no such key: the call that changes it tells so.
async fn quota_of(name: &str, server: &Server) -> Result<Quota, CommandError> {
    let keys: Vec<Key> = read(&server.get("api/runtime/keys").await?)?;
    let quota = keys.into_iter().find(|key| key.name == name).and_then(|key| key.quota);
    Ok(quota.map_or_else(Quota::default, |quota| Quota {
        max_open_tasks: quota.max_open_tasks,
        max_tasks_per_minute: quota.max_tasks_per_minute,
        max_stored_bytes: quota.max_stored_bytes,
    }))
}

/// `None` if it limits nothing, which the server does not take as a quota.
fn body(quota: Quota) -> Option<NewQuota> {
    (!quota.is_unlimited()).then(|| NewQuota {
        max_open_tasks: quota.max_open_tasks.map(Int),
        max_tasks_per_minute: quota.max_tasks_per_minute.map(Int),
        max_stored_bytes: quota.max_stored_bytes.map(Int),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_not_named_stay() {
        let before = Quota { max_open_tasks: Some(10), max_tasks_per_minute: Some(5), max_stored_bytes: Some(100 << 20) };
        let change = QuotaChange { max_open_tasks: Some(Limit(Some(50))), max_tasks_per_minute: None, max_stored_mib: None, none: false };
        assert_eq!(change.applied_to(before), Quota { max_open_tasks: Some(50), ..before });
        let change = QuotaChange { max_stored_mib: Some(Limit(None)), max_open_tasks: None, ..change };
        assert_eq!(change.applied_to(before), Quota { max_stored_bytes: None, ..before });
        let change = QuotaChange { max_stored_mib: Some(Limit(Some(7))), ..change };
        assert_eq!(change.applied_to(before), Quota { max_stored_bytes: Some(7 << 20), ..before });
        assert_eq!(QuotaChange { max_stored_mib: None, none: true, ..change }.applied_to(before), Quota::default());
    }

    #[test]
    fn a_limit_is_a_number_or_none() {
        let limit = limit(TASKS);
        assert_eq!((limit("7").unwrap().0, limit("none").unwrap().0), (Some(7), None));
        assert!(limit("0").unwrap_err().ends_with(", or none") && limit("no").is_err());
    }
}
