//! The commands on named contexts.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use clap_complete::ArgValueCandidates;
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};

use super::connection::DEFAULT_SERVER;
use super::context_file::{Contexts, ServerContext, names, path};
use super::server_calls::failed;
use super::show::{self, Form, Shown};
use super::{columns, term};
use crate::CommandError;
use bloom_api::keys::WhoAmI;
use bloom_client::{Client, Error, Tls};
use bloom_config::Environment;

/// How long a server may take to say what a key opens.
const TRY_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List the contexts; the one in use is marked
    #[command(alias = "ls")]
    List,
    /// Use this context from now on
    Use {
        /// As `context list` shows it
        #[arg(add = ArgValueCandidates::new(names))]
        name: String,
    },
    /// Add a context, or change one
    ///
    /// If no context is current, as with the first one, the new context becomes the current one. For an existing context, --key or
    /// --key-file replaces the stored key and keeps the address; --server replaces the address, and another address removes the stored key,
    /// so that the key is not sent to another server, and the stored --ca-file. Whether the context is the current one stays as it is. Then
    /// the server is asked what the key opens; if it refuses the key or does not answer, the context stays, with a warning.
    #[command(alias = "add")]
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
        /// PEM file with authorities that the server's certificate may come from, in addition to those of the operating system
        #[arg(long, value_name = "FILE")]
        ca_file: Option<PathBuf>,
    },
    /// Remove a context
    #[command(aliases = ["delete", "remove"])]
    Rm {
        /// As `context list` shows it
        #[arg(add = ArgValueCandidates::new(names))]
        name: String,
    },
}

/// Runs a command on the contexts.
///
/// # Errors
/// The file can't be read or written, or the context does not exist.
pub(crate) async fn run(command: ContextCommand, shown: Shown) -> Result<(), CommandError> {
    let path = path(&Environment::of_process())
        .ok_or_else(|| CommandError::usage("there is no place to store contexts: neither XDG_CONFIG_HOME nor HOME is set"))?;
    let mut contexts = Contexts::read(&path)?;
    let (mut news, mut to_try) = (None, None);
    match command {
        ContextCommand::List => return list(&contexts, shown.form_or(Form::Table)),
        ContextCommand::Use { name } => {
            if !contexts.contexts.contains_key(&name) {
                return Err(contexts.unknown(&name));
            }
            news = Some(is_current(&name));
            contexts.current = Some(name);
        }
        ContextCommand::Set { name, server, key, key_file, ca_file } => {
            to_try = Some(set(&mut contexts, name.clone(), server, key, key_file, ca_file)?);
            if contexts.current.is_none() {
                news = Some(is_current(&name));
                contexts.current = Some(name);
            }
        }
        ContextCommand::Rm { name } => {
            if contexts.contexts.remove(&name).is_none() {
                return Err(contexts.unknown(&name));
            }
            if contexts.current.as_ref() == Some(&name) {
                contexts.current = None;
                news = Some(without_current(&contexts, &name));
            }
        }
    }
    contexts.write(&path)?;
    news.iter().for_each(|news| term::info(news));
    if let Some(client) = to_try {
        term::info(&tried(&client).await);
    }
    Ok(())
}

/// What the server says of the key. The context is stored whatever it is: the server may not be up yet.
async fn tried(client: &Client) -> String {
    let answer = client.send::<()>(Method::GET, "api/runtime/whoami", None, TRY_LIMIT).await;
    match answer.and_then(|answer| answer.json::<WhoAmI<'_>>()) {
        Ok(caller) if caller.open => "It works: the server asks for no key.".to_owned(),
        Ok(WhoAmI { key: Some(key), scope, .. }) => format!("It works: key {}, scope {scope}.", key.name),
        Ok(WhoAmI { scope, .. }) => format!("It works: scope {scope}."),
        Err(error @ (Error::Unreachable(_) | Error::Broken(_))) => format!("Warning: the server does not answer: {error}"),
        Err(error) => format!("Warning: {error}"),
    }
}

fn is_current(name: &str) -> String {
    format!("{name} is the current context now.")
}

/// What a command uses after the removal of the current context.
fn without_current(contexts: &Contexts, removed: &str) -> String {
    let names: Vec<&str> = contexts.contexts.keys().map(String::as_str).collect();
    let next = match names.first() {
        Some(first) => format!("Choose another one with: bloom-runtime context use {first} (there are: {})", names.join(", ")),
        None => "Add another one with: bloom-runtime context set NAME --server URL".to_owned(),
    };
    format!("{removed} was the current context; none is current now, so commands call {DEFAULT_SERVER}. {next}")
}

fn set(
    contexts: &mut Contexts,
    name: String,
    server: Option<String>,
    key: Option<SecretString>,
    key_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
) -> Result<Client, CommandError> {
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
    let absolute = |file: PathBuf| std::path::absolute(&file).unwrap_or(file);
    let (key, key_file, ca_file) = (key.map(|key| key.expose_secret().to_owned()), key_file.map(absolute), ca_file.map(absolute));
    let mut context = ServerContext { server, key, key_file, ca_file };
    let has_key = |context: &ServerContext| context.key.is_some() || context.key_file.is_some();
    if let Some(before) = before {
        if before.server == context.server {
            context.ca_file = context.ca_file.or_else(|| before.ca_file.clone());
            if !has_key(&context) {
                (context.key, context.key_file) = (before.key, before.key_file);
            }
        } else if has_key(&before) && !has_key(&context) {
            term::info(&format!("The key of {name} was for {} and was removed.", before.server));
        }
    }
    let tls = Tls::trusting(context.ca_file.as_deref()).map_err(failed)?;
    let client = Client::new(&context.server, context.secret()?.as_ref(), &tls).map_err(failed)?.of_person();
    contexts.contexts.insert(name, context);
    Ok(client)
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
    show::list(form, &columns::CONTEXTS, &rows.collect::<Vec<_>>())?;
    if contexts.contexts.is_empty() && matches!(form, Form::Table | Form::Wide) {
        term::info("Here are servers and their keys; conversations are listed by bloom-runtime conversation list.");
    }
    Ok(())
}
