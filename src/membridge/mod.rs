//! The membridge control plane: an external service that lists agents and keeps projects.
//!
//! The proxy routes and the worker sync share one [`Membridge`]. Its address and key may change at runtime.

#![warn(missing_docs, unreachable_pub)]

mod agents;
mod client;
pub mod sync;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use secrecy::{ExposeSecret, SecretString};

use bloom_core::Ms;
use bloom_core::command::WorkerChange;
use bloom_core::masked_urls::masked_url;
pub use bloom_outbound::Reply;
use bloom_store::wall_clock;
use client::Client;
pub use client::{Call, Upstream};

/// Timeouts and waits of the client.
#[derive(Clone, Copy, Debug)]
pub struct MembridgeOptions {
    /// The time limit of one attempt of a call other than a sync, up to the end of the answer.
    pub attempt_timeout: Duration,
    /// The wait before the first retry. It doubles for each further one, plus up to 30 % at random.
    pub first_wait: Duration,
}

impl Default for MembridgeOptions {
    fn default() -> Self {
        Self { attempt_timeout: Duration::from_secs(10), first_wait: Duration::from_millis(500) }
    }
}

/// The connection to the control plane. Clones share its state.
#[derive(Clone)]
pub struct Membridge(Arc<Inner>);

struct Inner {
    client: Client,
    target: RwLock<Target>,
    seen: Mutex<Seen>,
    own: Option<OwnControlPlane>,
}

/// A control plane that runs in the same process.
#[derive(Clone, Debug)]
pub struct OwnControlPlane {
    /// The URL by which this process reaches it.
    pub internal_url: String,
    /// The URL at which it listens for others.
    pub url: String,
}

#[derive(Clone, Default)]
struct Target {
    url: Option<String>,
    key: Option<SecretString>,
}

#[derive(Clone, Default)]
struct Seen {
    state: State,
    last_test: Option<Ms>,
}

/// The outcome of the last calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// How many calls have failed since the last success.
    pub consecutive_failures: u32,
    /// When a call last succeeded, in milliseconds since the epoch; `None`: never.
    pub last_success: Option<Ms>,
    /// The error of the last call, if it failed.
    pub last_error: Option<String>,
    /// Whether the last call was answered.
    pub connected: bool,
}

/// The settings, with the key masked.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigView {
    /// The URL without user and password.
    pub membridge_server_url: String,
    /// The beginning and the end of the key, or only asterisks if it is short; empty if there is none.
    pub admin_key_masked: String,
    /// As [`State::connected`].
    pub connected: bool,
    /// When the connection was last tested, in milliseconds since the epoch; `None`: never.
    pub last_test: Option<Ms>,
    /// The URL at which the control plane of this process listens for others; `None` if another control plane is used.
    pub built_in_url: Option<String>,
}

impl Membridge {
    /// A connection with the usual time limits. `url`: `None` if there is no control plane.
    pub fn new(url: Option<String>, key: Option<SecretString>) -> Self {
        Self::with_options(url, key, MembridgeOptions::default())
    }

    /// A connection to the control plane of this process.
    pub fn built_in(own: OwnControlPlane, key: Option<SecretString>) -> Self {
        let target = Target { url: Some(own.internal_url.clone()), key };
        Self::to(target, Some(own), MembridgeOptions::default())
    }

    /// A connection with these time limits. `url`: `None` if there is no control plane.
    pub fn with_options(url: Option<String>, key: Option<SecretString>, options: MembridgeOptions) -> Self {
        Self::to(Target { url, key }, None, options)
    }

    fn to(target: Target, own: Option<OwnControlPlane>, options: MembridgeOptions) -> Self {
        Self(Arc::new(Inner { client: Client::new(options), target: RwLock::new(target), seen: Mutex::default(), own }))
    }

    /// Sets the address and the key. The state of the former connection is reset.
    pub fn configure(&self, url: String, key: SecretString) {
        let mut target = self.0.target.write();
        let same_key = target.key.as_ref().is_some_and(|former| former.expose_secret() == key.expose_secret());
        if same_key && target.url.as_ref() == Some(&url) {
            return;
        }
        *target = Target { url: Some(url), key: Some(key) };
        *self.seen() = Seen::default();
    }

