//! The HTTP server: routes by resource, behind one `middleware` for everything that all requests have in common.

#![warn(missing_docs, unreachable_pub)]

pub mod control_plane;
mod identity;
mod in_process;
mod limits;
mod messages;
mod middleware;
mod openapi;
mod pages;
mod routes;
pub mod server;
mod traced_call;

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
use ipnet::IpNet;
use tokio_util::sync::CancellationToken;
use url::{Host, Url};

pub use identity::environment_keys::Keys;
pub use identity::key_ring::Identity;
pub use identity::session::SESSION_MS;
pub use in_process::Api;
pub use limits::body_memory::Share;
pub use messages::request_body::refuse_unread_form;
pub use middleware::Caller;
pub use openapi::description::openapi;
pub use pages::Pages;
pub use routes::live::queue_history::Moment;

use bloom_dispatch::Agents;
use bloom_engine::Engine;
use bloom_membridge::Membridge;
use bloom_objects::Objects;
use bloom_store::Store;
use bloom_telemetry::Metrics;
use bloom_tls::Tls;
use identity::key_ring::KeyRing;
use identity::policy::BodyLimit;
use limits::body_memory::{Budget, Room};
use limits::rate::Limiter;
use limits::waiting_requests::StreamLimits;
use messages::error::Error;
use messages::request_body::Limit;
use routes::live::hub::Hub;
use routes::live::queue_history::History;

/// The settings of the HTTP server.
#[derive(Clone)]
pub struct Settings {
    /// The keys of the environment.
    pub keys: Keys,
    /// The public address of this server, if it differs from the one that requests name.
    pub public_url: Option<Url>,
    /// Further host names of this server. If no keys are configured, requests with any other `Host` are refused.
    pub hosts: Vec<Host>,
    /// Requests per minute for one client address; 0 = no limit.
    pub rate_limit_per_minute: u32,
    /// Connection tests per minute for one client address; 0 = no limit.
    pub test_connection_per_minute: u32,
    /// Requests of workers per minute for one client address, and the same number again for events of runs; 0 = no limit.
    pub worker_rate_limit_per_minute: u32,
    /// Proxies whose `X-Forwarded-…` headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// The most bytes of a body, not counting a completion's output.
    pub max_body_bytes: usize,
    /// Limit of a completion's output; `max_body_bytes` limits the rest of its body.
    pub max_output_bytes: usize,
    /// Limit of a file.
    pub max_artifact_bytes: usize,
    /// The longest time for a request, except for long polls and streams. A large body adds to it.
    pub request_timeout: Duration,
    /// [`server::HEAD_TIMEOUT`], except in tests.
    pub head_timeout: Duration,
    /// A connection is closed if its client reads nothing for this time; [`server::WRITE_TIMEOUT`], except in tests.
    pub write_timeout: Duration,
    /// The most bytes of request bodies in memory at a time. The same limit applies again to answers, and again to answers of calls that
    /// change something. [`HELD_BYTES`], except in tests.
    pub held_bytes: usize,
    /// Connections at a time, including the spare ones, on which requests are refused; see [`server::shares`].
    pub max_connections: usize,
    /// The server speaks https if there is one.
    pub tls: Option<Tls>,
    /// Reports the state of the Kubernetes operator, if it runs.
    pub kubernetes: Option<Arc<dyn Fn() -> String + Send + Sync>>,
    /// The object store for large outputs; `None`: the database keeps them.
    pub objects: Option<Objects>,
    /// TTL of a lease, unless the caller sets `ttl_seconds`.
    pub lease_ttl_ms: i64,
    /// The longest time limit that a task may have, in seconds.
    pub max_timeout_sec: i64,
}

/// See [`Settings::held_bytes`].
pub const HELD_BYTES: usize = 256 << 20;

/// How many times longer a text may become as JSON. For example, Python writes a character of 2 bytes as an escape sequence of 6.
const JSON_EXPANSION: usize = 3;

impl Settings {
    /// The same as [`Api::root`].
    fn root(&self) -> &str {
        self.public_url.as_ref().map(Url::path).unwrap_or_default().trim_end_matches('/')
    }

    fn usual_body(&self) -> Limit {
        Limit { bytes: self.max_body_bytes, settings: "MAX_BODY_BYTES" }
    }

    /// `None`: the handler limits the body itself.
    fn body_limit(&self, limit: BodyLimit) -> Option<Limit> {
        let for_output = self.max_output_bytes.saturating_mul(JSON_EXPANSION);
        match limit {
            BodyLimit::Streamed | BodyLimit::Form => None,
            BodyLimit::Usual => Some(self.usual_body()),
            BodyLimit::Outputs => {
                Some(Limit { bytes: self.max_body_bytes.saturating_add(for_output), settings: "MAX_BODY_BYTES and MAX_OUTPUT_BYTES" })
            }
        }
    }
}

