//! Named contexts: servers and their keys, in a file of the user's.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::show::{self, Form, Shown};
use super::{columns, connect, term};
use crate::CommandError;
use bloom_client::Client;
use bloom_config::Environment;

const MAX_FILE_BYTES: u64 = 1024 * 1024;
const HEAD: &str = "# Written by `bloom-runtime context`; it may contain keys, so keep it private.\n";

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List the contexts; the one in use is marked
    List,
    /// Use this context from now on
    Use {
        /// As `context list` shows it
        name: String,
    },
    /// Add a context, or replace one
    ///
    /// The first context is used at once. If the address changes, the stored key is removed, so that it is not sent to another server.
    #[command(after_help = "Examples:\n  bloom-runtime context set home --server http://127.0.0.1:5000\n  \
        bloom-runtime context set prod --server https://bloom.example --key-file ~/.bloom-key\n  bloom-runtime context use prod")]
    Set {
        /// The name of the context
        name: String,
        /// The server's address; may be omitted for an existing context
        #[arg(long, value_name = "URL")]
        server: Option<String>,
        /// The key, stored in the file; the list of processes shows it, so prefer --key-file
        #[arg(long, value_name = "KEY", conflicts_with = "key_file")]
        key: Option<SecretString>,
        /// File with the key; it is read each time that the key is needed
        #[arg(long, value_name = "FILE")]
        key_file: Option<PathBuf>,
    },
    /// Remove a context
    Rm {
        /// As `context list` shows it
        name: String,
    },
}

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, ServerContext>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServerContext {
    pub server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<PathBuf>,
}

impl ServerContext {
    /// # Errors
    /// The key file can't be read.
    pub fn secret(&self) -> Result<Option<SecretString>, CommandError> {
        match (&self.key, &self.key_file) {
            (Some(key), _) => Ok(Some(SecretString::from(key.as_str()))),
            (None, Some(file)) => connect::read_key(file).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// The path of the file. `None` if neither XDG_CONFIG_HOME nor HOME is set.
pub fn path(environment: &Environment) -> Option<PathBuf> {
    // The XDG base directory specification says that relative paths are ignored.
    let given = environment.get("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let dir = given.or_else(|| Some(PathBuf::from(environment.get("HOME")?).join(".config")))?;
    Some(dir.join("bloom-runtime/config.toml"))
}

impl Contexts {
    /// Reads the file. If it does not exist, there are no contexts.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(path: &Path) -> Result<Self, CommandError> {
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
            term::note(&format!("Warning: other users can read the keys in {0}. Restrict it: chmod 600 {0}", path.display()));
        }
        Ok(contexts)
    }

    /// # Errors
    /// What is wrong with the text. The text itself is not quoted, because it may contain a key.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            format!("line {line}: {}", error.message())
        })
    }

    /// # Errors
    /// The context does not exist.
    pub fn take(mut self, name: &str) -> Result<ServerContext, CommandError> {
        self.contexts.remove(name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> CommandError {
        let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "there are none yet".to_owned() } else { format!("there are: {}", known.join(", ")) };
        CommandError::usage(format!(
            "there is no context named {name}; {known}. Add it with: bloom-runtime context set {name} --server URL"
        ))
    }

    /// Replaces the file atomically; only its owner can read it.
    fn write(&self, path: &Path) -> Result<(), CommandError> {
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

/// Runs a `context` command.
///
/// # Errors
/// The file can't be read or written, or the context does not exist.
pub fn run(command: ContextCommand, shown: Shown) -> Result<(), CommandError> {
    let path = path(&Environment::of_process())
        .ok_or_else(|| CommandError::usage("there is no place to store contexts: neither XDG_CONFIG_HOME nor HOME is set"))?;
    let mut contexts = Contexts::read(&path)?;
    match command {
        ContextCommand::List => return list(&contexts, shown.form_or(Form::Table)),
        ContextCommand::Use { name } => {
            if !contexts.contexts.contains_key(&name) {
                return Err(contexts.unknown(&name));
            }
            contexts.current = Some(name);
        }
        ContextCommand::Set { name, server, key, key_file } => set(&mut contexts, name, server, key, key_file)?,
        ContextCommand::Rm { name } => {
            if contexts.contexts.remove(&name).is_none() {
                return Err(contexts.unknown(&name));
            }
            contexts.current = contexts.current.filter(|current| *current != name);
        }
    }
    contexts.write(&path)
}

fn set(
    contexts: &mut Contexts,
    name: String,
    server: Option<String>,
    key: Option<SecretString>,
    key_file: Option<PathBuf>,
) -> Result<(), CommandError> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(CommandError::usage("the name of a context must be one line of text"));
    }
    let before = contexts.contexts.remove(&name);
    let server = match (server, &before) {
        (Some(server), _) => server,
        (None, Some(before)) => before.server.clone(),
        (None, None) => return Err(CommandError::usage(format!("the context {name} is new: give its --server"))),
    };
    // The contexts are used from any directory, so a relative path would not work.
    let key_file = key_file.map(|file| std::path::absolute(&file).unwrap_or(file));
    let mut context = ServerContext { server, key: key.map(|key| key.expose_secret().to_owned()), key_file };
    if let Some(before) = before
        && context.key.is_none()
        && context.key_file.is_none()
    {
        if before.server == context.server {
            context = before;
        } else if before.key.is_some() || before.key_file.is_some() {
            term::note(&format!("The key of {name} was for {} and was removed.", before.server));
        }
    }
    Client::new(&context.server, context.secret()?.as_ref()).map_err(connect::failed)?;
    contexts.contexts.insert(name.clone(), context);
    contexts.current.get_or_insert(name);
    Ok(())
}

fn list(contexts: &Contexts, form: Form) -> Result<(), CommandError> {
    let rows = contexts.contexts.iter().map(|(name, context)| {
        let key = match (&context.key, &context.key_file) {
            (Some(_), _) => Some("kept here".to_owned()),
            (None, Some(file)) => Some(file.display().to_string()),
            (None, None) => None,
        };
        serde_json::json!({ "name": name, "server": context.server, "key": key, "current": contexts.current.as_deref() == Some(name) })
    });
    show::list(form, &columns::CONTEXTS, &rows.collect::<Vec<_>>())
}
