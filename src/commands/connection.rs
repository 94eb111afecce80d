//! Which server and key the commands use.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCandidates;
use secrecy::{ExposeSecret, SecretString};

use super::context_file::{self, Contexts};
use super::dev_key::{self, InUse};
use super::key_file::one_key;
use super::server_calls::{Server, failed};
use super::term;
use crate::CommandError;
use bloom_client::Tls;
use bloom_config::Environment;

/// The server that commands call if nothing names another one.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:5000";
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

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
    /// Where the address comes from, if the command does not name it.
    origin: Option<String>,
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
        let (mut target, dev) = self.target()?;
        if let Some(dev) = dev {
            // If nothing listens at the default address, a command without a server can only mean `dev`.
            if self.names_none(&target) && nothing_listens_by_default() {
                target.server = dev.url;
                target.key.get_or_insert(dev.key);
            } else if target.key.is_none() {
                term::info(&format!("The key of dev is sent only to where it listens: give --server {}", dev.url));
            }
        }
        let server = Server::new(&target.server, target.key.as_ref(), &Tls::trusting(target.ca_file.as_deref()).map_err(failed)?)?;
        Ok(match &target.origin {
            Some(origin) => Server { client: server.client.with_origin(origin) },
            None => server,
        })
    }

    /// Whether neither flags, the environment nor a context name a server.
    fn names_none(&self, target: &Target) -> bool {
        self.server.is_none() && self.use_context.is_none() && target.origin.is_none()
    }

    /// Also a `dev` that is probably meant, if it listens elsewhere.
    fn target(&self) -> Result<(Target, Option<InUse>), CommandError> {
        let mut target = self.given()?;
        let mut elsewhere = None;
        if is_of_this_machine(&target.server) {
            let dev = match dev_key::in_use(&bloom_config::default_data_dir()) {
                // Another key is given, so an error about the key file of `dev` does not matter.
                Err(_) if target.key.is_some() => None,
                found => found?,
            };
            match dev {
                Some(dev) if dev.is_at(&target.server) => {
                    target.key.get_or_insert(dev.key);
                }
                Some(dev) if is_default(&target.server) || dev.is_at(&target.server.replacen("localhost", "127.0.0.1", 1)) => {
                    // Another user's program may listen at the given address, so it does not get the key.
                    elsewhere = Some(dev);
                }
                _ => {}
            }
        }
        Ok((target, elsewhere))
    }

    /// What flags, the environment of this process and the contexts say.
    fn given(&self) -> Result<Target, CommandError> {
        let environment = Environment::of_process();
        self.resolve(&environment, || context_file::path(&environment).map_or(Ok(Contexts::default()), |path| Contexts::read(&path)))
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
        // If the key is given by a flag, the variables are ignored, even if they contradict each other or name a missing file.
        let (env_key, file) = (variable("BLOOM_KEY")?.map(SecretString::from), environment.get("BLOOM_KEY_FILE").map(PathBuf::from));
        let env_key = if flag_key.is_some() { None } else { one_key("BLOOM_KEY", env_key, "BLOOM_KEY_FILE", file)? };
        let ca_file = self.ca_file.clone().or_else(|| environment.get("BLOOM_CA_FILE").map(PathBuf::from));
        if let Some(server) = self.server.clone() {
            return Ok(Target { server, key: flag_key.or(env_key), ca_file, origin: None });
        }
        if let Some(name) = &self.use_context {
            let context = contexts()?.take(name)?;
            let ca_file = self.ca_file.clone().or_else(|| context.ca_file.clone()).or(ca_file);
            return Ok(Target { key: flag_key.or(context.secret()?).or(env_key), server: context.server, ca_file, origin: None });
        }
        if let Some(server) = variable("BLOOM_SERVER")? {
            return Ok(Target { server, key: flag_key.or(env_key), ca_file, origin: Some("BLOOM_SERVER".to_owned()) });
        }
        let contexts = contexts()?;
        let (name, origin) = match (variable("BLOOM_CONTEXT")?, &contexts.current) {
            (Some(name), _) => (name.clone(), format!("the context {name} of BLOOM_CONTEXT")),
            (None, Some(name)) => (name.clone(), format!("the context {name}, which is in use")),
            (None, None) => {
                return Ok(Target { server: DEFAULT_SERVER.to_owned(), key: flag_key.or(env_key), ca_file, origin: None });
            }
        };
        let context = contexts.take(&name)?;
        let key = match flag_key.or(env_key) {
            None => context.secret()?,
            given => given,
        };
        Ok(Target { server: context.server, key, ca_file: ca_file.or(context.ca_file), origin: Some(origin) })
    }
}

