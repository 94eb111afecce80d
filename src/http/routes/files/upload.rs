//! Files: clients upload them for tasks, and agents upload those of their runs. Uploads are removed on request.

use axum::extract::{Path, Request, State};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::IntoResponse;
use bloom_api::answers::Removed;
use bloom_api::error::ErrorText;
use bloom_api::files::FileContent;
use bloom_api::lists::Params;
use bloom_api::results::Artifact;
use bloom_api::uploads::UploadParams;
use bloom_api::values::parse_id;
use bloom_core::api_key::Scope;
use bloom_core::command::{Holder, Rejection};
use bloom_core::file::{FileKind, MAX_CONTENT_TYPE, path_problem};
use bloom_core::op::{self, FileOfRun};
use bloom_core::reply::AddedFile;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::limits::waiting_requests::Permit;
use crate::messages::answer::{HandlerResult, json, ok};
use crate::messages::error::Error;
use crate::messages::representations::Query;
use crate::messages::request_body;
use crate::middleware::Caller;
use crate::routes::files::upload_content::{self, Wanted};

const NOT_FOUND: Error = Error::fixed(404, "Artifact not found");
const ONLY_RUNS: Error = Error::fixed(403, "A worker's key uploads only files of its runs: name task_id and lease_id");

const NOT_OF_RUNS: Error =
    Error::fixed(403, "A submit or member key uploads no files of runs: their workers do; leave out task_id and lease_id");

pub(crate) const UPLOAD: RoutePolicy = RoutePolicy::ADMIN.or_submit().or_worker().rate(Rate::Worker).waits().streams_body();

/// Uploads a file.
///
/// The body is the unchanged file, and the header Content-Type is its type. Without `task_id`, any task of the caller can have the file as
/// an input; the file is removed after 24 hours if no task uses it, otherwise together with the last task that uses it. With `task_id` and
/// `lease_id`, it is a file of a run, which only workers and administrators can upload, and is removed with the task. A repeated upload of
/// the same run with the same name, type and content returns the first one.
#[utoipa::path(
    post, path = "/api/runtime/artifacts", operation_id = "uploadArtifact", tag = "records", params(UploadParams),
    request_body(content = FileContent, content_type = "application/octet-stream"),
    responses(
        (status = 201, description = "The artifact.", body = Artifact),
        (status = 200, description = "The artifact of the first upload.", body = Artifact),
        (status = 404, description = "The task does not exist, or the lease has ended.", body = ErrorText),
        (status = 409, description = "Another lease holds the task, or there are too many uploads that no task uses.", body = ErrorText),
    )
)]
pub(crate) async fn upload(State(app): State<AppState>, caller: Caller, Query(params): Query, request: Request) -> HandlerResult {
    let (parts, mut body) = request.into_parts();
    let is_awaited = parts.headers.contains_key(EXPECT);
    let done = match begin(&app, &caller, &params, &parts.headers).await {
        Ok((wanted, permit)) => {
            let (outcome, rest) = upload_content::receive(&app, &caller, wanted, body, permit).await?;
            body = rest;
            outcome
        }
        Err(wrong) => Err(wrong),
    };
    match done {
        Ok(AddedFile { file, is_new }) => json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &Artifact::from(&file)),
        Err(wrong) => {
            let mut response = wrong.into_response();
            if !request_body::drain(body, is_awaited).await {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        }
    }
}

