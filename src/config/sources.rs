//! The sources of values (flags, environment, file) and their precedence.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::flags::Flags;
use super::report::Mistake;
use super::setting::Setting;
use super::settings::SETTINGS;
use bloom_core::similar::similar;

const MAX_CONFIG_BYTES: u64 = 1024 * 1024;
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// The environment variables, read once.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// An empty variable counts as unset, because this is how unit files and compose files unset one.
    pub fn get(&self, name: &str) -> Option<&OsString> {
        self.0.get(std::ffi::OsStr::new(name)).filter(|value| !value.is_empty())
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    Flag(String),
    Environment(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag --{name}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value as text, before it is checked.
#[derive(Debug)]
pub(crate) struct Found {
    pub text: String,
    pub origin: String,
}

pub(crate) struct Sources<'a> {
    flags: &'a Flags,
    environment: &'a Environment,
    file: Option<(PathBuf, toml::Table)>,
}

/// A value from one source, or what is wrong with it.
type Given = Option<(Result<String, &'static str>, Origin)>;

impl<'a> Sources<'a> {
    /// Reads the file, if one is named, and adds its errors to `mistakes`.
    pub(crate) fn gather(flags: &'a Flags, environment: &'a Environment, mistakes: &mut Vec<Mistake>) -> Self {
        let named = match (&flags.config, environment.get("BLOOM_CONFIG")) {
            (Some(path), _) => Some((path.clone(), "flag --config")),
            (None, Some(path)) => Some((PathBuf::from(path), "environment BLOOM_CONFIG")),
            (None, None) => None,
        };
        let file = named.and_then(|(path, origin)| match read_table(&path) {
            Ok(table) => {
                unknown_keys(&table, &path, mistakes);
                Some((path, table))
            }
            Err(problem) => {
                mistakes.push(Mistake::new("config", Some(&path.display().to_string()), origin, problem));
                None
            }
        });
        Self { flags, environment, file }
    }

    /// Only the environment, without the file that it may name.
    pub(crate) fn of_environment(flags: &'a Flags, environment: &'a Environment) -> Self {
        Self { flags, environment, file: None }
    }

    pub(crate) fn environment(&self) -> &Environment {
        self.environment
    }

    /// The value from the source with the highest precedence. A secret and its `_file` setting in the same source are a mistake, because it
    /// is not clear which one should count.
    pub(crate) fn find(&self, setting: &Setting) -> Result<Option<Found>, Mistake> {
        let layers: [&dyn Fn(&str) -> Given; 3] = [&|key| self.by_flag(key), &|key| self.by_environment(key), &|key| self.by_file(key)];
        for layer in layers {
            let twin = if setting.secret { layer(&setting.file_key()) } else { None };
            let (value, origin, from_file) = match (layer(setting.key), twin) {
                (None, None) => continue,
                (Some((_, origin)), Some(_)) => {
                    let problem = format!("{} is given as well; use only one of them", setting.file_key());
                    return Err(Mistake::new(setting.key, None, &origin.to_string(), problem));
                }
                (Some((value, origin)), None) => (value, origin, false),
                (None, Some((value, origin))) => (value, origin, true),
            };
            let origin = origin.to_string();
            let key = if from_file { setting.file_key() } else { setting.key.to_owned() };
            let text = value.map_err(|problem| Mistake::new(&key, None, &origin, problem.to_owned()))?;
            if !from_file {
                return Ok(Some(Found { text, origin }));
            }
            return match read_limited(Path::new(&text), MAX_SECRET_BYTES) {
                Ok(secret) => {
                    let origin = format!("{origin} ({text})");
                    Ok(Some(Found { text: secret.trim_end_matches(['\r', '\n']).to_owned(), origin }))
                }
                Err(problem) => Err(Mistake::new(&key, Some(&text), &origin, problem)),
            };
        }
        Ok(None)
    }

    fn by_flag(&self, key: &str) -> Given {
        let value = self.flags.values.get(key)?;
        Some((Ok(value.clone()), Origin::Flag(key.replace('_', "-"))))
    }

    fn by_environment(&self, key: &str) -> Given {
        let name = key.to_uppercase();
        let value = self.environment.get(&name)?;
        let text = value.to_str().map(str::to_owned).ok_or("must be UTF-8 text");
        Some((text, Origin::Environment(name)))
    }

    fn by_file(&self, key: &str) -> Given {
        let (path, table) = self.file.as_ref()?;
        Some((as_text(table.get(key)?), Origin::File(path.clone())))
    }
}

const WRONG_KIND: &str = "must be a string, a whole number, true or false, or a list of strings";

fn as_text(value: &toml::Value) -> Result<String, &'static str> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(truth) => Ok(truth.to_string()),
        toml::Value::Array(items) => {
            let items: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
            items.map(|items| items.join(",")).ok_or(WRONG_KIND)
        }
        _ => Err(WRONG_KIND),
    }
}

fn read_table(path: &Path) -> Result<toml::Table, String> {
    let text = read_limited(path, MAX_CONFIG_BYTES)?;
    text.parse::<toml::Table>().map_err(|error| {
        // The parser's own message would quote the line, which may contain a secret.
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("is not valid TOML: line {line}: {}", error.message())
    })
}

fn read_limited(path: &Path, limit: u64) -> Result<String, String> {
    let opened = |error: std::io::Error| format!("can't be opened: {error}");
    // A named pipe that nobody writes would be waited for without an end. Files are read again at each reload, which a pipe can't be.
    if !std::fs::metadata(path).map_err(opened)?.is_file() {
        return Err("must be a regular file".to_owned());
    }
    let file = std::fs::File::open(path).map_err(opened)?;
    let mut text = String::new();
    let read = file.take(limit + 1).read_to_string(&mut text).map_err(|error| format!("can't be read: {error}"))?;
    if read as u64 > limit {
        return Err(format!("is longer than {limit} bytes"));
    }
    Ok(text)
}

fn unknown_keys(table: &toml::Table, path: &Path, mistakes: &mut Vec<Mistake>) {
    let known: Vec<String> =
        SETTINGS.iter().flat_map(|setting| [Some(setting.key.to_owned()), setting.secret.then(|| setting.file_key())]).flatten().collect();
    for key in table.keys().filter(|key| !known.contains(key)) {
        let problem = match similar(&key.to_lowercase().replace('-', "_"), known.iter().map(String::as_str)) {
            Some(known) => format!("is not a setting; did you mean {known}?"),
            None => "is not a setting; `bloom-runtime config check` lists them all".to_owned(),
        };
        mistakes.push(Mistake::new(key, None, &Origin::File(path.to_owned()).to_string(), problem));
    }
}
