//! Which server and key the commands use, and calls that are repeated while the server is busy.

use std::path::PathBuf;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use clap::Args;
use clap_complete::ArgValueCandidates;
use reqwest::Method;
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::form_urlencoded;

use super::context_file::{self, Contexts};
use super::dev_key;
use super::flags;
use super::key_file::one_key;
use super::term;
use crate::CommandError;
use bloom_client::{CALL_LIMIT, Client, Error, Tls};
use bloom_config::Environment;

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:5000";
/// The maximum number of rows of one page.
const PAGE: usize = 1000;
const TRIES: usize = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(8);
/// A server may ask for a wait of up to a minute, because its rate limit counts by the minute.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub struct Connection {
    /// The server's address [env: BLOOM_SERVER] [default: http://127.0.0.1:5000]
    #[arg(long, global = true, value_name = "URL")]
    server: Option<String>,
    /// The server's key; the list of processes shows it, so prefer --key-file or the environment [env: BLOOM_KEY]
    #[arg(long, global = true, value_name = "KEY")]
    key: Option<SecretString>,
    /// File with the value of --key [env: BLOOM_KEY_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// PEM file with authorities that the server's certificate may come from, in addition to those of the operating system [env:
    /// BLOOM_CA_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Take the server and the key from this context; see `bloom-runtime context` [env: BLOOM_CONTEXT] [default: the context in use]
    #[arg(long, global = true, value_name = "NAME", add = ArgValueCandidates::new(context_file::names))]
    use_context: Option<String>,
}

/// A server and its key.
struct Target {
    server: String,
    key: Option<SecretString>,
    /// Authorities of its certificate.
    ca_file: Option<PathBuf>,
}

impl Connection {
    /// The flags in an unfinished command line, for completions.
    pub fn of_words(words: &[String]) -> Self {
        let value = |flag: &str| {
            let at = words.iter().position(|word| word.starts_with(flag))?;
            match words[at].strip_prefix(flag)?.strip_prefix('=') {
                Some(value) => Some(value.to_owned()),
                None => words.get(at + 1).cloned(),
            }
        };
        let key = value("--key").filter(|_| words.iter().any(|word| word == "--key")).map(SecretString::from);
        Self {
            server: value("--server"),
            key,
            key_file: value("--key-file").map(PathBuf::from),
            ca_file: value("--ca-file").map(PathBuf::from),
            use_context: value("--use-context"),
        }
    }

    /// # Errors
    /// Flags or variables contradict each other, or can't be used.
    pub fn server(&self) -> Result<Server, CommandError> {
        let environment = Environment::of_process();
        let mut target =
            self.resolve(&environment, || context_file::path(&environment).map_or(Ok(Contexts::default()), |path| Contexts::read(&path)))?;
        if target.key.is_none() && target.server == DEFAULT_SERVER {
            target.key = dev_key::in_use(&bloom_config::default_data_dir())?;
        }
        Server::new(&target.server, target.key.as_ref(), &Tls::trusting(target.ca_file.as_deref()).map_err(failed)?)
    }

    /// Flags take precedence over the environment, and the environment over the context in use. The key of a context is sent to the server
    /// of that context only.
    fn resolve(
        &self,
        environment: &Environment,
        contexts: impl FnOnce() -> Result<Contexts, CommandError>,
    ) -> Result<Target, CommandError> {
        let variable = |name: &str| match environment.get(name).map(|value| value.to_str()) {
            None => Ok(None),
            Some(Some(text)) => Ok(Some(text.to_owned())),
            Some(None) => Err(CommandError::usage(format!("{name} must be UTF-8 text"))),
        };
        if self.server.is_some() && self.use_context.is_some() {
            return Err(CommandError::usage("--server and --use-context both name a server; use only one of them"));
        }
        let flag_key = one_key("--key", self.key.clone(), "--key-file", self.key_file.clone())?;
        // With a flag, the variables don't count, even if they contradict each other or name a file that is gone.
        let (env_key, file) = (variable("BLOOM_KEY")?.map(SecretString::from), environment.get("BLOOM_KEY_FILE").map(PathBuf::from));
        let env_key = if flag_key.is_some() { None } else { one_key("BLOOM_KEY", env_key, "BLOOM_KEY_FILE", file)? };
        let ca_file = self.ca_file.clone().or_else(|| environment.get("BLOOM_CA_FILE").map(PathBuf::from));
        if let Some(server) = self.server.clone() {
            return Ok(Target { server, key: flag_key.or(env_key), ca_file });
        }
        if let Some(name) = &self.use_context {
            let context = contexts()?.take(name)?;
            let ca_file = self.ca_file.clone().or_else(|| context.ca_file.clone()).or(ca_file);
            return Ok(Target { key: flag_key.or(context.secret()?).or(env_key), server: context.server, ca_file });
        }
        if let Some(server) = variable("BLOOM_SERVER")? {
            return Ok(Target { server, key: flag_key.or(env_key), ca_file });
        }
        let contexts = contexts()?;
        let Some(name) = variable("BLOOM_CONTEXT")?.or_else(|| contexts.current.clone()) else {
            return Ok(Target { server: DEFAULT_SERVER.to_owned(), key: flag_key.or(env_key), ca_file });
        };
        let context = contexts.take(&name)?;
        let key = match flag_key.or(env_key) {
            None => context.secret()?,
            given => given,
        };
        Ok(Target { server: context.server, key, ca_file: ca_file.or(context.ca_file) })
    }
}

