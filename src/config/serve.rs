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
    /// Where agents and browsers reach the server; `None`: at the address that clients call.
    pub public_url: Option<Url>,
    /// In addition to those of `host` and `public_url`.
    pub allowed_hosts: Vec<Host>,
    /// The proxies whose `X-Forwarded-*` headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// The server speaks https if there is one.
    pub tls: Option<bloom_tls::Files>,
    /// The directory of the SQLite database.
    pub data_dir: PathBuf,
    /// The database; secret, because it may contain a password.
    pub database_url: SecretString,
    /// The most connections for reads of API requests; everything else has its own.
    pub database_max_connections: u32,
    /// 0 = forever, also in the next field.
    pub task_retention_days: u32,
    /// Days that audit entries are kept.
    pub audit_retention_days: u32,
    /// Where the server keeps scheduled backups of the SQLite database; `None`: it makes none.
    pub backup_dir: Option<PathBuf>,
    /// The interval of scheduled backups.
    pub backup_every: Duration,
    /// How many scheduled backups are kept.
    pub backup_keep: usize,
    /// Where large outputs and the audit trail go; `None`: the database keeps them.
    pub objects: Option<ObjectStore>,
    /// The key that allows everything; `None`: there is no such key, as in the next two fields.
    pub api_key: Option<SecretString>,
    /// The key for workers.
    pub worker_key: Option<SecretString>,
    /// The key that allows reading only.
    pub read_key: Option<SecretString>,
    /// Whether a server without keys may listen beyond loopback.
    pub allow_no_key: bool,
    /// The control plane that requests are passed on to and workers are read from; `None`: there is none, or it is in the server.
    pub membridge_server_url: Option<Url>,
    /// The key for calls to the control plane.
    pub membridge_admin_key: Option<SecretString>,
    /// The key for calls to agents.
    pub agent_key: Option<SecretString>,
    /// The interval at which the control plane's list of agents is read, in milliseconds.
    pub worker_sync_ms: i64,
    /// The settings of this program's own control plane, whether it runs or not.
    pub own_membridge: OwnMembridge,
    /// 0 = no limit, also in the next two fields.
    pub rate_limit_per_minute: u32,
    /// Connection tests per minute from one client address.
    pub test_connection_per_minute: u32,
    /// Requests of workers per minute from one client address, and as many for events of runs.
    pub worker_rate_limit_per_minute: u32,
    /// The most bytes of a request body, not counting a task's output.
    pub max_body_bytes: usize,
    /// The most bytes of a task's output.
    pub max_output_bytes: usize,
    /// The most bytes of an uploaded file.
    pub max_artifact_bytes: usize,
    /// The longest duration of a request, except for long polls and streams. A large body adds to it.
    pub request_timeout: Duration,
    /// How long a lease lasts without a heartbeat, in milliseconds, unless the caller says otherwise.
    pub lease_ttl_ms: i64,
    /// How long a worker may be silent before it is offline, in milliseconds.
    pub worker_offline_after_ms: i64,
    /// How long a task waits for a free slot on the worker that has its session, in milliseconds.
    pub session_wait_ms: i64,
    /// How long a task waits for workers that name its `agent_slug`, in milliseconds; 0 = not at all.
    pub named_agent_wait_ms: i64,
    /// The longest time limit that a task may set for its runs, in seconds.
    pub max_timeout_sec: i64,
    /// Whether the Kubernetes operator runs.
    pub operator: bool,
    /// The namespaces that it serves; all if there are none.
    pub operator_namespaces: Vec<String>,
    /// The image of pools that name none.
    pub operator_agent_image: Option<String>,
    /// Where the agents of pools reach the server; by default at `public_url`.
    pub operator_agent_server: Option<Url>,
    /// The namespace of the leader's Lease; `None`: that of the service account or of the kubeconfig.
    pub pod_namespace: Option<String>,
    /// The name of this server's pod in the leader's Lease; `None`: the host name.
    pub pod_name: Option<String>,
    /// How the server logs.
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

    /// `PUBLIC_URL` as an address, without a slash at its end. `None`: it is not set.
    pub fn public_address(&self) -> Option<String> {
        self.public_url.as_ref().map(|url| url.as_str().trim_end_matches('/').to_owned())
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
