//! The content of a file while it arrives. It is written to the database in chunks, or to the object store if it is small enough to be kept
//! in memory until it is complete. Nothing is left of a file that does not arrive completely.

use std::time::Duration;

use axum::body::{Body, Bytes};
use bloom_core::Ms;
use bloom_core::file::{FileId, FileKind};
use bloom_core::op::{self, FileOfRun};
use bloom_core::reply::AddedFile;
use bloom_database::{Chunk, Maintenance};
use bloom_objects::{CALL_LIMIT, MAX_WHOLE, Objects};
use bloom_store::{CHUNK_BYTES, LARGE_OUTPUT_BYTES};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::AppState;
use crate::limits::body_memory::Share;
use crate::limits::waiting_requests::Permit;
use crate::messages::error::Error;
use crate::middleware::Caller;
use crate::routes::files::output_objects::new_artifact;

/// An upload is aborted if nothing of it arrives for this time.
const IDLE: Duration = Duration::from_secs(30);
/// How long a file may take to arrive.
const LONGEST: Duration = Duration::from_secs(3600);
const LONGEST_MS: Ms = 3_600_000;
/// The chunks of an upload whose server died are removed this long after its beginning. No commit can add the file by then.
const ABANDONED_MS: Ms = 2 * LONGEST_MS;
const IDLE_TOO_LONG: Error = Error::fixed(408, "Nothing of the file arrived for 30 seconds");
const TOO_LONG: Error = Error::fixed(408, "The file did not arrive within an hour");
const STOPPING: Error = Error::Later("The server is stopping, and the file has not arrived");

/// The file that is to arrive.
pub(crate) struct Wanted {
    pub name: String,
    pub content_type: String,
    /// The digest of the content according to the client.
    pub sha256: Option<String>,
    pub kind: FileKind,
    pub run: Option<FileOfRun>,
}

/// Reads the file and adds it. Also returns the rest of the body.
///
/// # Errors
/// Only a bug. Any other failure is in the first part of the result.
pub(crate) async fn receive(
    app: &AppState,
    caller: &Caller,
    wanted: Wanted,
    mut body: Body,
    permit: Permit,
) -> Result<(Result<AddedFile, Error>, Body), Error> {
    let gone = CancellationToken::new();
    let _guard = gone.clone().drop_guard();
    let (app, caller) = (app.clone(), caller.clone());
    // In a background task, which removes the stored chunks even if the client disconnects.
    let task = tokio::spawn(async move {
        let _permit = permit;
        let mut arrival = Arrival::new(&app, &caller);
        let read = tokio::select! {
            read = timeout(LONGEST, arrival.read(&mut body)) => read.unwrap_or(Err(TOO_LONG)),
            () = gone.cancelled() => Err(STOPPING),
            () = app.shutdown.cancelled() => Err(STOPPING),
        };
        // This part is not cancelled: if the chunks were removed while the file is being added, the file would have no content.
        let outcome = match read {
            Ok(()) => arrival.finish(wanted).await,
            Err(error) => Err(error),
        };
        arrival.forget().await;
        (outcome, body)
    });
    task.await.map_err(|error| Error::Internal(error.to_string()))
}

struct Arrival<'a> {
    app: &'a AppState,
    caller: &'a Caller,
    hash: Sha256,
    bytes: usize,
    /// What has arrived and is not stored yet.
    buffer: Vec<u8>,
    share: Share,
    /// The object store for the file, if the file is small enough.
    objects: Option<Objects>,
    stored: Option<Stored>,
}

/// The chunks that the database has.
struct Stored {
    file: FileId,
    begun: Ms,
    chunks: i64,
}

impl<'a> Arrival<'a> {
    fn new(app: &'a AppState, caller: &'a Caller) -> Self {
        Self {
            app,
            caller,
            hash: Sha256::new(),
            bytes: 0,
            buffer: Vec::new(),
            share: Share::default(),
            objects: app.settings.objects.clone(),
            stored: None,
        }
    }

    async fn read(&mut self, body: &mut Body) -> Result<(), Error> {
        let most = self.app.settings.max_artifact_bytes;
        if body.size_hint().exact().is_some_and(|bytes| bytes > most as u64) {
            return Err(too_large(most));
        }
        if let Some(objects) = &self.objects
            && objects.is_paused().await
        {
            self.objects = None;
        }
        while let Some(frame) = timeout(IDLE, body.frame()).await.map_err(|_| IDLE_TOO_LONG)? {
            let frame = frame.map_err(|_| Error::fixed(400, "The file did not arrive whole"))?;
            let Ok(data) = frame.into_data() else { continue };
            self.take(&data, most).await?;
        }
        Ok(())
    }

