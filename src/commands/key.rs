//! `key`: creates, lists, rotates and revokes named keys, tells of the one that is used, and exchanges a join token for a worker's key.

use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand};
use serde_json::Value;

use super::confirm::confirm;
use super::key_file::NewKeyFile;
use super::key_quota::{self, QuotaChange, QuotaFlags};
use super::server_calls::{Server, read};
use super::show::{self, Form, Shown};
use super::words::one_of;
use super::{columns, revocation, term, when};
use crate::CommandError;
use bloom_api::keys::{CreatedKey, EnrolledName, Key, KeyName, KeyRotation, NewEnrollment, NewKey};
use bloom_api::time_text::seconds_until;
use bloom_api::values::{Int, ShortName};
use bloom_client::part;
use bloom_config as config;
use bloom_core::api_key::Scope;
use bloom_core::audit::{Actor, is_name_of_another_actor};
use bloom_core::command::Rejection;
use bloom_core::similar::did_you_mean;

pub(crate) const EXAMPLES: &str = "\
Examples:
  bloom-runtime key create ci --scope submit --expires 90d --out ci.key
  bloom-runtime key create ann --scope member --team web --out ann.key
  bloom-runtime key create worker-7 --scope worker --worker worker-7 --out worker-7.key
  bloom-runtime key create new-machine --scope join --worker worker-8 --out join.token
  bloom-runtime key create web --scope submit --max-open-tasks 200 --max-tasks-per-minute 60 --out web.key
  bloom-runtime key quota web --max-open-tasks 500
  bloom-runtime key rotate ci --overlap 1d --out ci-new.key
  bloom-runtime key revoke ci --yes";

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key, and print it or store it in a new file; it can't be shown again
    Create {
        /// Its name: up to 63 of the characters A-Z a-z 0-9 . _ -, which the audit trail shows as key:NAME
        name: String,
        /// What it allows. admin: everything; submit: to create tasks, and to see and change these; member: to create tasks, to see and
        /// change those of its team, and to see what else a team needs, such as queues; worker: the calls of one worker; read: everything
        /// that only reads; join: to enroll one worker, once
        #[arg(long, value_parser = scope_parser())]
        scope: Scope,
        /// The worker that a key of scope worker speaks for, or the only worker that a join token enrolls
        #[arg(long, value_name = "NAME")]
        worker: Option<String>,
        /// The team of a key of scope member, which sees and changes the tasks of all keys of the team; the members also see the tasks of a
        /// key of scope submit with a team, which itself sees only its own
        #[arg(long, value_name = "NAME")]
        team: Option<String>,
        /// Let the worker register with a URL that the server calls (agent --listen): the server sends tasks and MEMBRIDGE_AGENT_KEY there
        #[arg(long)]
        push: bool,
        /// Let the worker serve only the LLMTasks of this Kubernetes namespace, and no other tasks; may be repeated [default: no limit]
        #[arg(long = "namespace", value_name = "NAME", value_parser = config::namespace)]
        namespaces: Vec<String>,
        /// How long it is valid, such as 90d, 1y or until 2027-01-01 [default: no expiry; for a join token 24h]
        #[arg(long, value_name = "TIME", value_parser = lasts, allow_hyphen_values = true)]
        expires: Option<u64>,
        #[command(flatten)]
        quota: QuotaFlags,
        #[command(flatten)]
        out: Out,
    },
    /// Change limits of a key of scope submit or member; those that are not named stay as they are
    ///
    /// Existing tasks and uploads of the key stay, and its runs go on, even above a new limit.
    #[command(group = ArgGroup::new("limits").args(key_quota::FLAGS).arg("none").required(true).multiple(true))]
    Quota {
        /// Its name, as `key list` shows it
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        change: QuotaChange,
    },
    /// List the keys; the keys themselves are not shown
    #[command(alias = "ls")]
    List,
    /// Show what the key of this call allows: its scope, its team, when it expires, and how much of its quota is used
    Whoami,
    /// Give a key another secret, and print it or store it in a new file; the name, its tasks and its quota stay
    ///
    /// The previous secret stays valid for some time (--overlap), so that its users can change to the new one without being refused.
    Rotate {
        /// Its name, as `key list` shows it
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// How long the previous secret stays valid, such as 15m or 1d, at most 30d; 0: it is refused at once
        #[arg(long, value_name = "TIME", value_parser = overlap, default_value = "1h", allow_hyphen_values = true)]
        overlap: u64,
        /// How long the key is valid from now on, such as 90d, 1y or until 2027-01-01 [default: its expiry does not change]
        #[arg(long, value_name = "TIME", value_parser = lasts, allow_hyphen_values = true)]
        expires: Option<u64>,
        #[command(flatten)]
        out: Out,
    },
    /// Revoke keys: servers refuse them from now on
    ///
    /// The command says what happens to the tasks that they created, or to the runs of their worker, and asks, unless --yes is set.
    #[command(aliases = ["rm", "delete", "remove"])]
    Revoke {
        /// Do not ask: for scripts
        #[arg(short, long)]
        yes: bool,
        /// Names, as `key list` shows them
        #[arg(required = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
        names: Vec<String>,
    },
    /// Exchange a join token for a worker's key, and print the key or store it in a new file; the token is used up
    ///
    /// Pass the token as the key of this call: with --key-file, or in BLOOM_KEY.
    Enroll {
        /// The worker that the key is for
        worker: String,
        #[command(flatten)]
        out: Out,
    },
}

