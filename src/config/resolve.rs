//! Resolves the settings from their sources and checks them.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::flags::Flags;
use super::parse;
use super::postgres;
use super::report::{Mistake, Report, Row};
use super::serve::{OwnMembridge, Serve, is_loopback};
use super::settings::{self as s, Setting};
use super::sources::{Environment, Found, Origin, Sources};
use bloom_core::limits::TIMEOUT_SEC;
use bloom_core::mask::masked_query;
use bloom_telemetry::LogSettings;
use bloom_telemetry::traces::{self, TraceSettings};
use bloom_tls::{Fault, Files, Part};

/// What the settings are for: each program has its own rules for values that can't be used together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Server,
    /// `bloom-runtime membridge`
    ControlPlane,
}

pub(crate) fn resolve(flags: &Flags, environment: &Environment, program: Program) -> Report {
    let mut mistakes = Vec::new();
    let sources = Sources::gather(flags, environment, &mut mistakes);
    let mut resolver = Resolver { sources, rows: Vec::new(), mistakes };
    let serve = resolver.settings();
    let Resolver { rows, mut mistakes, .. } = resolver;
    let mut warnings = Vec::new();
    if let Some(serve) = &serve {
        if program == Program::Server {
            check_keys(serve, &rows, &mut mistakes);
            check_access(serve, &rows, &mut mistakes);
            check_backups(serve, &rows, &mut mistakes);
            warnings = serve.warnings();
        }
        if program == Program::ControlPlane || serve.own_membridge.in_server {
            check_membridge(serve, program, &rows, &mut mistakes);
        }
        if program == Program::ControlPlane {
            check_listening(flags, &rows, &mut mistakes);
        }
    }
    Report { rows, mistakes, warnings, serve }
}

/// The settings of an agent's traces, which has them from its environment.
pub fn traces_of_agent(environment: &Environment) -> Result<Option<TraceSettings>, Vec<Mistake>> {
    let flags = Flags::default();
    let mut resolver = Resolver { sources: Sources::of_environment(&flags, environment), rows: Vec::new(), mistakes: Vec::new() };
    let traces = resolver.traces("bloom-agent");
    if resolver.mistakes.is_empty() { Ok(traces.flatten()) } else { Err(resolver.mistakes) }
}

/// The URL of a path below another URL.
fn below(mut base: Url, path: &str) -> Url {
    let whole = format!("{}/{path}", base.path().trim_end_matches('/'));
    base.set_path(&whole);
    base
}

pub(super) struct Resolver<'a> {
    sources: Sources<'a>,
    pub(super) rows: Vec<Row>,
    pub(super) mistakes: Vec<Mistake>,
}

