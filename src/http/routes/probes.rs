//! Probes and metrics.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use tokio_util::sync::CancellationToken;

use crate::AppState;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::messages::answer::{HandlerResult, ok, typed};
use crate::messages::error::Error;
use bloom_api::error::ErrorText;
use bloom_api::reports::{Health, MembridgeState, Probe};
use bloom_store::{Fault, Store};

pub(crate) const HEALTHZ: RoutePolicy = RoutePolicy::OPEN;

/// Liveness: the process answers.
///
/// It does not query the database: an orchestrator must not restart the process because the database is unavailable.
#[utoipa::path(
    get, path = "/healthz", operation_id = "liveness", tag = "probes",
    responses((status = 200, description = "The process answers.", body = Probe))
)]
pub(crate) async fn healthz() -> HandlerResult {
    ok(&Probe { status: "ok".into(), kubernetes: None })
}

pub(crate) const READYZ: RoutePolicy = RoutePolicy::OPEN;

/// Readiness: the server can do its work.
///
/// The database is reachable and writable, its schema fits this program, and an SQLite file was not removed, replaced or damaged. The state
/// of the Kubernetes operator is reported but does not count, because everything else works without its cluster.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readiness", tag = "probes",
    responses(
        (status = 200, description = "The server is ready.", body = Probe),
        (status = 503, description = "The server is not ready, or is stopping.", body = ErrorText),
    )
)]
pub(crate) async fn readyz(State(app): State<AppState>) -> HandlerResult {
    check(&app.store, &app.shutdown).await?;
    ok(&Probe { status: "ready".into(), kubernetes: app.settings.kubernetes.as_ref().map(|state| state()) })
}

/// # Errors
/// The server is stopping, or its database can't be used.
pub(crate) async fn check(store: &Store, shutdown: &CancellationToken) -> Result<(), Error> {
    if shutdown.is_cancelled() {
        return Err(Error::Later("The server is stopping"));
    }
    if let Err(error) = store.ping().await {
        let outage = store.outage();
        if outage.is_none() {
            tracing::warn!(%error, "the server is not ready");
        }
        let text: Cow<'static, str> = match (&error, error.fault(), outage) {
            (_, Some(Fault::Failing), Some(outage)) => format!("{} ({})", Fault::Failing.text(), outage.label()).into(),
            (_, Some(fault), _) => fault.text().into(),
            (bloom_store::Error::Setup(_), ..) => {
                "The database's schema does not fit this program; run bloom-runtime migrate status".into()
            }
            (.., Some(outage)) => format!("The database can't be written to: {}. The server tries again by itself", outage.told()).into(),
            _ => "The database can't be reached or written to; check that it runs. The server tries again by itself".into(),
        };
        return Err(Error::Unready { text, cause: error.to_string() });
    }
    Ok(())
}

pub(crate) const HEALTH: RoutePolicy = RoutePolicy::OPEN;

/// Shows the health of this server, for monitors.
///
/// The same as `/api/runtime/health`, but the rate limit does not count it. The answer has the uptime and the kind of database.
#[utoipa::path(
    get, path = "/health", operation_id = "health", tag = "probes",
    responses((status = 200, description = "The server runs.", body = Health))
)]
pub(crate) async fn health(State(app): State<AppState>) -> HandlerResult {
    let membridge = app.membridge.state();
    ok(&Health {
        status: "ok".into(),
        service: "bloom-runtime".into(),
        uptime: app.started.elapsed().as_secs_f64(),
        storage: app.store.kind().as_str().into(),
        membridge: MembridgeState {
            consecutive_failures: membridge.consecutive_failures,
            last_success: membridge.last_success,
            last_error: membridge.last_error,
            connected: membridge.connected,
        },
    })
}

pub(crate) const API_HEALTH: RoutePolicy = RoutePolicy::OPEN.rate(Rate::General);

/// Shows the health of this server.
///
/// The answer means that the process runs. Whether it can write to the database is checked by `/readyz`.
#[utoipa::path(
    get, path = "/api/runtime/health", operation_id = "getHealth", tag = "probes",
    responses((status = 200, description = "The server runs.", body = Health))
)]
pub(crate) async fn api_health(state: State<AppState>) -> HandlerResult {
    health(state).await
}

pub(crate) const METRICS: RoutePolicy = RoutePolicy::READ.rate(Rate::Unlimited);

/// Returns the metrics.
///
/// In the text format of Prometheus. docs/metrics.md describes each metric.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "probes",
    responses((status = 200, description = "Metrics.", body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(app): State<AppState>) -> HandlerResult {
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(typed(StatusCode::OK, text, app.metrics.render().into()))
}
