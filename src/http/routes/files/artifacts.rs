//! Artifacts of tasks, and files: list.

use std::cmp::Reverse;

use axum::extract::State;
use uuid::Uuid;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::list_streaming;
use crate::messages::paging::{cut, page_of};
use crate::messages::representations::Query;
use crate::middleware::Caller;
use crate::routes::files::output_objects;
use bloom_api::lists::{ArtifactParams, PageParams};
use bloom_api::results::Artifact;
use bloom_api::values::parse_id;
use bloom_core::file::ArtifactKind;
use bloom_store::Listing;

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ.or_submit();

/// Lists artifacts, newest first.
///
/// Each completion stores one artifact, which has the output of the run if the run succeeded. Files are also artifacts: uploads, which
/// belong to no task, and files of runs. Lists do not have the content of files. The header `Link` leads to the next page. The content of
/// an output in the object store is null while the store can't deliver it. Without `task_id`, a submit or member key gets the files that it
/// uploaded itself.
#[utoipa::path(
    get, path = "/api/runtime/artifacts", operation_id = "listArtifacts", tag = "records", params(PageParams, ArtifactParams),
    responses((status = 200, description = "A page of artifacts.", body = Vec<Artifact>))
)]
pub(crate) async fn list(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    let page_wanted = page_of(&params)?;
    let kind = params.word("kind", ArtifactKind::ALL)?;
    let task = match params.get("task_id").map(parse_id) {
        Some(None) => return ok(&[(); 0]),
        task => task.flatten(),
    };
    let Listing { rows: mut sizes, cut: is_short } = match (task, caller.owner()) {
        // Uploads are files, so there are no answers among them.
        (None, Some(_)) if kind == Some(ArtifactKind::Answer) => return ok(&[(); 0]),
        (None, Some(key)) => app.store.upload_sizes(key, &page_wanted).await?,
        (Some(task), _) if ownership::tasks(&app, &caller, vec![task]).await?.is_empty() => return ok(&[(); 0]),
        _ => app.store.artifact_sizes(task, kind, &page_wanted).await?,
    };
    let next = cut(&mut sizes, is_short, &params, "/api/runtime/artifacts", |(id, _)| *id);
    let read = |app: AppState, ids: Vec<Uuid>| async move {
        let results = output_objects::whole_or_not(&app, app.store.artifacts(&ids).await?).await;
        let files = app.store.files(&ids).await?;
        let mut artifacts: Vec<Artifact<'_>> = results.iter().map(Artifact::from).chain(files.iter().map(Artifact::from)).collect();
        artifacts.sort_unstable_by_key(|artifact| Reverse(artifact.id));
        list_streaming::rows(artifacts)
    };
    list_streaming::list(&app, caller.client, sizes, next, read).await
}
