//! Accounts and profiles that are paused: list, resume.

use std::collections::BTreeMap;

use axum::extract::State;

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok, page};
use crate::messages::error::Error;
use crate::messages::path_ids::AccountPath;
use crate::messages::representations::Query;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::accounts::{Account, AccountPageParams};
use bloom_api::error::ErrorText;
use bloom_api::lists::invalid_cursor;
use bloom_core::ids::WorkerId;
use bloom_core::op;
use bloom_core::pause::{Pause, PauseKind};

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ;

/// Lists accounts and profiles that are paused.
///
/// Sorted by kind and name, over all workers that are not offline. The header `Link` leads to the next page.
#[utoipa::path(
    get, path = "/api/runtime/accounts", operation_id = "listAccounts", tag = "accounts", params(AccountPageParams),
    responses((status = 200, description = "A page of accounts and profiles.", body = Vec<Account>))
)]
pub(crate) async fn list(State(app): State<AppState>, Query(params): Query) -> HandlerResult {
    let (limit, after) = (params.limit() as usize, params.text("cursor")?.map(|text| cursor(&text)).transpose()?);
    let pauses = app.engine.replica.pauses();
    let accounts = merged(&pauses);
    let rest = accounts.into_iter().filter(|(key, _)| after.as_ref().is_none_or(|(kind, name)| *key > (*kind, name.as_str())));
    let rows: Vec<_> = rest.take(limit + 1).collect();
    let (shown, more) = rows.split_at(rows.len().min(limit));
    let next = shown.last().filter(|_| !more.is_empty());
    let next = next.map(|((kind, name), _)| params.next_link("/api/runtime/accounts", &format!("{kind}={name}")));
    page(&shown.iter().map(|(_, account)| account).collect::<Vec<_>>().as_slice(), next)
}

/// A cursor: the kind and the name of the last row of the page.
fn cursor(text: &str) -> Result<(PauseKind, String), Error> {
    let parts = text.split_once('=').and_then(|(kind, name)| Some((PauseKind::parse(kind)?, name.to_owned())));
    parts.ok_or_else(|| invalid_cursor().into())
}

fn merged(pauses: &[(WorkerId, Pause)]) -> BTreeMap<(PauseKind, &str), Account<'_>> {
    let mut accounts = BTreeMap::new();
    for (worker, pause) in pauses.iter().filter(|(_, pause)| pause.kind != PauseKind::Worker) {
        let account = accounts.entry((pause.kind, pause.name.as_str())).or_insert_with(|| Account {
            kind: pause.kind.into(),
            name: pause.name.as_str().into(),
            cause: pause.cause.into(),
            since: pause.since,
            until: pause.until,
            found_by: Vec::new(),
            workers: Vec::new(),
            resumed: false,
        });
        account.since = account.since.min(pause.since);
        account.until = account.until.min(pause.until);
        account.resumed |= pause.is_resumed;
        account.workers.push(worker.into());
        if pause.told_by.is_none() {
            account.found_by.push(worker.into());
        }
    }
    accounts
}

pub(crate) const RESUME: RoutePolicy = RoutePolicy::ADMIN;

/// Ends the pause of an account.
///
/// Ends the pause on all workers. Each worker learns this from the answer to its next claim or heartbeat, and then takes tasks for the
/// account again. If a run shows that the account still does not work, the worker pauses it again.
#[utoipa::path(
    post, path = "/api/runtime/accounts/{name}/resume", operation_id = "resumeAccount", tag = "accounts", params(("name" = String, Path)),
    responses(
        (status = 200, description = "The account as it was, with `resumed`.", body = Account),
        (status = 404, description = "The account is not paused.", body = ErrorText),
    )
)]
pub(crate) async fn resume(State(app): State<AppState>, caller: Caller, path: AccountPath, body: Content) -> HandlerResult {
    body.raw()?;
    let name = path.name()?;
    let mut pauses = app.engine.replica.pauses();
    pauses.retain(|(_, pause)| pause.kind == PauseKind::Account && pause.name == name);
    let workers: Vec<WorkerId> = pauses.iter().map(|(worker, _)| worker.clone()).collect();
    if workers.is_empty() {
        return Err(NOT_PAUSED);
    }
    app.engine.writers.submit(caller.command(op::ResumeAccount { account: name, workers })).await?;
    pauses.iter_mut().for_each(|(_, pause)| pause.is_resumed = true);
    ok(&merged(&pauses).into_values().next())
}

const NOT_PAUSED: Error = Error::fixed(404, "No worker says that an account of this name is paused: see bloom-runtime account list");