/// The checks before the file is read.
async fn begin(app: &AppState, caller: &Caller, params: &Params, headers: &HeaderMap) -> Result<(Wanted, Permit), Error> {
    let name = params.get("name").ok_or(Error::field("name", "Required: the name of the file"))?.to_owned();
    if let Some(wrong) = path_problem(&name) {
        return Err(Error::field("name", format!("The name {wrong}")));
    }
    let sha256 = params.get("sha256").map(str::to_ascii_lowercase);
    if sha256.as_ref().is_some_and(|digest| digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        return Err(Error::field("sha256", "Expected a SHA-256 digest: 64 hexadecimal digits"));
    }
    let run = match (params.id("task_id")?, params.id("lease_id")?) {
        (None, None) => None,
        (Some(task), Some(lease)) => Some(FileOfRun { task, lease, worker: caller.worker().map(str::to_owned) }),
        (Some(_), None) => return Err(Error::field("lease_id", "Required with task_id: the lease of the run")),
        (None, Some(_)) => return Err(Error::field("task_id", "Required with lease_id: the task of the run")),
    };
    let kind = match (params.get("type").map(FileKind::parse), &run) {
        (None, None) | (Some(Some(FileKind::Input)), None) => FileKind::Input,
        (None, Some(_)) => FileKind::Output,
        (Some(Some(kind @ (FileKind::Output | FileKind::GitDiff))), Some(_)) => kind,
        (_, None) => return Err(Error::field("type", "Expected 'INPUT', or task_id and lease_id for a file of a run")),
        (_, Some(_)) => return Err(Error::field("type", "Expected 'OUTPUT' | 'GIT_DIFF'")),
    };
    if run.is_some() && caller.owner().is_some() {
        return Err(NOT_OF_RUNS);
    }
    if let Some(run) = &run {
        check_run(app, caller, run).await?;
    } else if caller.scope == Scope::Worker {
        return Err(ONLY_RUNS);
    }
    if run.is_none() {
        check_quota(app, caller, headers).await?;
    }
    let wanted = Wanted { name, content_type: content_type(headers)?, sha256, kind, run };
    Ok((wanted, app.stream_limits.uploads.take(caller)?))
}

/// Refuses an upload that exceeds the quota of the key before it is read, if the request announces its size. The command checks the quota
/// again.
async fn check_quota(app: &AppState, caller: &Caller, headers: &HeaderMap) -> Result<(), Error> {
    let Some((key, most)) = caller.key.as_deref().and_then(|key| Some((key, key.quota.max_stored_bytes?))) else { return Ok(()) };
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<i64>().ok()).unwrap_or_default();
    let stored = app.store.quota_use(key).await?.1.unwrap_or_default();
    if stored.saturating_add(length.max(1)) > most {
        return Err(Rejection::QuotaOfStoredBytes { most, stored }.into());
    }
    Ok(())
}

/// Refuses the file of a run that does not hold its task before the file is read. The command checks this again.
async fn check_run(app: &AppState, caller: &Caller, run: &FileOfRun) -> Result<(), Error> {
    if ownership::tasks(app, caller, vec![run.task]).await?.is_empty() {
        return Err(Error::TASK_NOT_FOUND);
    }
    ownership::lease(app, caller, Some(run.task), run.lease).await?;
    let state = app.store.task_states(&[run.task]).await?.pop().ok_or(Error::TASK_NOT_FOUND)?;
    state.held_by(&Holder { lease: Some(run.lease), worker: run.worker.clone() })?;
    Ok(())
}

fn content_type(headers: &HeaderMap) -> Result<String, Error> {
    let Some(named) = headers.get(CONTENT_TYPE) else { return Ok("application/octet-stream".into()) };
    let named = named.to_str().map(str::trim).ok().filter(|text| (1..=MAX_CONTENT_TYPE).contains(&text.len()));
    let is_type = |text: &&str| {
        text.split(';').next().and_then(|kind| kind.split_once('/')).is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty())
    };
    named
        .filter(is_type)
        .map(str::to_owned)
        .ok_or(Error::fixed(400, "Invalid Content-Type: the type of the file is wanted, such as text/plain"))
}

pub(crate) const DELETE: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Deletes an upload.
///
/// Only an upload that no task uses can be deleted. The output and the files of a run are removed with their task.
#[utoipa::path(
    delete, path = "/api/runtime/artifacts/{id}", operation_id = "deleteArtifact", tag = "records", params(("id" = String, Path)),
    responses(
        (status = 200, description = "Deleted.", body = Removed),
        (status = 404, description = "The artifact does not exist.", body = ErrorText),
        (status = 409, description = "A task uses the artifact, or the artifact belongs to a run.", body = ErrorText),
    )
)]
pub(crate) async fn delete(State(app): State<AppState>, caller: Caller, Path(id): Path<String>) -> HandlerResult {
    let id = parse_id(&id).ok_or(NOT_FOUND)?;
    let Some(file) = app.store.file(id).await? else {
        let result = app.store.artifact(id).await?.ok_or(NOT_FOUND)?;
        let is_seen = !ownership::tasks(&app, &caller, vec![result.task_id]).await?.is_empty();
        return Err(if is_seen { Rejection::ArtifactOfTask.into() } else { NOT_FOUND });
    };
    if !ownership::file(&app, &caller, &file).await? {
        return Err(NOT_FOUND);
    }
    app.engine.writers.submit(caller.command(op::DeleteFile { file: id })).await?;
    ok(&Removed { removed: true, id: id.to_string().into() })
}