    /// Whether an address is set.
    pub fn is_configured(&self) -> bool {
        self.target().url.is_some()
    }

    /// The settings and the last test, for people.
    pub fn config(&self) -> ConfigView {
        let Target { url, key } = self.target();
        let seen = self.seen();
        let own = self.0.own.as_ref().filter(|own| url.as_deref() == Some(own.internal_url.as_str()));
        ConfigView {
            built_in_url: own.map(|own| own.url.clone()),
            membridge_server_url: url.map(|url| masked_url(&url)).unwrap_or_default(),
            admin_key_masked: key.map(|key| mask(key.expose_secret())).unwrap_or_default(),
            connected: seen.state.connected,
            last_test: seen.last_test,
        }
    }

    /// The outcome of the last calls.
    pub fn state(&self) -> State {
        self.seen().state.clone()
    }

    /// Makes a call, with its retries.
    pub async fn call(&self, call: Call<'_>) -> Upstream {
        let target = self.target();
        let answer = match &target.url {
            Some(url) => self.0.client.call(url, target.key.as_ref(), &call).await,
            None => return Upstream::Down("No membridge server is configured: set MEMBRIDGE_SERVER_URL".to_owned()),
        };
        self.record_outcome(&target, answer.problem());
        answer
    }

    /// Asks for the control plane's health.
    ///
    /// # Errors
    /// A text for users: `HTTP 401`, or the network error.
    pub async fn test_connection(&self) -> Result<serde_json::Value, String> {
        let tested = match self.call(Call::Health).await {
            Upstream::Reply(reply) if reply.is_success() => serde_json::from_slice::<serde_json::Value>(&reply.body)
                .map_err(|_| "the health answer is not JSON: is this a membridge server?".to_owned()),
            Upstream::Reply(reply) => Err(format!("HTTP {}", reply.status)),
            Upstream::Down(error) => Err(error),
        };
        let mut seen = self.seen();
        seen.last_test = Some(wall_clock());
        seen.state.connected = tested.is_ok();
        if let Err(error) = &tested {
            seen.state.last_error = Some(error.clone());
        }
        tested
    }

    /// The listed agents, as changes of workers. Bad entries are skipped with a warning.
    ///
    /// # Errors
    /// A text for users, if there is no list.
    pub async fn agents(&self) -> Result<Vec<WorkerChange>, String> {
        match self.call(Call::Agents).await {
            Upstream::Reply(reply) if reply.is_success() => agents::parse(&reply.body),
            Upstream::Reply(reply) => Err(format!("HTTP {}", reply.status)),
            Upstream::Down(error) => Err(error),
        }
    }

    fn record_outcome(&self, called: &Target, problem: Option<String>) {
        // An answer of the former server must not change the state of the new one.
        if self.target().url != called.url {
            return;
        }
        let State { consecutive_failures, last_success, last_error, connected } = &mut self.seen().state;
        *connected = problem.is_none();
        match problem {
            None => {
                *consecutive_failures = 0;
                *last_success = Some(wall_clock());
                *last_error = None;
            }
            Some(problem) => {
                *consecutive_failures = consecutive_failures.saturating_add(1);
                *last_error = Some(problem);
            }
        }
    }

    fn target(&self) -> Target {
        self.0.target.read().clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.seen.lock()
    }
}

/// `xxxx****xxxx`; nothing of the key if it has 8 characters or fewer.
fn mask(key: &str) -> String {
    let characters: Vec<char> = key.chars().collect();
    if characters.len() <= 8 {
        return "****".to_owned();
    }
    let (head, tail) = (&characters[..4], &characters[characters.len() - 4..]);
    head.iter().chain(&['*'; 4]).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn a_mask_shows_both_ends_of_long_keys_only() {
        assert_eq!(mask("abcdefghijkl"), "abcd****ijkl");
        assert_eq!(mask("abcdefghi"), "abcd****fghi");
        assert_eq!(mask("abcdefgh"), "****");
        assert_eq!(mask("ключ-доступу-1"), "ключ****пу-1");
    }
}
