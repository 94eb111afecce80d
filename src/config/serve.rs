//! The settings of `serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::parse;
use bloom_telemetry::LogFormat;

/// All of them, checked.
#[derive(Clone, Debug)]
pub struct Serve {
    /// An address or a name, without brackets.
    pub host: String,
    /// 0 = any free one.
    pub port: u16,
    pub public_url: Option<Url>,
    pub trusted_proxies: Vec<IpNet>,
    pub data_dir: PathBuf,
    pub database_url: SecretString,
    pub database_max_connections: u32,
    /// 0 = for ever, as below.
    pub task_retention_days: u32,
    pub audit_retention_days: u32,
    pub api_key: Option<SecretString>,
    pub worker_key: Option<SecretString>,
    pub read_key: Option<SecretString>,
    pub membridge_server_url: Option<Url>,
    pub membridge_admin_key: Option<SecretString>,
    pub agent_key: Option<SecretString>,
    pub worker_sync_ms: i64,
    /// 0 = no limit, as the next two.
    pub rate_limit_per_minute: u32,
    pub test_connection_per_minute: u32,
    pub worker_rate_limit_per_minute: u32,
    pub max_body_bytes: usize,
    pub max_output_bytes: usize,
    pub request_timeout: Duration,
    pub lease_ttl_ms: i64,
    pub worker_offline_after_ms: i64,
    pub session_wait_ms: i64,
    pub log_format: LogFormat,
    pub log_level: String,
}

impl Serve {
    /// The database's URL without its password, for people.
    pub fn shown_database_url(&self) -> String {
        parse::masked_database_url(self.database_url.expose_secret())
    }

    /// What is allowed, but hardly meant.
    pub fn warnings(&self) -> Vec<String> {
        let is_loopback = self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let has_lesser_key = self.worker_key.is_some() || self.read_key.is_some();
        match (&self.api_key, has_lesser_key) {
            (Some(_), _) => Vec::new(),
            (None, true) => vec!["RUNTIME_API_KEY is not set, but a worker or read key is: nobody can create or change tasks".to_owned()],
            (None, false) if is_loopback => Vec::new(),
            (None, false) => vec![format!(
                "NO AUTHENTICATION: everybody who can reach this server on {} may read and change everything. \
                 Set RUNTIME_API_KEY, or listen on 127.0.0.1 only.",
                self.host
            )],
        }
    }
}