impl Resolver<'_> {
    /// Parses every setting even after a mistake, so that all mistakes are reported at once.
    fn settings(&mut self) -> Option<Serve> {
        let seconds = |least: i64, most: i64| move |text: &str| parse::whole(least, most)(text).map(|n| n * 1000);
        let host = self.required(&s::HOST, parse::host);
        let port = self.required(&s::PORT, parse::whole(0_u16, u16::MAX));
        let public_url = self.optional(&s::PUBLIC_URL, parse::public_url);
        let allowed_hosts = self.optional(&s::ALLOWED_HOSTS, parse::hosts).unwrap_or_default();
        let trusted_proxies = self.optional(&s::TRUSTED_PROXIES, parse::networks).unwrap_or_default();
        let tls_cert = self.optional(&s::TLS_CERT_FILE, parse::file);
        let tls_key = self.optional(&s::TLS_KEY_FILE, parse::file);
        let tls_client_ca = self.optional(&s::TLS_CLIENT_CA_FILE, parse::file);
        let tls = self.tls(tls_cert, tls_key, tls_client_ca);
        let data_dir = self.data_dir();
        let database_url = self.database_url(data_dir.as_ref());
        let database_max_connections = self.required(&s::DATABASE_MAX_CONNECTIONS, parse::whole(1_u32, 500));
        let task_retention_days = self.required(&s::TASK_RETENTION_DAYS, parse::whole(0_u32, 36_500));
        let audit_retention_days = self.required(&s::AUDIT_RETENTION_DAYS, parse::whole(0_u32, 36_500));
        let backup_dir = self.optional(&s::BACKUP_DIR, parse::directory);
        let backup_every = self.required(&s::BACKUP_EVERY_SECONDS, parse::whole(1_u64, 31 * 86_400));
        let backup_keep = self.required(&s::BACKUP_KEEP, parse::whole(1_usize, 1_000));
        let objects = self.objects();
        let api_key = self.optional(&s::RUNTIME_API_KEY, parse::key);
        let worker_key = self.optional(&s::RUNTIME_WORKER_KEY, parse::key);
        let read_key = self.optional(&s::RUNTIME_READ_KEY, parse::key);
        let allow_no_key = self.required(&s::ALLOW_NO_KEY, parse::truth);
        let membridge_server_url = self.optional(&s::MEMBRIDGE_SERVER_URL, parse::http_url);
        let membridge_admin_key = self.optional(&s::MEMBRIDGE_ADMIN_KEY, parse::key);
        let agent_key = self.optional(&s::MEMBRIDGE_AGENT_KEY, parse::key);
        let worker_sync_ms = self.required(&s::WORKER_SYNC_SECONDS, seconds(1, 3600));
        let own_membridge = self.own_membridge(data_dir.as_ref());
        let rate_limit_per_minute = self.required(&s::RATE_LIMIT_PER_MINUTE, parse::whole(0, u32::MAX));
        let test_connection_per_minute = self.required(&s::TEST_CONNECTION_PER_MINUTE, parse::whole(0, u32::MAX));
        let worker_rate_limit_per_minute = self.required(&s::WORKER_RATE_LIMIT_PER_MINUTE, parse::whole(0, u32::MAX));
        let max_body_bytes = self.required(&s::MAX_BODY_BYTES, parse::whole(1024_usize, 1 << 30));
        let max_output_bytes = self.required(&s::MAX_OUTPUT_BYTES, parse::whole(1024_usize, 1 << 30));
        let max_artifact_bytes = self.required(&s::MAX_ARTIFACT_BYTES, parse::whole(1024_usize, 1 << 30));
        let request_timeout = self.required(&s::REQUEST_TIMEOUT_SECONDS, parse::whole(1_u64, 3600));
        let lease_ttl_ms = self.required(&s::LEASE_TTL_SECONDS, seconds(1, 86_400));
        let worker_offline_after_ms = self.required(&s::WORKER_OFFLINE_AFTER_SECONDS, seconds(1, 86_400));
        let session_wait_ms = self.required(&s::SESSION_WAIT_SECONDS, seconds(0, 86_400));
        let named_agent_wait_ms = self.required(&s::NAMED_AGENT_WAIT_SECONDS, seconds(0, 86_400));
        let max_timeout_sec = self.required(&s::MAX_TIMEOUT_SECONDS, parse::whole(1, TIMEOUT_SEC));
        let operator = self.required(&s::OPERATOR, parse::truth);
        let operator_namespaces = self.optional(&s::OPERATOR_NAMESPACES, parse::namespaces).unwrap_or_default();
        let operator_agent_image = self.optional(&s::OPERATOR_AGENT_IMAGE, parse::image);
        let operator_agent_server = self.optional(&s::OPERATOR_AGENT_SERVER, parse::http_url);
        let pod_namespace = self.optional(&s::POD_NAMESPACE, parse::namespace);
        let pod_name = self.optional(&s::POD_NAME, parse::pod_name);
        let log_file = self.optional(&s::LOG_FILE, parse::log_file);
        let log_format = self.required(&s::LOG_FORMAT, parse::log_format);
        let log_level = self.required(&s::LOG_LEVEL, parse::log_level);
        let traces = self.traces("bloom-runtime");
        Some(Serve {
            host: host?,
            port: port?,
            public_url,
            allowed_hosts,
            trusted_proxies,
            tls,
            data_dir: data_dir?,
            database_url: database_url?,
            database_max_connections: database_max_connections?,
            task_retention_days: task_retention_days?,
            audit_retention_days: audit_retention_days?,
            backup_dir,
            backup_every: Duration::from_secs(backup_every?),
            backup_keep: backup_keep?,
            objects: objects?,
            api_key,
            worker_key,
            read_key,
            allow_no_key: allow_no_key?,
            membridge_server_url,
            membridge_admin_key,
            agent_key,
            worker_sync_ms: worker_sync_ms?,
            own_membridge: own_membridge?,
            rate_limit_per_minute: rate_limit_per_minute?,
            test_connection_per_minute: test_connection_per_minute?,
            worker_rate_limit_per_minute: worker_rate_limit_per_minute?,
            max_body_bytes: max_body_bytes?,
            max_output_bytes: max_output_bytes?,
            max_artifact_bytes: max_artifact_bytes?,
            request_timeout: Duration::from_secs(request_timeout?),
            lease_ttl_ms: lease_ttl_ms?,
            worker_offline_after_ms: worker_offline_after_ms?,
            session_wait_ms: session_wait_ms?,
            named_agent_wait_ms: named_agent_wait_ms?,
            max_timeout_sec: max_timeout_sec?,
            operator: operator?,
            operator_namespaces,
            operator_agent_image,
            operator_agent_server,
            pod_namespace,
            pod_name,
            log: LogSettings { format: log_format?, level: log_level?, file: log_file },
            traces: traces?,
        })
    }

    /// The settings of traces, if there is a collector and they are not turned off.
    fn traces(&mut self, default_name: &str) -> Option<Option<TraceSettings>> {
        let base = self.optional(&s::OTEL_EXPORTER_OTLP_ENDPOINT, parse::otlp_url);
        let whole = self.optional(&s::OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, parse::otlp_url);
        let protocol = self.required(&s::OTEL_EXPORTER_OTLP_PROTOCOL, parse::otlp_protocol);
        let headers = self.optional(&s::OTEL_EXPORTER_OTLP_HEADERS, traces::headers).unwrap_or_default();
        let timeout = self.required(&s::OTEL_EXPORTER_OTLP_TIMEOUT, parse::whole(1_u64, 60_000));
        let name = self.optional(&s::OTEL_SERVICE_NAME, parse::service_name);
        let attributes = self.optional(&s::OTEL_RESOURCE_ATTRIBUTES, traces::attributes).unwrap_or_default();
        let sampler = self.required(&s::OTEL_TRACES_SAMPLER, parse::sampler);
        let ratio = self.required(&s::OTEL_TRACES_SAMPLER_ARG, parse::ratio);
        let is_off = self.required(&s::OTEL_SDK_DISABLED, parse::truth);
        let (timeout, sampler, is_off) = (Duration::from_millis(timeout?), traces::sampler(&sampler?, ratio?)?, is_off?);
        protocol?;
        let url = whole.or_else(|| base.map(|base| below(base, "v1/traces")));
        Some(url.filter(|_| !is_off).map(|url| {
            let named = attributes.iter().rev().find(|(name, _)| name == "service.name").map(|(_, value)| value.clone());
            let service_name = name.or(named).unwrap_or_else(|| default_name.to_owned());
            TraceSettings { url, headers, timeout, service_name, attributes, sampler }
        }))
    }

    /// The files of TLS, if the server can use them.
    fn tls(&mut self, certificate: Option<PathBuf>, key: Option<PathBuf>, client_ca: Option<PathBuf>) -> Option<Files> {
        let (setting, problem) = match (certificate, key, client_ca) {
            (None, None, None) => return None,
            (Some(certificate), Some(key), client_ca) => {
                let files = Files { certificate, key, client_ca };
                let Fault { part, text } = match files.check() {
                    Ok(_) => return Some(files),
                    Err(fault) => fault,
                };
                let setting = match part {
                    Part::Certificate => &s::TLS_CERT_FILE,
                    Part::Key => &s::TLS_KEY_FILE,
                    Part::ClientCa => &s::TLS_CLIENT_CA_FILE,
                };
                (setting, text)
            }
            (Some(_), None, _) => (&s::TLS_CERT_FILE, "needs the private key of this certificate: set TLS_KEY_FILE, too".to_owned()),
            (None, Some(_), _) => (&s::TLS_KEY_FILE, "needs the certificate of this key: set TLS_CERT_FILE, too".to_owned()),
            (None, None, Some(_)) => {
                let problem = "needs a server that speaks https: set TLS_CERT_FILE and TLS_KEY_FILE, too";
                (&s::TLS_CLIENT_CA_FILE, problem.to_owned())
            }
        };
        self.mistakes.push(mistake(&self.rows, setting, problem));
        None
    }

    fn data_dir(&mut self) -> Option<PathBuf> {
        let default = data_dir(|name| self.sources.environment().get(name).map(PathBuf::from));
        self.value(&s::DATA_DIR, Some(default.display().to_string()), parse::directory)
    }

    fn own_membridge(&mut self, data_dir: Option<&PathBuf>) -> Option<OwnMembridge> {
        let in_server = self.required(&s::WITH_MEMBRIDGE, parse::truth);
        let host = self.required(&s::MEMBRIDGE_HOST, parse::host);
        let port = self.required(&s::MEMBRIDGE_PORT, parse::whole(0_u16, u16::MAX));
        let default = data_dir.map(|dir| format!("sqlite:{}", dir.join("membridge.db").display()));
        let database_url = self.value(&s::MEMBRIDGE_DATABASE_URL, default, parse::database_url);
        Some(OwnMembridge { in_server: in_server?, host: host?, port: port?, database_url: database_url? })
    }

    fn database_url(&mut self, data_dir: Option<&PathBuf>) -> Option<SecretString> {
        let default = data_dir.map(|dir| format!("sqlite:{}", dir.join("bloom.db").display()));
        self.value(&s::DATABASE_URL, default, parse::database_url)
    }

    /// A setting that has a default. `None` if the value is wrong; the mistake is recorded.
    pub(super) fn required<T>(&mut self, setting: &'static Setting, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.value(setting, Some(setting.default.to_owned()), parse)
    }

    /// A setting without a default, which may be left out.
    pub(super) fn optional<T>(&mut self, setting: &'static Setting, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.value(setting, None, parse)
    }

    fn value<T>(&mut self, setting: &'static Setting, default: Option<String>, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let default = || default.map(|text| Found { text, origin: Origin::Default.to_string() });
        let found = match self.sources.find(setting) {
            Ok(found) => found.or_else(default),
            Err(mistake) => {
                self.mistakes.push(mistake);
                return None;
            }
        };
        let Some(Found { text, origin }) = found else {
            self.rows.push(Row { setting: setting.key, value: None, origin: Origin::Default.to_string() });
            return None;
        };
        let text = if setting.secret { text } else { text.trim().to_owned() };
        let shown = match setting.key {
            key if key == s::DATABASE_URL.key || key == s::MEMBRIDGE_DATABASE_URL.key => postgres::masked(&text),
            _ if setting.secret => "****".to_owned(),
            key if setting.value_name == "URL" || key == s::MINIO_ENDPOINT.key => masked_query(&text),
            _ => text.clone(),
        };
        match parse(&text) {
            Ok(value) => {
                self.rows.push(Row { setting: setting.key, value: Some(shown), origin });
                Some(value)
            }
            Err(right) => {
                self.mistakes.push(Mistake::new(setting.key, Some(&shown).filter(|_| !setting.secret).map(String::as_str), &origin, right));
                None
            }
        }
    }
}