#[derive(Args, Debug)]
pub struct Out {
    /// Store the key in this file, which must not exist yet and which only you can read. A shell's > FILE would make a file that others
    /// can read, and would empty a file that exists
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn lasts(text: &str) -> Result<u64, String> {
    seconds_until(text, when::now())
}

fn overlap(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { lasts(text) }
}

fn seconds(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

fn scope_parser() -> impl TypedValueParser<Value = Scope> {
    one_of(Scope::ALL).try_map(|word| Scope::parse(&word).ok_or("expected one of the listed scopes"))
}

pub(crate) async fn run(command: KeyCommand, server: &Server, shown: Shown) -> Result<(), CommandError> {
    match command {
        KeyCommand::Create { name, scope, worker, team, push, namespaces, expires, quota, out } => {
            let file = out.out.map(NewKeyFile::create).transpose()?;
            let body = NewKey {
                name: KeyName(name.clone()),
                scope,
                worker: worker.map(ShortName::from),
                team: team.clone().map(KeyName),
                push: push.then_some(true),
                namespaces: (!namespaces.is_empty()).then(|| namespaces.into_iter().collect()),
                expires_in_sec: expires.map(|time| Int(seconds(time))),
                quota: quota.given(),
            };
            let exists = Rejection::KeyExists(name.clone()).to_string();
            let created = server.post("api/runtime/keys", &body).await.map_err(|mut failure| {
                if failure.message.contains(&exists) {
                    failure.message += &format!("; to give it another secret: bloom-runtime key rotate {name}");
                }
                failure.about(&name)
            })?;
            hand_over(created, "is created", file, shown)?;
            if let Some(team) = team {
                tell_if_team_is_unknown(server, &team, Some(&name)).await;
            }
            Ok(())
        }
        KeyCommand::Rotate { name, overlap, expires, out } => {
            let file = out.out.map(NewKeyFile::create).transpose()?;
            let body = KeyRotation { overlap_sec: Int(seconds(overlap)), expires_in_sec: expires.map(|time| Int(seconds(time))) };
            let path = format!("api/runtime/keys/{}/rotate", part(&name));
            let rotated = told(server.post(&path, &body).await, &name, server).await?;
            let about = read::<CreatedKey>(&rotated)?.about;
            let (former, worker) = (about.former_until, about.worker);
            hand_over(rotated, "is rotated", file, shown)?;
            term::info(&match former {
                Some(until) => format!("The secret that it had is valid until {}.", when::time_text(until)),
                None => "The secret that it had is refused from now on.".to_owned(),
            });
            if let Some(worker) = worker {
                let (when, runs) = match former {
                    Some(_) => ("by then", String::new()),
                    None => ("now", revocation::of_runs(server, &worker).await),
                };
                term::info(&format!(
                    "The agent of {worker} needs the new secret {when}: put it into the file of its --key-file.{runs} An agent that has \
                     enrolled with a join token takes a new token instead, which gives it another key: \
                     bloom-runtime key create {worker}-again --scope join --worker {worker}"
                ));
            }
            Ok(())
        }
        KeyCommand::Quota { name, change } => {
            let key = told(change.send(&name, server).await, &name, server).await?;
            let quota = read::<Key>(&key)?.quota.map_or_else(|| "no limits".to_owned(), |quota| columns::quota(&quota));
            term::info(&format!("The quota of {name} now: {quota}"));
            show::one(shown.form_or(Form::Table), &columns::KEYS, &key)
        }
        KeyCommand::List => {
            let keys = server.get("api/runtime/keys").await?;
            show::list(shown.form_or(Form::Table), &columns::KEYS, keys.as_array().map(Vec::as_slice).unwrap_or_default())
        }
        KeyCommand::Whoami => {
            let caller = server.get("api/runtime/whoami").await?;
            match shown.form() {
                Some(form) if form.is_data() => show::as_it_came(form, &caller),
                _ if caller["key"].is_object() => show::one(shown.form_or(Form::Table), &columns::KEYS, &caller["key"]),
                _ if caller["open"] == true => term::print("The server asks for no key: everybody may do everything.\n"),
                _ => {
                    let scope = caller["scope"].as_str().unwrap_or_default();
                    term::print(&format!("The key is that of the scope {scope} in the server's settings, and has no name.\n"))
                }
            }
        }
        KeyCommand::Revoke { yes, names } => {
            let effects = effects(server, &names).await?;
            let caller = server.get("api/runtime/whoami").await.unwrap_or_default();
            if let Some(own) = names.iter().find(|name| caller["key"]["name"].as_str() == Some(name.as_str())) {
                term::info(&format!("Warning: {own} is the key of this call: you will be locked out, unless you have another one."));
            }
            if !yes {
                let known = names.iter().zip(&effects).filter(|(_, effect)| !effect.is_empty());
                known.for_each(|(name, effect)| term::info(&format!("{name}: {effect}")));
                if !confirm("revoke", &names.join(", ")).await? {
                    term::info("Nothing was changed.");
                    return Ok(());
                }
            }
            for (name, effect) in names.iter().zip(&effects) {
                told(server.delete(&format!("api/runtime/keys/{}", part(name))).await, name, server).await?;
                term::info(format!("{name} is revoked. {effect}").trim_end());
            }
            Ok(())
        }
        KeyCommand::Enroll { worker, out } => {
            let file = out.out.map(NewKeyFile::create).transpose()?;
            let created = server.post("api/runtime/enroll", &NewEnrollment { worker: EnrolledName(worker), instance: None }).await?;
            hand_over(created, "is created", file, shown)
        }
    }
}

/// What the revocation of each of these keys means. They are read before, because the key of this call may be one of them. If the list of
/// keys can't be read, the revocation itself tells why.
///
/// # Errors
/// One of them does not exist: nobody is asked about it.
async fn effects(server: &Server, wanted: &[String]) -> Result<Vec<String>, CommandError> {
    let Ok(keys) = server.get("api/runtime/keys").await else { return Ok(vec![String::new(); wanted.len()]) };
    let (mut effects, mut missing) = (Vec::new(), Vec::new());
    for name in wanted {
        match find(&keys, name) {
            Some(key) => effects.push(revocation::effects(server, key).await),
            None => {
                let text = format!("{}{}", Rejection::KeyNotFound, did_you_mean(name, names(&keys)));
                missing.push(CommandError::from(text).about(name));
            }
        }
    }
    CommandError::all(&missing).map(|()| effects)
}

/// Says which key failed, and which one may be meant if there is none with this name.
async fn told(done: Result<Value, CommandError>, name: &str, server: &Server) -> Result<Value, CommandError> {
    let failure = match done {
        Ok(answer) => return Ok(answer),
        Err(failure) => failure.about(name),
    };
    if !failure.message.contains(&Rejection::KeyNotFound.to_string()) {
        return Err(failure);
    }
    // The list is needed only for a hint, so an error about it is not reported.
    let keys = server.get("api/runtime/keys").await.unwrap_or_default();
    Err(CommandError { message: failure.message + &did_you_mean(name, names(&keys)), ..failure })
}

fn find<'a>(keys: &'a Value, name: &str) -> Option<&'a Value> {
    keys.as_array().into_iter().flatten().find(|key| key["name"] == name)
}