/// The state that all requests share. Clones refer to the same state.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

/// What [`AppState`] refers to.
pub struct Shared {
    /// Executes all commands, and has the cache.
    pub engine: Engine,
    /// For lists and reports. All changes go through the engine.
    pub store: Store,
    /// For calls to agents.
    pub agents: Agents,
    /// The connection to the control plane.
    pub membridge: Membridge,
    /// The metrics of this process.
    pub metrics: Metrics,
    /// The settings of the server.
    pub settings: Settings,
    /// When the server was started, for the uptime.
    pub started: Instant,
    /// Ends the long polls and streams.
    pub shutdown: CancellationToken,
    ring: KeyRing,
    limits: Limits,
    hub: Arc<Hub>,
    history: History,
    stream_limits: StreamLimits,
}

struct Limits {
    general: Option<Limiter>,
    test_connection: Option<Limiter>,
    worker: Option<Limiter>,
    events: Option<Limiter>,
    held_of_requests: Budget,
    held_of_answers: Budget,
    /// The answers of calls that may change something have a budget of their own, so that clients that only read can't take their room.
    held_of_changes: Budget,
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl AppState {
    /// Creates the state and starts the background tasks that notify waiting requests of changes, record the last hour and keep the named
    /// keys up to date. They end with `shutdown`.
    pub fn new(
        engine: Engine,
        store: Store,
        agents: Agents,
        membridge: Membridge,
        metrics: Metrics,
        settings: Settings,
        shutdown: CancellationToken,
    ) -> Self {
        let hub = Arc::new(Hub::default());
        tokio::spawn(hub.clone().run(engine.clone(), store.clone(), shutdown.clone()));
        let history = History::default();
        tokio::spawn(history.clone().follow(engine.clone(), store.clone(), shutdown.clone()));
        let ring = KeyRing::new(settings.keys.clone());
        tokio::spawn(ring.clone().follow(engine.clone(), store.clone(), shutdown.clone()));
        tokio::spawn(ring.clone().store_uses(engine.clone(), shutdown.clone()));
        let limits = Limits {
            general: Limiter::new(settings.rate_limit_per_minute),
            test_connection: Limiter::new(settings.test_connection_per_minute),
            worker: Limiter::new(settings.worker_rate_limit_per_minute),
            events: Limiter::new(settings.worker_rate_limit_per_minute),
            held_of_requests: Budget::new(settings.held_bytes),
            held_of_answers: Budget::new(settings.held_bytes),
            held_of_changes: Budget::new(settings.held_bytes),
        };
        let (started, stream_limits) = (Instant::now(), StreamLimits::new(server::shares(settings.max_connections).0));
        Self(Arc::new(Shared {
            engine,
            store,
            agents,
            membridge,
            metrics,
            settings,
            started,
            shutdown,
            ring,
            limits,
            hub,
            history,
            stream_limits,
        }))
    }

    /// Reserves room for an answer of about this size. Must be called before the call changes anything.
    ///
    /// # Errors
    /// Large answers hold all of the room, or all of this client's share.
    fn room(&self, caller: &Caller, bytes: usize) -> Result<Room, Error> {
        self.limits.held_of_changes.reserve(bytes, caller.client)
    }

    /// Reads the named keys. The server refuses named keys until this was called.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn read_keys(&self) -> Result<(), bloom_store::Error> {
        self.ring.read(&self.store).await?;
        let count = self.ring.count();
        if count > 0 && !self.ring.takes_named_keys() {
            tracing::warn!(count, "the stored keys have no effect, because RUNTIME_API_KEY is not set: set it and start the server again");
        }
        Ok(())
    }
}

/// All routes, those of the API and the pages for browsers.
pub fn router(state: AppState, pages: Pages) -> Router {
    let (routes, _, policies) = openapi::description::routes().into_parts();
    let api = Api::new(state.clone(), routes, Arc::new(policies));
    let (finish, root) = (pages.finish, state.settings.root().into());
    let (router, _, policies) = pages.add_to(openapi::docs::add_to(openapi::description::routes())).into_parts();
    let middleware_state = middleware::MiddlewareState { app: state.clone(), policies: Arc::new(policies) };
    let router = router
        .fallback(|| async { Error::fixed(404, "Not found") })
        .method_not_allowed_fallback(|| async { Error::fixed(405, "Method not allowed") })
        // The middleware limits bodies, by route.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(middleware_state, middleware::middleware))
        .with_state(state);
    // This layer must be outside of the layers that the pages add: these use the API to show errors with the menu of the visitor.
    finish(router, root).layer(Extension(api))
}