/// The default data directory.
pub fn default_data_dir() -> PathBuf {
    data_dir(|name| std::env::var_os(name).map(PathBuf::from))
}

fn data_dir(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let home = |name: &str| variable(name).filter(|path| path.is_absolute());
    let base = home("XDG_DATA_HOME").or_else(|| home("HOME").map(|home| home.join(".local/share")));
    // A service without a home directory uses /var/lib, as the packages do.
    base.unwrap_or_else(|| PathBuf::from("/var/lib")).join("bloom-runtime")
}

/// A mistake in a value that can be used by itself, but not with other settings.
pub(super) fn mistake(rows: &[Row], setting: &Setting, problem: String) -> Mistake {
    let row = rows.iter().find(|row| row.setting == setting.key);
    let (value, origin) = row.map_or((None, ""), |row| (row.value.as_deref().filter(|_| !setting.secret), &*row.origin));
    Mistake::new(setting.key, value, origin, problem)
}

/// Every scope needs a key of its own: with the same key for two scopes, a client with the weaker scope would have the stronger one, too.
fn check_keys(serve: &Serve, rows: &[Row], mistakes: &mut Vec<Mistake>) {
    let [scopes @ .., _] = serve.keys();
    for (n, (setting, key)) in scopes.iter().enumerate() {
        let Some(key) = key else { continue };
        let same = |other: &SecretString| other.expose_secret() == key.expose_secret();
        if let Some((other, _)) = scopes[..n].iter().find(|(_, other)| other.as_ref().is_some_and(same)) {
            let problem = format!("is the same as {}: use a different key for each scope", other.key);
            mistakes.push(mistake(rows, setting, problem));
        }
    }
}

