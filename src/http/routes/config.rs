//! The settings of the control plane and the test of the connection to it.

use axum::extract::State;
use secrecy::SecretString;

use crate::AppState;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::reports::{Config, ConnectionTest};
use bloom_api::requests::NewConfig;
use bloom_core::audit::{Action, Actor, EntityType};
use bloom_core::op;

pub(crate) const GET: RoutePolicy = RoutePolicy::READ;

/// Shows the settings of the control plane.
///
/// The key is masked, and so are the user and the password in the URL.
#[utoipa::path(
    get, path = "/api/runtime/config", operation_id = "getConfig", tag = "config",
    responses((status = 200, description = "The settings; the key is masked, and so are the user and the password in the URL.", body = Config))
)]
pub(crate) async fn get(State(app): State<AppState>) -> HandlerResult {
    show(&app)
}

fn show(app: &AppState) -> HandlerResult {
    let view = app.membridge.config();
    ok(&Config {
        membridge_server_url: view.membridge_server_url,
        admin_key_masked: view.admin_key_masked,
        connected: view.connected,
        last_test: view.last_test,
        built_in_url: view.built_in_url,
    })
}

pub(crate) const SET: RoutePolicy = RoutePolicy::ADMIN;

/// Changes the settings of the control plane.
///
/// The settings are stored. From then on, they take precedence over flags and environment variables on every replica.
#[utoipa::path(
    post, path = "/api/runtime/config", operation_id = "setConfig", tag = "config", request_body = NewConfig,
    responses((status = 200, description = "The settings; the key is masked, and so are the user and the password in the URL.", body = Config))
)]
pub(crate) async fn set(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    let wanted = body.read::<NewConfig>()?;
    let (url, key) = (wanted.membridge_server_url.0, wanted.admin_key.0);
    let op = op::Configure { membridge_server_url: url.clone(), membridge_admin_key: key.clone() };
    app.engine.writers.submit(caller.command(op)).await?;
    app.membridge.configure(url, SecretString::from(key));
    show(&app)
}

pub(crate) const TEST_CONNECTION: RoutePolicy = RoutePolicy::OPEN.rate(Rate::TestConnection);

/// Tests the connection to the control plane.
///
/// The answer is 200 in both cases; `connected` says whether the control plane answered.
#[utoipa::path(
    post, path = "/api/runtime/test-connection", operation_id = "testConnection", tag = "config",
    responses((status = 200, description = "Whether the control plane answered, and its answer.", body = ConnectionTest))
)]
pub(crate) async fn test_connection(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    body.raw()?;
    let tested = app.membridge.test_connection().await;
    let detail = tested.as_ref().map_or_else(|error| format!("failed: {error}"), |_| "connected".into());
    let (action, entity_type, entity_id) = (Action::ConnectionTest, EntityType::Config, "membridge".into());
    // The call needs no key, so anybody may have made it.
    app.engine.writers.submit(caller.command(op::RecordAudit { action, entity_type, entity_id, actor: Actor::Api, detail })).await?;
    ok(&match tested {
        Ok(health) => ConnectionTest { connected: true, health: Some(health), error: None },
        Err(error) => ConnectionTest { connected: false, health: None, error: Some(error) },
    })
}