/// The server that commands call.
pub struct Server {
    pub client: Client,
}

/// Which failures of a call are retried.
#[derive(Clone, Copy)]
pub enum Again {
    /// Only those in which the server was busy and has done nothing.
    Busy,
    /// All transient failures. The call must have the same effect when it is repeated.
    Passing,
}

impl Server {
    /// # Errors
    /// The URL or the key can't be used.
    pub fn new(url: &str, key: Option<&SecretString>, tls: &Tls) -> Result<Self, CommandError> {
        Ok(Self { client: Client::new(url, key, tls).map_err(failed)? })
    }

    /// # Errors
    /// The call failed.
    pub async fn get(&self, path: &str) -> Result<Value, CommandError> {
        self.call(Again::Busy, || self.client.get(path)).await.map_err(failed)
    }

    /// # Errors
    /// The call failed; it may have taken effect.
    pub async fn post(&self, path: &str, body: &impl Serialize) -> Result<Value, CommandError> {
        self.call(Again::Busy, || self.client.post(path, body)).await.map_err(change_failed)
    }

    /// As [`post`](Self::post), for calls that have the same effect when they are repeated: a lost answer is retried too.
    ///
    /// # Errors
    /// The call failed.
    pub async fn post_surely(&self, path: &str, body: &impl Serialize) -> Result<Value, CommandError> {
        self.call(Again::Passing, || self.client.post(path, body)).await.map_err(failed)
    }

    /// # Errors
    /// The call failed; it may have taken effect.
    pub async fn patch(&self, path: &str, body: &impl Serialize) -> Result<Value, CommandError> {
        self.change(Method::PATCH, path, body, CALL_LIMIT).await
    }

    /// # Errors
    /// The call failed; it may have taken effect.
    pub async fn change(&self, method: Method, path: &str, body: &impl Serialize, limit: Duration) -> Result<Value, CommandError> {
        let call = || async { self.client.send(method.clone(), path, Some(body), limit).await?.json() };
        self.call(Again::Busy, call).await.map_err(change_failed)
    }

    /// As [`change`](Self::change).
    pub async fn delete(&self, path: &str) -> Result<Value, CommandError> {
        let call = || async { self.client.send::<()>(Method::DELETE, path, None, CALL_LIMIT).await?.json() };
        self.call(Again::Busy, call).await.map_err(change_failed)
    }

    /// At most `limit` rows of a list, read page by page, and whether there are more.
    ///
    /// # Errors
    /// A call failed.
    pub async fn list(&self, path: &str, query: &[(&str, String)], limit: usize) -> Result<(Vec<Value>, bool), Error> {
        let mut query = query.to_vec();
        query.push(("limit", limit.min(PAGE).to_string()));
        let mut next = Some(with_query(path, &query));
        let mut rows: Vec<Value> = Vec::new();
        while let Some(page) = next.take_if(|_| rows.len() < limit) {
            let (more, after) = self.page(&page).await?;
            rows.extend(more);
            next = after;
        }
        let more = next.is_some() || rows.len() > limit;
        rows.truncate(limit);
        Ok((rows, more))
    }

    /// One page of a list, and the path of the next one.
    ///
    /// # Errors
    /// The call failed.
    pub async fn page(&self, path: &str) -> Result<(Vec<Value>, Option<String>), Error> {
        let answer = self.call(Again::Busy, || self.client.send::<()>(Method::GET, path, None, CALL_LIMIT)).await?;
        Ok((answer.json()?, answer.next))
    }

    pub async fn call<T, F: Future<Output = Result<T, Error>>>(&self, again: Again, call: impl FnMut() -> F) -> Result<T, Error> {
        let waits =
            ExponentialBuilder::default().with_min_delay(FIRST_WAIT).with_max_delay(LONGEST_WAIT).with_max_times(TRIES - 1).with_jitter();
        call.retry(waits)
            .when(|error| match again {
                Again::Busy => matches!(error.status(), Some(429 | 503)),
                Again::Passing => error.is_passing(),
            })
            .adjust(|error, wait| match retry_after(error) {
                Some(asked) if asked > LONGEST_RETRY_AFTER => None,
                Some(asked) => wait.map(|wait| wait.max(asked)),
                None => wait,
            })
            .notify(|error, wait| term::info(&format!("{error}; trying again in {:.0} s", wait.as_secs_f64().ceil())))
            .await
    }
}

