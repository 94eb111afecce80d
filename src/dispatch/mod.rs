//! The server's calls to the agents of workers: tasks pushed to them, their health, and orders such as an update.
//!
//! Where an agent is, its worker's registration says. What goes there carries the agents' common key, so that they know who calls.

mod calls;
mod circuit_breaker;
mod push;
pub mod reconcile;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use reqwest::{Method, RequestBuilder};
use secrecy::SecretString;
use tokio::sync::Semaphore;

pub use calls::Order;
pub use push::{Dispatched, Outcome};

use bloom_engine::Engine;
use bloom_outbound as outbound;
use circuit_breaker::CircuitBreakers;

const KEY_HEADER: &str = "X-MEMBRIDGE-AGENT";
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// An agent that answers when its run is done leaves the connection silent for as long; this tells whether the machine is there at all.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Pushes under way at a time. Those of agents that answer at once are short, others last as long as their runs.
const MAX_PUSHES: usize = 1_024;

#[derive(Clone, Default)]
pub struct DispatchOptions {
    /// Sent with every call, never shown.
    pub key: Option<SecretString>,
    /// Where agents reach this server, without a slash at the end.
    pub public_url: Option<String>,
    /// Where it listens, if nothing better is known.
    pub own_url: String,
}

/// The agents, as this process calls them. Clones share everything.
#[derive(Clone)]
pub struct Agents(Arc<Inner>);

struct Inner {
    engine: Engine,
    options: DispatchOptions,
    /// The error is one of this machine's set-up.
    http: Result<reqwest::Client, String>,
    places: Arc<Semaphore>,
    breakers: Mutex<CircuitBreakers>,
}

impl Agents {
    pub fn new(engine: Engine, options: DispatchOptions) -> Self {
        // No connection is used twice: on one that its other end has just closed nobody could say whether the request was seen.
        let http = outbound::client(|builder| {
            let builder = builder.connect_timeout(CONNECT_LIMIT).tcp_keepalive(KEEP_ALIVE).tcp_nodelay(true);
            builder.pool_max_idle_per_host(0).retry(reqwest::retry::never())
        });
        Self(Arc::new(Inner { engine, options, http, places: Arc::new(Semaphore::new(MAX_PUSHES)), breakers: Mutex::default() }))
    }

    /// Where agents reach this server, if an operator has said so.
    pub fn public_url(&self) -> Option<&str> {
        self.0.options.public_url.as_deref()
    }

    /// Where this server listens.
    pub fn own_url(&self) -> &str {
        &self.0.options.own_url
    }

    /// How many more pushes may be begun.
    pub fn room(&self) -> usize {
        self.0.places.available_permits()
    }

    fn request(&self, method: Method, worker_url: &str, path: &str) -> Result<RequestBuilder, String> {
        let http = self.0.http.as_ref().map_err(Clone::clone)?;
        let url = outbound::address(worker_url, &[path]).map_err(|error| format!("the worker's URL can't be called: {error}"))?;
        let request = http.request(method, url);
        outbound::with_key(request, KEY_HEADER, self.0.options.key.as_ref()).map_err(|error| format!("agents can't be called: {error}"))
    }

    fn breakers(&self) -> MutexGuard<'_, CircuitBreakers> {
        self.0.breakers.lock()
    }
}