/// Whether commands without flags call the server with this address and key, from this environment.
pub fn is_called_by_default(url: &str, key: Option<&SecretString>) -> bool {
    let none = Connection { server: None, key: None, key_file: None, ca_file: None, use_context: None };
    let text = |key: Option<&SecretString>| key.map(|key| key.expose_secret().to_owned());
    none.target()
        .is_ok_and(|(target, _)| target.server.trim_end_matches('/') == url && (key.is_none() || text(target.key.as_ref()) == text(key)))
}

/// The key with which commands without flags call this server, from this environment, without that of a `dev`. `None` also if they call
/// another server, whose key this one must not get.
///
/// # Errors
/// Variables contradict each other, or a key can't be read.
pub fn default_key_for(url: &str) -> Result<Option<SecretString>, CommandError> {
    let none = Connection { server: None, key: None, key_file: None, ca_file: None, use_context: None };
    let target = none.given()?;
    let place = |url: &str| url.trim_end_matches('/').trim_start_matches("http://").replacen("localhost", "127.0.0.1", 1);
    // A key without a named server is meant for the one on this machine.
    Ok(target.key.filter(|_| target.origin.is_none() || place(&target.server) == place(url)))
}

/// Whether this is the address of a server that names none.
fn is_default(server: &str) -> bool {
    server == DEFAULT_SERVER
}

/// Whether connections to the address of a server that names none are refused.
fn nothing_listens_by_default() -> bool {
    let address = DEFAULT_SERVER.trim_start_matches("http://").parse();
    let connected = address.map(|address| TcpStream::connect_timeout(&address, CONNECT_LIMIT));
    matches!(connected, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}

/// Whether a `dev` may listen there.
fn is_of_this_machine(server: &str) -> bool {
    let host = server.strip_prefix("http://").unwrap_or(server);
    ["127.", "localhost", "[::1]"].iter().any(|own| host.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_origin_of_an_address_is_told() {
        let of = |flags: &[&str], variables: &[(&str, &str)]| target(flags, variables).unwrap().origin.unwrap_or_default();
        assert_eq!(of(&["--server", "http://s"], &[]), "");
        assert_eq!(of(&["--use-context", "b"], &[]), "");
        assert_eq!(of(&[], &[("BLOOM_SERVER", "http://e")]), "BLOOM_SERVER");
        assert_eq!(of(&[], &[("BLOOM_CONTEXT", "b")]), "the context b of BLOOM_CONTEXT");
        assert_eq!(of(&[], &[]), "the context a, which is in use");
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        to: Connection,
    }

    fn target(flags: &[&str], variables: &[(&str, &str)]) -> Result<Target, String> {
        let line = Line::parse_from([&["x"], flags].concat());
        let file = "current = 'a'\n[contexts.a]\nserver = 'http://a'\nkey = 'of-a'\n[contexts.b]\nserver = 'http://b'\n";
        let target = line.to.resolve(&variables.iter().copied().collect(), || Contexts::parse(file).map_err(CommandError::usage));
        target.map_err(|failure| failure.to_string())
    }

    /// The server and the key for these flags and variables, with two contexts: `a`, which is in use, and `b`, which has no key.
    fn resolve(flags: &[&str], variables: &[(&str, &str)]) -> Result<(String, String), String> {
        let target = target(flags, variables)?;
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
}