fn names(keys: &Value) -> impl Iterator<Item = &str> {
    keys.as_array().into_iter().flatten().filter_map(|key| key["name"].as_str())
}

/// Says so if no key has this name. Only admins may list the keys; others are told nothing.
pub(crate) async fn tell_if_unknown(server: &Server, name: &str) {
    if let Ok(keys) = server.get("api/runtime/keys").await {
        tell_if_not_among(&keys, name);
    }
}

fn tell_if_not_among(keys: &Value, name: &str) {
    if find(keys, name).is_none() {
        let meant = did_you_mean(name, names(keys));
        term::info(&format!("No key has the name {name} now{meant}: check the spelling."));
    }
}

/// Says why a filter by this owner may find nothing: only tasks of submit and member keys have an owner. Only admins may list the keys;
/// others are told nothing.
pub(crate) async fn tell_of_owner(server: &Server, name: &str) {
    let Ok(keys) = server.get("api/runtime/keys").await else { return };
    let (whose, actor) = match find(&keys, name) {
        Some(key) if !key["scope"].as_str().and_then(Scope::parse).is_some_and(Scope::owns_tasks) => {
            (format!("{name} has the scope {}", key["scope"].as_str().unwrap_or_default()), format!("key:{name}"))
        }
        None if is_name_of_another_actor(name) => ("The key in the server's settings has no name".to_owned(), Actor::Api.to_string()),
        _ => return tell_if_not_among(&keys, name),
    };
    term::info(&format!(
        "{whose}, and only tasks of submit and member keys have an owner. To see what it created: \
         bloom-runtime audit --actor {actor} --action task_created"
    ));
}

