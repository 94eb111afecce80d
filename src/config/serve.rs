//! The settings of `serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use secrecy::{ExposeSecret, SecretString};
use url::{Host, Url};

use super::objects::ObjectStore;
use super::postgres;
use super::settings::{self as s, Setting};
use bloom_telemetry::{LogSettings, TraceSettings};

/// Shorter keys cause a warning.
const GOOD_KEY_CHARS: usize = 16;

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct Serve {
    /// An address or a name, without brackets.
    pub host: String,
    /// 0 = any free port.
    pub port: u16,
    pub public_url: Option<Url>,
    /// In addition to those of `host` and `public_url`.
    pub allowed_hosts: Vec<Host>,
    pub trusted_proxies: Vec<IpNet>,
    /// The server speaks https if there is one.
    pub tls: Option<bloom_tls::Files>,
    pub data_dir: PathBuf,
    pub database_url: SecretString,
    pub database_max_connections: u32,
    /// 0 = forever, also in the next field.
    pub task_retention_days: u32,
    pub audit_retention_days: u32,
    /// Where the server keeps scheduled backups of the SQLite database; `None`: it makes none.
    pub backup_dir: Option<PathBuf>,
    pub backup_every: Duration,
    pub backup_keep: usize,
    /// Where large outputs and the audit trail go; `None`: the database keeps them.
    pub objects: Option<ObjectStore>,
    pub api_key: Option<SecretString>,
    pub worker_key: Option<SecretString>,
    pub read_key: Option<SecretString>,
    /// Whether a server without keys may listen beyond loopback.
    pub allow_no_key: bool,
    pub membridge_server_url: Option<Url>,
    pub membridge_admin_key: Option<SecretString>,
    pub agent_key: Option<SecretString>,
    pub worker_sync_ms: i64,
    pub own_membridge: OwnMembridge,
    /// 0 = no limit, also in the next two fields.
    pub rate_limit_per_minute: u32,
    pub test_connection_per_minute: u32,
    pub worker_rate_limit_per_minute: u32,
    pub max_body_bytes: usize,
    pub max_output_bytes: usize,
    pub max_artifact_bytes: usize,
    pub request_timeout: Duration,
    pub lease_ttl_ms: i64,
    pub worker_offline_after_ms: i64,
    pub session_wait_ms: i64,
    pub named_agent_wait_ms: i64,
    pub max_timeout_sec: i64,
    /// Whether the Kubernetes operator runs.
    pub operator: bool,
    /// The namespaces that it serves; all if there are none.
    pub operator_namespaces: Vec<String>,
    /// The image of pools that name none.
    pub operator_agent_image: Option<String>,
    /// Where the agents of pools reach the server; by default at `public_url`.
    pub operator_agent_server: Option<Url>,
    pub pod_namespace: Option<String>,
    pub pod_name: Option<String>,
    pub log: LogSettings,
    /// There are no traces without a collector.
    pub traces: Option<TraceSettings>,
}

/// The control plane of this program.
#[derive(Clone, Debug)]
pub struct OwnMembridge {
    /// Whether it runs in the server.
    pub in_server: bool,
    /// An address or a name, without brackets.
    pub host: String,
    /// 0 = any free port.
    pub port: u16,
    /// Its database when it runs by itself.
    pub database_url: SecretString,
}

impl Serve {
    /// The database's URL without its password, for logs and messages.
    pub fn shown_database_url(&self) -> String {
        postgres::masked(self.database_url.expose_secret())
    }

    /// The database's URL as programs of PostgreSQL take it, without its password. `None`: it is an SQLite file.
    pub fn postgres_url_without_password(&self) -> Option<String> {
        postgres::without_password(self.database_url.expose_secret())
    }

    /// Warnings about settings that are allowed but probably not intended.
    pub fn warnings(&self) -> Vec<String> {
        let access = match (&self.api_key, self.has_key()) {
            (Some(_), _) => None,
            (None, true) => Some("RUNTIME_API_KEY is not set, but a worker or read key is: nobody can create or change tasks".to_owned()),
            (None, false) if self.is_loopback() => None,
            (None, false) => Some(format!(
                "NO AUTHENTICATION: everybody who can reach this server on {} may read and change everything. \
                 Set RUNTIME_API_KEY, or listen on 127.0.0.1 only.",
                self.host
            )),
        };
        let is_short = |key: &&SecretString| key.expose_secret().chars().count() < GOOD_KEY_CHARS;
        let short = self.keys().into_iter().filter_map(|(setting, key)| key.as_ref().filter(is_short).map(|_| setting.env_name()));
        let short = short.map(|name| {
            format!(
                "{name} has fewer than {GOOD_KEY_CHARS} characters and may be guessed: set a longer one, for example from `openssl rand -hex 32`"
            )
        });
        // Files that can't be used are mistakes, not warnings.
        let tls = self.tls.as_ref().and_then(|files| files.check().ok()).unwrap_or_default();
        access.into_iter().chain(short).chain(tls).chain(postgres::warning(self.database_url.expose_secret())).collect()
    }

    pub(crate) fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    /// The settings of `bloom-runtime membridge`: the control plane by itself, with a database of its own.
    pub fn into_membridge(self) -> Self {
        let OwnMembridge { host, port, database_url, .. } = self.own_membridge.clone();
        let own_membridge = OwnMembridge { in_server: false, ..self.own_membridge };
        Self { host, port, database_url, own_membridge, ..self }
    }

    /// Whether requests need a key.
    pub fn has_key(&self) -> bool {
        self.api_key.is_some() || self.worker_key.is_some() || self.read_key.is_some()
    }

    /// The keys of the API, strongest first, and the key for calls to agents.
    pub(crate) fn keys(&self) -> [(&'static Setting, &Option<SecretString>); 4] {
        [
            (&s::RUNTIME_API_KEY, &self.api_key),
            (&s::RUNTIME_WORKER_KEY, &self.worker_key),
            (&s::RUNTIME_READ_KEY, &self.read_key),
            (&s::MEMBRIDGE_AGENT_KEY, &self.agent_key),
        ]
    }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
