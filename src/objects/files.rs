//! Moves files to the object store that arrived while it accepted no writes, or that were too large to be kept in memory.

use std::time::Duration;

use bloom_core::file::File;
use bloom_database::Maintenance;
use bloom_engine::Error;
use bloom_reconcile::ReconcileContext;
use bloom_store::{CHUNK_BYTES, Store};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;
use uuid::Uuid;

use super::client::PART;
use super::stuck_files::Held;
use super::{Failure, Objects, unreadable};

/// The most files of one page.
const MOVED: i64 = 20;

/// Moves files until the time `limit` is over. Returns whether the object store accepts writes.
pub(super) async fn move_all(
    context: &ReconcileContext,
    store: &Store,
    objects: &Objects,
    held: &mut Held,
    limit: Duration,
) -> Result<bool, Error> {
    let begun = Instant::now();
    let mut after = Uuid::nil();
    loop {
        let page = store.files_to_move(after, MOVED).await.map_err(unreadable)?;
        let Some(last) = page.last() else { return Ok(true) };
        after = *last;
        for id in page {
            if held.has(id) {
                continue;
            }
            if context.leadership.epoch().is_none() || begun.elapsed() > limit {
                return Ok(true);
            }
            let Some(file) = store.file(id).await.map_err(unreadable)?.filter(|file| file.object_url.is_none()) else { continue };
            match move_one(store, objects, &file).await {
                Ok(url) => {
                    held.release(id);
                    context.engine.writers.maintain(Maintenance::MoveFile { file: id, url }).await?;
                    context.progress.add(1);
                }
                Err(failure) => {
                    tracing::warn!(artifact = %id, failure = failure.text, "a file could not be moved to the object store; it will be retried");
                    context.progress.failed(&failure.text);
                    if !held.hold(id, objects).await {
                        return Ok(false);
                    }
                }
            }
        }
    }
}

async fn move_one(store: &Store, objects: &Objects, file: &File) -> Result<String, Failure> {
    let parts = stream::unfold(Some(0), |next| async move {
        let number = next?;
        let part = part(store, file, number).await;
        let more = part.as_ref().is_ok_and(|part| part.len() == PART);
        let is_end = part.as_ref().is_ok_and(Vec::is_empty);
        (!is_end).then(|| (part, more.then(|| number + CHUNKS_OF_PART)))
    });
    let is_small = usize::try_from(file.bytes).is_ok_and(|bytes| bytes <= PART);
    if is_small {
        objects.write_file(file.id, part(store, file, 0).await?).await
    } else {
        objects.write_parts(file.id, parts.boxed()).await
    }
}

const CHUNKS_OF_PART: i64 = (PART / CHUNK_BYTES) as i64;

/// The part of the file that begins with this chunk.
async fn part(store: &Store, file: &File, first: i64) -> Result<Vec<u8>, Failure> {
    let mut part = Vec::new();
    let chunks = (file.bytes.unsigned_abs() as usize).div_ceil(CHUNK_BYTES) as i64;
    for number in first..chunks.min(first + CHUNKS_OF_PART) {
        let chunk = store.file_chunk(file.id, number).await.map_err(|_| Failure::of_file())?;
        part.extend(chunk.ok_or_else(Failure::of_file)?);
    }
    Ok(part)
}
