//! Named contexts, which are servers and their keys, in a file of the user.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap_complete::CompletionCandidate;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::key_file::read_key;
use super::term;
use crate::CommandError;
use bloom_config::Environment;

const MAX_FILE_BYTES: u64 = 1024 * 1024;
const HEAD: &str = "# Written by `bloom-runtime context`; it may contain keys, so keep it private.\n";

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, ServerContext>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerContext {
    pub server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// A PEM file with authorities for the server's certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

impl ServerContext {
    /// # Errors
    /// The key file can't be read.
    pub(crate) fn secret(&self) -> Result<Option<SecretString>, CommandError> {
        match (&self.key, &self.key_file) {
            (Some(key), _) => Ok(Some(SecretString::from(key.as_str()))),
            (None, Some(file)) => read_key(file).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// The path of the file. `None` if neither XDG_CONFIG_HOME nor HOME is set.
pub(crate) fn path(environment: &Environment) -> Option<PathBuf> {
    // By the XDG base directory specification, relative paths are ignored.
    let given = environment.get("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let dir = given.or_else(|| Some(PathBuf::from(environment.get("HOME")?).join(".config")))?;
    Some(dir.join("bloom-runtime/config.toml"))
}

/// The names of the contexts, for completions.
pub(crate) fn names() -> Vec<CompletionCandidate> {
    let contexts = path(&Environment::of_process()).and_then(|path| Contexts::read(&path).ok());
    contexts.into_iter().flat_map(|contexts| contexts.contexts.into_keys()).map(CompletionCandidate::new).collect()
}

impl Contexts {
    /// Reads the file. If it does not exist, there are no contexts.
    ///
    /// # Errors
    /// The file can't be read.
    pub(crate) fn read(path: &Path) -> Result<Self, CommandError> {
        let wrong = |why: String| CommandError::usage(format!("the contexts in {}: {why}", path.display()));
        let about = match fs::metadata(path) {
            Ok(about) => about,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(wrong(error.to_string())),
        };
        if about.len() > MAX_FILE_BYTES {
            return Err(wrong(format!("the file is longer than {MAX_FILE_BYTES} bytes")));
        }
        let contexts =
            fs::read_to_string(path).map_err(|error| wrong(error.to_string())).and_then(|text| Self::parse(&text).map_err(wrong))?;
        if about.permissions().mode() & 0o077 != 0 && contexts.contexts.values().any(|context| context.key.is_some()) {
            term::info(&format!("Warning: other users can read the keys in {0}. Restrict it: chmod 600 {0}", path.display()));
        }
        Ok(contexts)
    }

    /// # Errors
    /// The error describes what is wrong with the text, but does not quote it, because it may contain a key.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            format!("line {line}: {}", error.message())
        })
    }

    /// # Errors
    /// The context does not exist.
    pub(crate) fn take(mut self, name: &str) -> Result<ServerContext, CommandError> {
        self.contexts.remove(name).ok_or_else(|| self.unknown(name))
    }

    pub(crate) fn unknown(&self, name: &str) -> CommandError {
        let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "there are none yet".to_owned() } else { format!("there are: {}", known.join(", ")) };
        CommandError::usage(format!(
            "there is no context named {name}; {known}. Add it with: bloom-runtime context set {name} --server URL"
        ))
    }

    /// Replaces the file atomically; only its owner can read it.
    pub(crate) fn write(&self, path: &Path) -> Result<(), CommandError> {
        let text = toml::to_string(self).map_err(|error| format!("the contexts can't be written: {error}"))?;
        // If the path is a symbolic link, the file that it points to is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let draft = path.with_extension(format!("toml.{}", std::process::id()));
        let write = || {
            if let Some(dir) = path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            }
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(format!("{HEAD}{text}").as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&draft);
            CommandError::from(format!("the contexts can't be written to {}: {error}", path.display()))
        })
    }
}
