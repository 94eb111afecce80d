//! Answers about the whole server: statistics, settings, health.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use bloom_core::Ms;

/// Counts of tasks, leases and workers.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Stats {
    /// Counts of tasks.
    pub tasks: TaskStats,
    /// Counts of leases.
    pub leases: LeaseStats,
    /// Counts of workers.
    pub workers: WorkerStats,
}

/// Counts of tasks.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct TaskStats {
    /// Number of tasks.
    pub total: i64,
    /// Number of tasks by status; a status without tasks is absent.
    pub by_status: BTreeMap<Cow<'static, str>, i64>,
}

/// Counts of leases.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct LeaseStats {
    /// Number of leases that were ever made, including ended ones and those of removed tasks.
    pub total: i64,
    /// Number of active leases.
    pub active: i64,
}

/// Counts of workers.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct WorkerStats {
    /// Number of workers.
    pub total: i64,
    /// Number of workers that are online.
    pub online: i64,
}

/// Tokens and US dollars that the runs of one group used.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct UsageRow<'a> {
    /// The value of the first word of `by`: the day (`2026-02-25`), agent, model, context, …
    pub key: Cow<'a, str>,
    /// The value of each word of `by`, in their order.
    #[serde(default)]
    #[schema(required, value_type = BTreeMap<String, String>)]
    pub keys: Map<String, Value>,
    /// Number of runs.
    pub runs: i64,
    /// Number of tokens that models read.
    pub input_tokens: i64,
    /// Number of tokens that models wrote.
    pub output_tokens: i64,
    /// US dollars.
    pub cost_usd: f64,
    /// Whether the US dollars of some of the runs are estimated.
    pub cost_estimated: bool,
}

impl UsageRow<'_> {
    /// The values of all keys in one text.
    pub fn all_keys(&self) -> String {
        let keys = self.keys.values().filter_map(Value::as_str);
        keys.map(|key| if key.is_empty() { "-" } else { key }).collect::<Vec<_>>().join(", ")
    }

    /// The sum of these rows.
    pub fn total<'a>(rows: &[UsageRow<'a>]) -> UsageRow<'a> {
        let whole = |of: fn(&UsageRow<'a>) -> i64| rows.iter().map(of).fold(0, i64::saturating_add);
        UsageRow {
            key: "TOTAL".into(),
            keys: Map::from_iter([("total".to_owned(), "TOTAL".into())]),
            runs: whole(|row| row.runs),
            input_tokens: whole(|row| row.input_tokens),
            output_tokens: whole(|row| row.output_tokens),
            cost_usd: rows.iter().map(|row| row.cost_usd).sum(),
            cost_estimated: rows.iter().any(|row| row.cost_estimated),
        }
    }
}

/// The settings of the control plane.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Config {
    /// User and password in the URL are replaced by `****`.
    pub membridge_server_url: String,
    /// The first and the last four characters of the key; empty if there is none.
    pub admin_key_masked: String,
    /// Whether the last call to the control plane succeeded.
    pub connected: bool,
    /// When the connection was last tested.
    pub last_test: Option<Ms>,
    /// Where the control plane of this server itself listens; absent if another one is used, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub built_in_url: Option<String>,
}

/// The outcome of a test of the connection to the control plane.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ConnectionTest {
    /// Whether the control plane answered.
    pub connected: bool,
    /// The answer of the control plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    pub health: Option<serde_json::Value>,
    /// Why it did not; absent if it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

/// The health of the server.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: Cow<'static, str>,
    /// Always `bloom-runtime`.
    pub service: Cow<'static, str>,
    /// Seconds since the start of the server.
    pub uptime: f64,
    /// `postgresql` or `sqlite`.
    pub storage: Cow<'static, str>,
    /// The state of the connection to the control plane.
    pub membridge: MembridgeState,
}

/// The state of the connection to the control plane.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MembridgeState {
    /// Number of calls that failed since the last success.
    pub consecutive_failures: u32,
    /// When a call last succeeded.
    pub last_success: Option<Ms>,
    /// Why the last failed call failed.
    pub last_error: Option<String>,
    /// Whether the last call succeeded.
    pub connected: bool,
}

/// The answer of a probe.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Probe {
    /// `ok` or `ready`.
    pub status: Cow<'static, str>,
    /// How the Kubernetes operator of this server is doing, for people; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub kubernetes: Option<String>,
}
