//! Outputs in the object store. They are written before a completion commits, and read for answers.

use std::time::Duration;

use bloom_core::Ms;
use bloom_core::command::{ArtifactObject, Completion};
use bloom_core::run_result::RunResult;
use bloom_objects::{Failure, Objects};
use bloom_store::LARGE_OUTPUT_BYTES;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::AppState;
use crate::messages::error::Error;

const GONE: Error = Error::fixed(
    410,
    "The object store no longer has the content of this artifact, and only a copy of the bucket brings it back: upload a file again; what a run \
     left comes with another run of its task",
);

/// The time by which a request's calls to the object store must have ended. The rest of the request's time is for the commit.
pub(crate) fn deadline(app: &AppState) -> Instant {
    const LONGEST: Duration = Duration::from_secs(10);
    Instant::now() + (app.settings.request_timeout / 3).min(LONGEST)
}

/// Writes a large output to the object store, makes the completion refer to the object, and returns the output. If that is not possible
/// now, the completion keeps the output, and the leader moves it later.
pub(crate) async fn write(app: &AppState, completion: &mut Completion, until: Instant) -> Option<String> {
    let objects = app.settings.objects.as_ref()?;
    if completion.output.as_ref().is_none_or(|output| output.len() <= LARGE_OUTPUT_BYTES) || objects.is_paused().await {
        return None;
    }
    // Without this check, a client that does not hold the lease could fill the bucket.
    let states = app.store.task_states(&[completion.task]).await.ok()?;
    states.first()?.held_by(&completion.holder).ok()?;
    let output = completion.output.as_ref()?;
    let begun = app.engine.clock.now();
    let artifact_id = new_artifact(begun);
    let written = async {
        objects.ensure_owned(&app.engine, &app.store).await?;
        objects.write_output(completion.task, artifact_id, output).await
    };
    match timeout_at(until, written).await {
        Ok(Ok(stored)) => {
            // The commit never takes as long as the second half of the grace period.
            completion.object = Some(ArtifactObject { artifact_id, stored, until: begun.saturating_add(objects.grace_ms() / 2) });
            completion.output.take()
        }
        Ok(Err(failure)) => {
            tracing::warn!(task = %completion.task, failure = failure.text, "an output could not be written to the object store: the database keeps it");
            None
        }
        Err(_) => {
            tracing::warn!(task = %completion.task, "the object store was too slow for an output: the database keeps it");
            objects.was_late().await;
            None
        }
    }
}

/// A new id that contains this time of the database, like the ids that commits make. The age of the object is taken from it.
pub(crate) fn new_artifact(at: Ms) -> Uuid {
    let mut random = [0; 10];
    random.copy_from_slice(&Uuid::now_v7().as_bytes()[6..]);
    uuid::Builder::from_unix_timestamp_millis(u64::try_from(at).unwrap_or_default(), &random).into_uuid()
}

/// The result with its output, which is read from the object store if it is there.
///
/// # Errors
/// The object store can't deliver it.
pub(crate) async fn whole(app: &AppState, mut result: RunResult) -> Result<RunResult, Error> {
    if let Some(object) = &result.object {
        let objects = app.settings.objects.as_ref().ok_or_else(|| missing(result.artifact_id, &object.url))?;
        result.output = Some(readable(objects, result.artifact_id, objects.text(object).await).await?);
    }
    Ok(result)
}

/// Like [`whole`], for lists. An artifact that can't be read, or not in time, has a `url` but no content.
pub(crate) async fn whole_or_not(app: &AppState, results: Vec<RunResult>) -> Vec<RunResult> {
    let mut shown = Vec::with_capacity(results.len());
    let (until, mut is_away) = (deadline(app), false);
    for result in results {
        if result.object.is_none() || is_away {
            shown.push(result);
            continue;
        }
        let without = result.clone();
        let read = timeout_at(until, whole(app, result)).await;
        // A missing object says nothing about the others.
        is_away = !matches!(&read, Ok(read) if read.as_ref().err().is_none_or(|error| error.status() == GONE.status()));
        shown.push(read.ok().and_then(Result::ok).unwrap_or(without));
    }
    shown
}

pub(crate) fn missing(artifact: Uuid, url: &str) -> Error {
    tracing::error!(%artifact, url, "an artifact is in an object store, but the server has none: set MINIO_ENDPOINT or AWS_S3_BUCKET");
    Error::Text { status: 503, text: "The artifact is in an object store that this server is not set up for".into() }
}

/// Returns what was read of an artifact.
///
/// # Errors
/// The object store has not delivered it. The error says whether it may do so later.
pub(crate) async fn readable<T>(objects: &Objects, artifact: Uuid, read: Result<T, Failure>) -> Result<T, Error> {
    let failure = match read {
        Ok(read) => return Ok(read),
        Err(failure) => failure,
    };
    tracing::warn!(%artifact, failure = failure.text, "an artifact could not be read from the object store");
    if objects.is_gone(&failure).await {
        return Err(GONE);
    }
    Err(Error::Text { status: 503, text: "The artifact is in the object store, which can't deliver it now: try again".into() })
}