pub fn retry_after(error: &Error) -> Option<Duration> {
    if let Error::Refused { retry_after, .. } = error { *retry_after } else { None }
}

/// As [`failed`], of a call that changes something and is not repeated if its answer is lost.
fn change_failed(error: Error) -> CommandError {
    match error {
        Error::Broken(text) => CommandError::from(format!("{text}; the change may have been made: look before you give the command again")),
        other => failed(other),
    }
}

/// A request that the server finds wrong was made of wrong flags, so these are named.
pub fn failed(error: Error) -> CommandError {
    match error {
        Error::Usage(message) => CommandError::usage(message),
        Error::Refused { status: 400, fields, .. } if !fields.is_empty() => {
            CommandError::usage(fields.iter().map(|(field, text)| flags::told(field, text)).collect::<Vec<_>>().join("; "))
        }
        Error::Refused { status: 400 | 413, message, .. } => CommandError::usage(message),
        other => CommandError::from(other.to_string()),
    }
}

/// Parses an answer. The answer itself is kept, so that it can be shown as the server sent it.
///
/// # Errors
/// The answer is not a `T`.
pub fn read<T: DeserializeOwned>(answer: &Value) -> Result<T, CommandError> {
    T::deserialize(answer).map_err(|error| format!("the server's answer is not what its API promises: {error}").into())
}

pub fn with_query(path: &str, query: &[(&str, String)]) -> String {
    if query.is_empty() {
        return path.to_owned();
    }
    format!("{path}?{}", form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use secrecy::ExposeSecret;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        to: Connection,
    }

    /// The server and the key for these flags and variables, with two contexts: `a`, which is in use, and `b`, which has no key.
    fn resolve(flags: &[&str], variables: &[(&str, &str)]) -> Result<(String, String), String> {
        let line = Line::parse_from([&["x"], flags].concat());
        let file = "current = 'a'\n[contexts.a]\nserver = 'http://a'\nkey = 'of-a'\n[contexts.b]\nserver = 'http://b'\n";
        let target = line.to.resolve(&variables.iter().copied().collect(), || Contexts::parse(file).map_err(CommandError::usage));
        let target = target.map_err(|failure| failure.to_string())?;
        Ok((target.server, target.key.map(|key| key.expose_secret().to_owned()).unwrap_or_default()))
    }

    #[test]
    fn what_is_nearer_is_stronger() {
        let check = |flags: &[&str], variables: &[(&str, &str)], server: &str, key: &str| {
            assert_eq!(resolve(flags, variables), Ok((server.to_owned(), key.to_owned())), "{flags:?} {variables:?}");
        };
        let (env_server, env_key) = (("BLOOM_SERVER", "http://e"), ("BLOOM_KEY", "of-e"));
        check(&[], &[], "http://a", "of-a");
        check(&[], &[env_key], "http://a", "of-e");
        check(&["--key", "k"], &[env_key, ("BLOOM_KEY_FILE", "/nowhere/at/all")], "http://a", "k");
        check(&[], &[("BLOOM_CONTEXT", "b")], "http://b", "");
        check(&["--use-context", "b"], &[env_server, env_key], "http://b", "of-e");
        check(&["--use-context", "a"], &[env_server, env_key], "http://a", "of-a");
        check(&["--server", "http://s"], &[env_server, env_key], "http://s", "of-e");
    }

    #[test]
    fn a_contexts_key_goes_to_no_other_server() {
        assert_eq!(resolve(&["--server", "http://s"], &[]).unwrap().1, "");
        assert_eq!(resolve(&[], &[("BLOOM_SERVER", "http://e")]).unwrap().1, "");
        assert_eq!(resolve(&[], &[("BLOOM_SERVER", "http://e"), ("BLOOM_CONTEXT", "a")]).unwrap().1, "");
    }

    #[test]
    fn contradictions_are_told() {
        assert!(resolve(&["--server", "http://s", "--use-context", "a"], &[]).unwrap_err().contains("--use-context"));
        assert!(resolve(&["--key", "k", "--key-file", "f"], &[]).unwrap_err().contains("--key-file"));
        assert!(resolve(&[], &[("BLOOM_CONTEXT", "c")]).unwrap_err().contains("a, b"));
        let both = [("BLOOM_KEY", "k"), ("BLOOM_KEY_FILE", "/nowhere/at/all")];
        assert!(resolve(&[], &both).unwrap_err().contains("BLOOM_KEY and BLOOM_KEY_FILE are both given"));
        assert!(resolve(&["--key-file", "/nowhere/at/all"], &[]).unwrap_err().contains("/nowhere/at/all"));
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(with_query("p", &[]), "p");
        assert_eq!(with_query("p", &[("label", "a=b&c".into()), ("limit", "5".into())]), "p?label=a%3Db%26c&limit=5");
    }
}
