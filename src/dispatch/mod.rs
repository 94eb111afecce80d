//! The server's calls to the agents of workers: pushed tasks, health checks, and orders such as an update.
//!
//! The URL of an agent is that of its worker's registration. Each call carries the key that all agents share.

#![warn(missing_docs, unreachable_pub)]

mod calls;
mod circuit_breaker;
mod memory;
mod push;
pub mod reconcile;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use reqwest::{Method, RequestBuilder};
use secrecy::SecretString;
use tokio::sync::Semaphore;

pub use calls::Order;
pub use memory::Snapshot;
pub use push::{Dispatched, Outcome};

use bloom_engine::Engine;
use bloom_outbound as outbound;
use circuit_breaker::CircuitBreakers;

const KEY_HEADER: &str = "X-MEMBRIDGE-AGENT";
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// An agent that answers at the end of its run leaves the connection silent until then. Keep-alive finds out whether the machine is still
/// up.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// The maximum number of pushes in progress. A push is short if the agent answers at once; otherwise it lasts as long as the run.
const MAX_PUSHES: usize = 1_024;

/// How this process calls agents.
#[derive(Clone, Default)]
pub struct DispatchOptions {
    /// Sent with every call, and never shown.
    pub key: Option<SecretString>,
    /// The URL at which agents reach this server, without a trailing slash.
    pub public_url: Option<String>,
    /// The URL at which this server listens, used if no public URL is set.
    pub own_url: String,
}

/// The agents, as this process calls them. Clones share their state.
#[derive(Clone)]
pub struct Agents(Arc<Inner>);

struct Inner {
    engine: Engine,
    options: DispatchOptions,
    /// An error means that TLS can't be set up on this machine.
    http: Result<reqwest::Client, String>,
    permits: Arc<Semaphore>,
    breakers: Mutex<CircuitBreakers>,
}

impl Agents {
    /// The calls to the agents of this engine's workers. Nothing is sent yet.
    pub fn new(engine: Engine, options: DispatchOptions) -> Self {
        // Connections are not reused: if the agent has just closed an idle one, it is unknown whether it saw the request.
        let http = outbound::client(|builder| {
            let builder = builder.connect_timeout(CONNECT_LIMIT).tcp_keepalive(KEEP_ALIVE).tcp_nodelay(true);
            builder.pool_max_idle_per_host(0).retry(reqwest::retry::never())
        });
        Self(Arc::new(Inner { engine, options, http, permits: Arc::new(Semaphore::new(MAX_PUSHES)), breakers: Mutex::default() }))
    }

    /// The URL at which agents reach this server, if it is set.
    pub fn public_url(&self) -> Option<&str> {
        self.0.options.public_url.as_deref()
    }

    /// The URL at which this server listens.
    pub fn own_url(&self) -> &str {
        &self.0.options.own_url
    }

    /// How many more pushes may be started.
    pub fn free_permits(&self) -> usize {
        self.0.permits.available_permits()
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
