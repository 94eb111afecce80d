//! Counts of tasks, leases and workers.

use axum::extract::State;

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok};
use bloom_api::reports::{LeaseStats, Stats, TaskStats, WorkerStats};

pub(crate) const GET: RoutePolicy = RoutePolicy::READ;

/// Counts tasks, leases and workers.
///
/// The cost of this call does not depend on how many there are.
#[utoipa::path(
    get, path = "/api/runtime/stats", operation_id = "getStats", tag = "records",
    responses((status = 200, description = "Counts.", body = Stats))
)]
pub(crate) async fn get(State(app): State<AppState>) -> HandlerResult {
    let stats = app.engine.replica.stats();
    let counted = stats.tasks_by_status.iter().filter(|(_, count)| **count > 0);
    ok(&Stats {
        tasks: TaskStats {
            total: stats.tasks_by_status.values().sum(),
            by_status: counted.map(|(status, count)| (status.as_str().into(), *count)).collect(),
        },
        leases: LeaseStats { total: stats.leases_total, active: stats.leases_active },
        workers: WorkerStats { total: stats.workers_total, online: stats.workers_online },
    })
}
