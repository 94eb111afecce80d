//! The control plane of this program: the HTTP interface of membridge on a port of its own, beside the server or without it.
//!
//! Its key is the admin key of the control plane, and its errors are `{"detail": …}`. Everything else is shared with the server:
//! connections and their limits, rate limits, the checks of host and site, and bodies.

mod agents;
mod failure;
mod fields;
mod guard;
mod projects;
mod sync;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
use secrecy::{ExposeSecret, SecretString};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::Settings;
use crate::identity::environment_keys::digest;
use crate::limits::body_memory::Budget;
use crate::limits::rate::Limiter;
use crate::server::{Served, serve_router};
use bloom_core::Ms;
use bloom_dispatch::Agents;
use bloom_engine::Engine;
use bloom_store::Store;
use bloom_telemetry::Metrics;
use failure::Failure;

/// The most snapshots that are fetched or delivered at a time. Each of them is in memory as a whole.
const SYNCS: usize = 4;

/// The control plane. Clones share its state.
#[derive(Clone)]
pub struct ControlPlane(Arc<Shared>);

/// What all requests to the control plane share.
pub struct Shared {
    engine: Engine,
    store: Store,
    agents: Agents,
    metrics: Metrics,
    settings: Settings,
    /// The digest of the admin key; `None` opens the control plane to everybody who reaches it.
    key: Option<[u8; 32]>,
    /// Ends the waiting for bodies.
    shutdown: CancellationToken,
    /// The limit for requests without the key, and for the health check.
    general: Option<Limiter>,
    /// The limit for requests with the key, which the fleet sends.
    fleet: Option<Limiter>,
    bodies: Budget,
    syncs: Arc<Semaphore>,
}

impl Deref for ControlPlane {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl ControlPlane {
    /// The keys in `settings` must be those of the control plane, because they decide whether a request must name this server as its host.
    pub fn new(
        engine: Engine,
        store: Store,
        agents: Agents,
        metrics: Metrics,
        settings: Settings,
        key: Option<&SecretString>,
        shutdown: CancellationToken,
    ) -> Self {
        Self(Arc::new(Shared {
            engine,
            store,
            agents,
            metrics,
            key: key.map(|key| digest(key.expose_secret().as_bytes())),
            shutdown,
            general: Limiter::new(settings.rate_limit_per_minute),
            fleet: Limiter::new(settings.worker_rate_limit_per_minute),
            bodies: Budget::new(settings.held_bytes),
            syncs: Arc::new(Semaphore::new(SYNCS)),
            settings,
        }))
    }

    /// Serves until `shutdown`, then finishes the requests in progress.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let served =
            Served { settings: self.settings.clone(), metrics: self.metrics.clone(), refuse: |error| Failure::from(error).into_response() };
        serve_router(listener, self.router(), served, shutdown).await;
    }

    fn router(self) -> Router {
        Router::new()
            .route("/health", get(agents::health))
            .route("/healthz", get(agents::alive))
            .route("/readyz", get(agents::ready))
            .route("/metrics", get(agents::metrics))
            .route("/agents", get(agents::list).post(agents::register))
            .route("/agents/{name}", delete(agents::remove))
            .route("/agent/heartbeat", post(agents::heartbeat))
            .route("/projects", get(projects::list).post(projects::register))
            .route("/projects/{project}", delete(projects::remove))
            .route("/projects/{project}/nodes", get(projects::nodes))
            .route("/projects/{project}/leadership", get(projects::leadership))
            .route("/projects/{project}/leadership/select", post(projects::select))
            .route("/sync/push", post(sync::push))
            .route("/sync/pull", post(sync::pull))
            .route("/jobs", get(sync::jobs))
            .route("/jobs/{id}", get(sync::job))
            .fallback(|| async { Failure::fixed(404, "Not Found") })
            .method_not_allowed_fallback(|| async { Failure::fixed(405, "Method Not Allowed") })
            // The guard limits bodies.
            .layer(DefaultBodyLimit::disable())
            .layer(from_fn_with_state(self.clone(), guard::guard))
            .with_state(self)
    }
}

/// The settings of the server, adapted to the control plane, which accepts only its own key.
pub fn settings_of(server: &Settings, key: Option<&SecretString>) -> Settings {
    Settings { keys: crate::Keys::new(key, None, None), ..server.clone() }
}

/// Times of this interface are seconds.
fn seconds(ms: Ms) -> f64 {
    ms as f64 / 1000.0
}
