//! Leases: list.

use axum::extract::State;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok, page};
use crate::messages::error::Error;
use crate::messages::paging::{cut, page_of};
use crate::messages::representations::{Query, show_lease};
use crate::middleware::Caller;
use bloom_api::answers::Lease;
use bloom_api::lists::{LeaseParams, PageParams, StatusParam};
use bloom_core::task::{LeaseOutcome, LeaseStatus, Reason};
use bloom_store::LeaseFilter;

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ.or_submit();

/// Lists leases, newest first.
///
/// Lists active and ended leases. The header `Link` leads to the next page, if there is one. A submit or member key must name, with
/// `task_id`, a task that it can see.
#[utoipa::path(
    get, path = "/api/runtime/leases", operation_id = "listLeases", tag = "leases",
    params(PageParams, StatusParam<LeaseStatus>, LeaseParams),
    responses((status = 200, description = "A page of leases.", body = Vec<Lease>))
)]
pub(crate) async fn list(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    let page_wanted = page_of(&params)?;
    let status = params.get("status").map(LeaseStatus::parse);
    let filter = LeaseFilter {
        status: status.flatten(),
        task_id: params.id("task_id")?,
        worker_id: params.text("worker_id")?,
        outcome: params.word("outcome", LeaseOutcome::ALL)?,
        reason: params.word("reason", Reason::ALL)?,
        created_after: params.moment("created_after")?,
        created_before: params.moment("created_before")?,
    };
    match filter.task_id {
        // No lease has an unknown status.
        _ if status == Some(None) => return ok(&[(); 0]),
        None if caller.sees().is_some() => {
            return Err(Error::field("task_id", "Required with a submit or member key: the task of the leases"));
        }
        Some(task) if ownership::tasks(&app, &caller, vec![task]).await?.is_empty() => return ok(&[(); 0]),
        _ => {}
    }
    let mut rows = app.store.leases(&filter, &page_wanted).await?;
    let next = cut(&mut rows, false, &params, "/api/runtime/leases", |lease| lease.id);
    page(&rows.iter().map(show_lease).collect::<Vec<_>>(), next)
}
