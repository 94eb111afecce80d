//! The audit trail: list.

use axum::extract::State;

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, page};
use crate::messages::paging::{cut, page_of};
use crate::messages::representations::Query;
use bloom_api::answers::Audit;
use bloom_api::lists::{AuditParams, PageParams};
use bloom_core::audit::Action;
use bloom_store::AuditFilter;

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ;

/// Lists the audit trail, newest first.
///
/// An entry must match all filters of the request. It is committed together with the change that it describes. Heartbeats are not recorded.
/// The header `Link` leads to the next page.
#[utoipa::path(
    get, path = "/api/runtime/audit", operation_id = "listAudit", tag = "records", params(PageParams, AuditParams),
    responses((status = 200, description = "A page of entries.", body = Vec<Audit>))
)]
pub(crate) async fn list(State(app): State<AppState>, Query(params): Query) -> HandlerResult {
    let page_wanted = page_of(&params)?;
    let (actions, is_of_people) = (params.words("action", Action::ALL)?, params.flag("people")?);
    let filter = AuditFilter {
        task_id: params.id("task_id")?,
        worker_id: params.text("worker_id")?,
        actor: params.text("actor")?,
        request_id: params.text("request_id")?,
        actions: if is_of_people && actions.is_empty() { Action::OF_PEOPLE.to_vec() } else { actions },
        is_of_people,
        created_after: params.moment("created_after")?,
        created_before: params.moment("created_before")?,
    };
    let mut rows = app.store.audit(&filter, &page_wanted).await?;
    let next = cut(&mut rows, false, &params, "/api/runtime/audit", |entry| entry.id);
    page(&rows.iter().map(Audit::from).collect::<Vec<_>>(), next)
}
