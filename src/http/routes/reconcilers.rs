//! Reconcilers: what they did last.

use axum::extract::State;

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok};
use bloom_api::reconcilers::Reconciler;

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ;

/// Lists the reconcilers.
///
/// Sorted by name, each with its last run, how many things that run changed, and its last error. The replica that runs a reconciler records
/// this every few seconds, so all replicas give the same answer.
#[utoipa::path(
    get, path = "/api/runtime/reconcilers", operation_id = "listReconcilers", tag = "records",
    responses((status = 200, description = "All reconcilers.", body = Vec<Reconciler>))
)]
pub(crate) async fn list(State(app): State<AppState>) -> HandlerResult {
    let runs = app.store.reconcilers().await?;
    let now = app.engine.clock.now();
    ok(&runs.iter().map(|run| Reconciler::new(run, now)).collect::<Vec<_>>())
}