    async fn take(&mut self, data: &Bytes, most: usize) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > most {
            return Err(too_large(most));
        }
        self.hash.update(data);
        let held = self.buffer.len() + data.len();
        self.app.limits.held_of_requests.fit(&mut self.share, held, self.caller.client)?;
        self.buffer.extend_from_slice(data);
        if self.objects.is_some() && self.buffer.len() <= MAX_WHOLE && self.stored.is_none() {
            return Ok(());
        }
        self.store(CHUNK_BYTES).await
    }

    /// Stores chunks of what has arrived, as long as at least this many bytes are left.
    async fn store(&mut self, least: usize) -> Result<(), Error> {
        while !self.buffer.is_empty() && self.buffer.len() >= least {
            let rest = self.buffer.split_off(self.buffer.len().min(CHUNK_BYTES));
            let content = Chunk(std::mem::replace(&mut self.buffer, rest));
            let now = self.app.engine.clock.now();
            let stored = self.stored.get_or_insert_with(|| Stored { file: new_artifact(now), begun: now, chunks: 0 });
            let (file, number, due_at) = (stored.file, stored.chunks, stored.begun + ABANDONED_MS);
            stored.chunks += 1;
            self.app.engine.writers.maintain(Maintenance::StoreChunk { file, number, content, due_at }).await?;
        }
        Ok(())
    }

    async fn finish(&mut self, wanted: Wanted) -> Result<AddedFile, Error> {
        let sha256 = hex::encode(std::mem::take(&mut self.hash).finalize());
        if wanted.sha256.as_ref().is_some_and(|named| *named != sha256) {
            return Err(Error::field("sha256", format!("The file that arrived has another digest, {sha256}: send it again")));
        }
        let object = self.write_object().await;
        if object.is_none() {
            self.store(0).await?;
        }
        let now = self.app.engine.clock.now();
        let (id, until, object_url) = match (object, &self.stored) {
            (Some((id, until, url)), _) => (id, until, Some(url)),
            (None, Some(stored)) => (stored.file, stored.begun + LONGEST_MS + LONGEST_MS / 2, None),
            // An empty file has no chunks.
            (None, None) => (new_artifact(now), now + LONGEST_MS, None),
        };
        let Wanted { name, content_type, kind, run, .. } = wanted;
        let key = self.caller.owner().filter(|_| run.is_none());
        let owner = key.map(|key| key.name.clone()).unwrap_or_default();
        let team = key.and_then(|key| key.team.clone()).unwrap_or_default();
        let bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        let add = op::AddFile { id, owner, team, run, name, content_type, bytes, sha256, kind, object_url, until };
        let added = self.app.engine.writers.submit(self.caller.command(add)).await;
        // After any other error it is unknown whether the file was added. If it was not, its chunks are removed later.
        let is_refused = matches!(added, Err(bloom_engine::Error::Rejected(_)) | Ok(AddedFile { is_new: false, .. }));
        if !is_refused {
            self.stored = None;
        }
        Ok(added?)
    }

    /// Writes a file that is completely in memory to the object store, if it belongs there. Returns its id, the time by which it must be
    /// added, and its URL. If that is not possible now, the leader moves the file later.
    async fn write_object(&mut self) -> Option<(FileId, Ms, String)> {
        let objects = self.objects.clone().filter(|_| self.stored.is_none() && self.buffer.len() > LARGE_OUTPUT_BYTES)?;
        let begun = self.app.engine.clock.now();
        let id = new_artifact(begun);
        let content = self.buffer.clone();
        let written = async {
            objects.ensure_owned(&self.app.engine, &self.app.store).await?;
            objects.write_file(id, content).await
        };
        match timeout(CALL_LIMIT, written).await {
            // The commit never takes as long as the second half of the grace period.
            Ok(Ok(url)) => Some((id, begun.saturating_add(objects.grace_ms() / 2), url)),
            Ok(Err(failure)) => {
                tracing::warn!(failure = failure.text, "a file could not be written to the object store: the database keeps it");
                None
            }
            Err(_) => {
                tracing::warn!("the object store was too slow for a file: the database keeps it");
                objects.was_late().await;
                None
            }
        }
    }

    /// Removes the stored chunks. If that is not possible now, they are removed later.
    async fn forget(&mut self) {
        if let Some(Stored { file, .. }) = self.stored.take()
            && let Err(error) = self.app.engine.writers.maintain(Maintenance::DropChunks { file }).await
        {
            tracing::debug!(?error, "the chunks of a file that did not arrive are removed later");
        }
    }
}

fn too_large(most: usize) -> Error {
    Error::Text {
        status: 413,
        text: format!("The file is too large: at most {most} bytes are taken (the server's limit: MAX_ARTIFACT_BYTES)").into(),
    }
}
