//! Answers about the whole server: statistics, settings, health.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use bloom_core::Ms;

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Stats {
    #[serde(default)]
    #[schema(required)]
    pub tasks: TaskStats,
    #[serde(default)]
    #[schema(required)]
    pub leases: LeaseStats,
    #[serde(default)]
    #[schema(required)]
    pub workers: WorkerStats,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct TaskStats {
    pub total: i64,
    pub by_status: BTreeMap<Cow<'static, str>, i64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct LeaseStats {
    pub total: i64,
    pub active: i64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct WorkerStats {
    pub total: i64,
    pub online: i64,
}

/// Tokens and US dollars that the runs of one group used.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct UsageRow<'a> {
    /// The day (`2026-02-25`), agent, model or context.
    pub key: Cow<'a, str>,
    pub runs: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_usd: f64,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Config {
    /// User and password in the URL are replaced by `****`.
    pub membridge_server_url: String,
    pub admin_key_masked: String,
    pub connected: bool,
    pub last_test: Option<Ms>,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ConnectionTest {
    pub connected: bool,
    /// The answer of the control plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    pub health: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: Cow<'static, str>,
    pub service: Cow<'static, str>,
    /// Seconds since the start of the server.
    pub uptime: f64,
    /// `postgresql` or `sqlite`.
    pub storage: Cow<'static, str>,
    pub membridge: MembridgeState,
}

/// The state of the connection to the control plane.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MembridgeState {
    pub consecutive_failures: u32,
    pub last_success: Option<Ms>,
    pub last_error: Option<String>,
    pub connected: bool,
}

/// The answer of a probe.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Probe {
    pub status: Cow<'static, str>,
}
