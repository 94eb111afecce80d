//! Counts of tasks, leases and workers.

use std::cmp::Reverse;

use axum::extract::State;
use uuid::Uuid;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok, page};
use crate::messages::error::Error;
use crate::messages::list_streaming;
use crate::messages::paging::{cut, page_of};
use crate::messages::representations::{Query, show_lease};
use crate::middleware::Caller;
use crate::routes::files::output_objects;
use bloom_api::answers::{Audit, Lease};
use bloom_api::lists::{ArtifactParams, AuditParams, LeaseParams, MAX_LIMIT, PageParams, Params, StatusParam};
use bloom_api::reports::{LeaseStats, Stats, TaskStats, UsageRow, WorkerStats};
use bloom_api::results::Artifact;
use bloom_api::usage::{MAX_USAGE_KEYS, UsageParams, usage_keys};
use bloom_api::values::{MAX_LABEL_KEY, parse_id, text_problem};
use bloom_core::api_key::Owner;
use bloom_core::audit::Action;
use bloom_core::file::ArtifactKind;
use bloom_core::task::{LeaseStatus, Outcome};
use bloom_store::{AuditFilter, LeaseFilter, Listing, Page, UsageBy, UsageFilter};

pub(crate) const GET: RoutePolicy = RoutePolicy::READ;

/// Counts tasks, leases and workers.
///
/// At the same cost however many there are.
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