/// Says so if none of the keys, besides this one, has the team, though some have another. Only admins may list the keys; others are told nothing.
pub(crate) async fn tell_if_team_is_unknown(server: &Server, team: &str, besides: Option<&str>) {
    let Ok(keys) = server.get("api/runtime/keys").await else { return };
    let all = keys.as_array().into_iter().flatten().filter(|key| key["name"].as_str() != besides);
    let teams: Vec<&str> = all.filter_map(|key| key["team"].as_str()).collect();
    if !teams.is_empty() && !teams.contains(&team) {
        let other = if besides.is_some() { "other " } else { "" };
        term::info(&format!("No {other}key has the team {team}{}", did_you_mean(team, teams)));
    }
}

/// Stores the key in the file. Without a file, prints the key alone, so that a script can capture it; as JSON or YAML, with everything
/// about it.
fn hand_over(mut created: Value, done: &str, file: Option<NewKeyFile>, shown: Shown) -> Result<(), CommandError> {
    let key: CreatedKey = read(&created)?;
    let about = format!("{} {done}, with the scope {}.", key.about.name, key.about.scope);
    let kept = file.map(|file| file.keep(&key.key)).transpose().map_err(|failure| failure.about(&key.about.name))?;
    if let Some(form @ (Form::Json | Form::Yaml)) = shown.form() {
        if kept.is_some()
            && let Some(fields) = created.as_object_mut()
        {
            fields.remove("key");
        }
        return show::as_it_came(form, &created);
    }
    match kept {
        Some(path) => term::info(&format!("{about} The key is in {}; it is not shown again.", path.display())),
        None => {
            term::info(&format!("{about} Keep the key: it is not shown again."));
            term::print(&format!("{}\n", key.key))?;
        }
    }
    Ok(())
}