/// Anybody who reaches a server without keys can run programs on its workers, so a forgotten key must not start such a server.
fn check_access(serve: &Serve, rows: &[Row], mistakes: &mut Vec<Mistake>) {
    if !serve.has_key() && !serve.is_loopback() && !serve.allow_no_key {
        let problem = "no key is set, so everybody who can reach this address could do everything: set RUNTIME_API_KEY, or listen on \
                       127.0.0.1; ALLOW_NO_KEY=true allows it all the same";
        mistakes.push(mistake(rows, &s::HOST, problem.to_owned()));
    }
}

/// Whoever reaches a control plane without a key can name the URLs that servers call.
fn check_membridge(serve: &Serve, program: Program, rows: &[Row], mistakes: &mut Vec<Mistake>) {
    if serve.membridge_admin_key.is_none() && !is_loopback(&serve.own_membridge.host) && !serve.allow_no_key {
        let problem = "no key is set, so everybody who can reach this address could register agents: set MEMBRIDGE_ADMIN_KEY, or listen on \
                       127.0.0.1; ALLOW_NO_KEY=true allows it all the same";
        mistakes.push(mistake(rows, &s::MEMBRIDGE_HOST, problem.to_owned()));
    }
    if program == Program::Server && serve.has_key() && serve.membridge_admin_key.is_none() && !serve.allow_no_key {
        let problem = "this server asks for keys, and its control plane (WITH_MEMBRIDGE) would take agents from everybody on this machine: set \
                       it, for example to the output of openssl rand -hex 32";
        mistakes.push(mistake(rows, &s::MEMBRIDGE_ADMIN_KEY, problem.to_owned()));
    }
    if program == Program::Server && serve.membridge_server_url.is_some() {
        let problem = "the server runs a control plane of its own (WITH_MEMBRIDGE): leave it unset, or leave WITH_MEMBRIDGE unset";
        mistakes.push(mistake(rows, &s::MEMBRIDGE_SERVER_URL, problem.to_owned()));
    }
}

/// A control plane does not listen where a server does. In the environment and in a file, that may be said for a server beside it.
fn check_listening(flags: &Flags, rows: &[Row], mistakes: &mut Vec<Mistake>) {
    for (given, meant) in [(&s::HOST, &s::MEMBRIDGE_HOST), (&s::PORT, &s::MEMBRIDGE_PORT)] {
        if flags.values.contains_key(given.key) {
            mistakes.push(mistake(rows, given, format!("the control plane listens where --{} says: give that flag", meant.flag_name())));
        }
    }
}

/// A server that seems to make backups but can't must not start.
fn check_backups(serve: &Serve, rows: &[Row], mistakes: &mut Vec<Mistake>) {
    if let (Some(_), Some(url)) = (&serve.backup_dir, serve.postgres_url_without_password()) {
        let problem = format!(
            "the server makes backups of SQLite only: leave it unset, and back up the PostgreSQL database {url} with pg_dump or your \
             provider's backups"
        );
        mistakes.push(mistake(rows, &s::BACKUP_DIR, problem));
    }
}
