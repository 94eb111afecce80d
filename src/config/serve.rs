//! The settings of `serve`.

use std::net::IpAddr;

use secrecy::{ExposeSecret, SecretString};

use super::objects::ObjectStore;
use super::postgres;
use super::setting::Setting;
use super::settings::{self as s, ControlPlane, Data, Keys, Kubernetes, Limits, Network, Work};
use bloom_telemetry::{LogSettings, TraceSettings};

/// Shorter keys cause a warning.
const GOOD_KEY_CHARS: usize = 16;

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct Serve {
    /// Where the server listens, and how it is reached.
    pub network: Network,
    /// The server speaks https if there is one.
    pub tls: Option<bloom_tls::Files>,
    /// The database, how long it keeps what has ended, and its backups.
    pub data: Data,
    /// Where large outputs and the audit trail go; `None`: the database keeps them.
    pub objects: Option<ObjectStore>,
    /// The keys of the API that the settings name.
    pub keys: Keys,
    /// The control plane that the server uses, and that of this program.
    pub membridge: ControlPlane,
    /// How much clients may send, and how long a request may take.
    pub limits: Limits,
    /// How long leases last, and what tasks wait for.
    pub work: Work,
    /// The operator.
    pub kubernetes: Kubernetes,
    /// How the server logs.
    pub log: LogSettings,
    /// There are no traces without a collector.
    pub traces: Option<TraceSettings>,
}

impl Serve {
    /// The database's URL without its password, for logs and messages.
    pub fn shown_database_url(&self) -> String {
        postgres::masked(self.data.database_url.expose_secret())
    }

    /// The database's URL as programs of PostgreSQL take it, without its password. `None`: it is an SQLite file.
    pub fn postgres_url_without_password(&self) -> Option<String> {
        postgres::without_password(self.data.database_url.expose_secret())
    }

    /// Warnings about settings that are allowed but probably not intended.
    pub fn warnings(&self) -> Vec<String> {
        let access = match (&self.keys.api, self.has_key()) {
            (Some(_), _) => None,
            (None, true) => Some("RUNTIME_API_KEY is not set, but a worker or read key is: nobody can create or change tasks".to_owned()),
            (None, false) if self.is_loopback() => None,
            (None, false) => Some(format!(
                "NO AUTHENTICATION: everybody who can reach this server on {} may read and change everything. \
                 Set RUNTIME_API_KEY, or listen on 127.0.0.1 only.",
                self.network.host
            )),
        };
        let is_short = |key: &&SecretString| key.expose_secret().chars().count() < GOOD_KEY_CHARS;
        let short = self.all_keys().into_iter().filter_map(|(setting, key)| key.as_ref().filter(is_short).map(|_| setting.env_name()));
        let short = short.map(|name| {
            format!(
                "{name} has fewer than {GOOD_KEY_CHARS} characters and may be guessed: set a longer one, for example from `openssl rand -hex 32`"
            )
        });
        // Files that can't be used are mistakes, not warnings.
        let tls = self.tls.as_ref().and_then(|files| files.check().ok()).unwrap_or_default();
        access.into_iter().chain(short).chain(tls).chain(postgres::warning(self.data.database_url.expose_secret())).collect()
    }

    /// Whether only programs of this machine reach the server.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.network.host)
    }

    /// The settings of `bloom-runtime membridge`: the control plane by itself, with a database of its own.
    pub fn into_membridge(self) -> Self {
        let ControlPlane { host, port, database_url, .. } = self.membridge.clone();
        Self {
            network: Network { host, port, ..self.network },
            data: Data { database_url, ..self.data },
            membridge: ControlPlane { in_server: false, ..self.membridge },
            ..self
        }
    }

    /// `PUBLIC_URL` as an address, without a slash at its end. `None`: it is not set.
    pub fn public_address(&self) -> Option<String> {
        self.network.public_url.as_ref().map(|url| url.as_str().trim_end_matches('/').to_owned())
    }

    /// Whether requests need a key.
    pub fn has_key(&self) -> bool {
        self.keys.api.is_some() || self.keys.worker.is_some() || self.keys.read.is_some()
    }

    /// The keys of the API, strongest first, and the key for calls to agents.
    pub(crate) fn all_keys(&self) -> [(&'static Setting, &Option<SecretString>); 4] {
        [
            (&s::RUNTIME_API_KEY, &self.keys.api),
            (&s::RUNTIME_WORKER_KEY, &self.keys.worker),
            (&s::RUNTIME_READ_KEY, &self.keys.read),
            (&s::MEMBRIDGE_AGENT_KEY, &self.membridge.agent_key),
        ]
    }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
