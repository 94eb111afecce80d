//! Resolves the settings from their sources and checks them.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::flags::Flags;
use super::parse;
use super::postgres;
use super::report::{Mistake, Report, Row};
use super::serve::{Serve, is_loopback};
use super::setting::{Reader, Setting};
use super::settings::{self as s, ControlPlane, Data, Keys, Kubernetes, Limits, Logs, Network, TraceVariables, Work};
use super::sources::{Environment, Found, Origin, Sources};
use bloom_core::masked_urls::masked_query;
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
    let mut resolver = Resolver::new(sources, mistakes);
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
        if program == Program::ControlPlane || serve.membridge.in_server {
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
    let mut resolver = Resolver::new(Sources::of_environment(&flags, environment), Vec::new());
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
    /// Where databases are that are not named; it is read before them.
    data_dir: Option<PathBuf>,
    pub(super) rows: Vec<Row>,
    pub(super) mistakes: Vec<Mistake>,
}

impl<'a> Resolver<'a> {
    fn new(sources: Sources<'a>, mistakes: Vec<Mistake>) -> Self {
        Self { sources, data_dir: None, rows: Vec::new(), mistakes }
    }

    /// Parses every setting even after a mistake, so that all mistakes are reported at once.
    fn settings(&mut self) -> Option<Serve> {
        let network = Network::read(self);
        let tls = network.as_ref().and_then(|network| self.tls(network));
        let data = Data::read(self);
        let objects = self.objects();
        let (keys, membridge, limits) = (Keys::read(self), ControlPlane::read(self), Limits::read(self));
        let (work, kubernetes, log) = (Work::read(self), Kubernetes::read(self), Logs::read(self));
        let traces = self.traces("bloom-runtime");
        let Logs { file, format, level } = log?;
        Some(Serve {
            network: network?,
            tls,
            data: data?,
            objects: objects?,
            keys: keys?,
            membridge: membridge?,
            limits: limits?,
            work: work?,
            kubernetes: kubernetes?,
            log: LogSettings { format, level, file },
            traces: traces?,
        })
    }

    /// The settings of traces, if there is a collector and they are not turned off.
    fn traces(&mut self, default_name: &str) -> Option<Option<TraceSettings>> {
        let TraceVariables {
            endpoint,
            traces_endpoint,
            protocol: (),
            headers,
            timeout_ms,
            service_name,
            attributes,
            sampler,
            ratio,
            is_off,
        } = TraceVariables::read(self)?;
        let (timeout, sampler) = (Duration::from_millis(timeout_ms), traces::sampler(&sampler, ratio)?);
        let url = traces_endpoint.or_else(|| endpoint.map(|base| below(base, "v1/traces")));
        Some(url.filter(|_| !is_off).map(|url| {
            let named = attributes.iter().rev().find(|(name, _)| name == "service.name").map(|(_, value)| value.clone());
            let service_name = service_name.or(named).unwrap_or_else(|| default_name.to_owned());
            TraceSettings { url, headers, timeout, service_name, attributes, sampler }
        }))
    }

    /// The files of TLS, if the server can use them.
    fn tls(&mut self, network: &Network) -> Option<Files> {
        let Network { tls_cert_file, tls_key_file, tls_client_ca_file, .. } = network.clone();
        let (setting, problem) = match (tls_cert_file, tls_key_file, tls_client_ca_file) {
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

impl Reader for Resolver<'_> {
    fn required<T>(&mut self, setting: &'static Setting, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.value(setting, Some(setting.default.to_owned()), parse)
    }

    fn optional<T>(&mut self, setting: &'static Setting, parse: impl Fn(&str) -> Result<T, String>) -> Option<Option<T>> {
        Some(self.value(setting, None, parse))
    }

    fn data_dir(&mut self, setting: &'static Setting) -> Option<PathBuf> {
        let default = data_dir(|name| self.sources.environment().get(name).map(PathBuf::from));
        self.data_dir = self.value(setting, Some(default.display().to_string()), parse::directory);
        self.data_dir.clone()
    }

    fn database_url(&mut self, setting: &'static Setting, file: &str) -> Option<SecretString> {
        let default = self.data_dir.as_ref().map(|dir| format!("sqlite:{}", dir.join(file).display()));
        self.value(setting, default, parse::database_url)
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
    let [scopes @ .., _] = serve.all_keys();
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
    if !serve.has_key() && !serve.is_loopback() && !serve.keys.allow_none {
        let problem = "no key is set, so everybody who can reach this address could do everything: set RUNTIME_API_KEY, or listen on \
                       127.0.0.1; ALLOW_NO_KEY=true allows it all the same";
        mistakes.push(mistake(rows, &s::HOST, problem.to_owned()));
    }
}

/// Whoever reaches a control plane without a key can name the URLs that servers call.
fn check_membridge(serve: &Serve, program: Program, rows: &[Row], mistakes: &mut Vec<Mistake>) {
    if serve.membridge.admin_key.is_none() && !is_loopback(&serve.membridge.host) && !serve.keys.allow_none {
        let problem = "no key is set, so everybody who can reach this address could register agents: set MEMBRIDGE_ADMIN_KEY, or listen on \
                       127.0.0.1; ALLOW_NO_KEY=true allows it all the same";
        mistakes.push(mistake(rows, &s::MEMBRIDGE_HOST, problem.to_owned()));
    }
    if program == Program::Server && serve.has_key() && serve.membridge.admin_key.is_none() && !serve.keys.allow_none {
        let problem = "this server asks for keys, and its control plane (WITH_MEMBRIDGE) would take agents from everybody on this machine: set \
                       it, for example to the output of openssl rand -hex 32";
        mistakes.push(mistake(rows, &s::MEMBRIDGE_ADMIN_KEY, problem.to_owned()));
    }
    if program == Program::Server && serve.membridge.server_url.is_some() {
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
    if let (Some(_), Some(url)) = (&serve.data.backup_dir, serve.postgres_url_without_password()) {
        let problem = format!(
            "the server makes backups of SQLite only: leave it unset, and back up the PostgreSQL database {url} with pg_dump or your \
             provider's backups"
        );
        mistakes.push(mistake(rows, &s::BACKUP_DIR, problem));
    }
}
