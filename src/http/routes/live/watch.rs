//! The watch stream: changes of all tasks, leases and workers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::AppState;
use crate::identity::policy::RoutePolicy;
use crate::limits::waiting_requests::Permit;
use crate::messages::answer::HandlerResult;
use crate::messages::error::Error;
use crate::messages::representations::{show_lease, show_task, show_worker};
use crate::middleware::Caller;
use crate::routes::live::sse::{KEEP_ALIVE, event_stream};
use crate::routes::live::watch_buffer::{self, Backlog, Owned, Piece, Reader};
use bloom_api::answers::{Gone, Lease};
use bloom_core::api_key::Owner;
use bloom_core::ids::LeaseId;
use bloom_core::task::{TaskSpec, TaskState};
use bloom_engine::{Changes, Engine};
use bloom_store::Store;

/// Changes were missed, so the client must list the objects again.
pub(crate) const RESET: Bytes = Bytes::from_static(b"id: 1\nevent: reset\ndata: {}\n\n");
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// Approximate limit of a piece, unless a single frame is larger: for each client that does not read, one piece is kept in memory.
const PIECE_BYTES: usize = 256 << 10;
/// Tasks whose specs are in memory at a time. A spec may have a prompt of a megabyte, and a commit may change thousands of tasks.
const TASKS_AT_ONCE: usize = 16;
const TOO_MUCH: Error = Error::Later("This change is too large for a stream");

pub(crate) const WATCH: RoutePolicy = RoutePolicy::READ.or_submit();

/// Streams all changes.
///
/// The events `task`, `lease` and `worker` have the whole object, and `removed` has the kind and the id of the object. The event `reset` is
/// sent after a gap, or instead of a change that is too large: the client must then list the objects again. A submit key gets only the
/// tasks that it created and their leases, a member key only those of its team; neither gets `removed`.
#[utoipa::path(
    get, path = "/api/runtime/watch", operation_id = "watch", tag = "events",
    responses((status = 200, description = "A stream that does not end.", body = String, content_type = "text/event-stream"))
)]
pub(crate) async fn watch(State(app): State<AppState>, caller: Caller, headers: HeaderMap) -> HandlerResult {
    let permit = app.stream_limits.watches.take(&caller)?;
    let watching = Watching { reader: app.hub.watch(), owner: caller.sees(), shutdown: app.shutdown.clone(), _permit: permit };
    // A client that reconnects has missed the changes in between.
    let missed = headers.contains_key("last-event-id").then_some(RESET);
    Ok(event_stream(stream::iter(missed).chain(stream::unfold(watching, Watching::next))))
}

struct Watching {
    reader: Reader,
    /// The owner whose tasks are sent; `None`: everything is sent.
    owner: Option<Owner>,
    shutdown: CancellationToken,
    _permit: Permit,
}

impl Watching {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        // Pieces that this stream does not send must not delay its keep-alive.
        let silence_ends = Instant::now() + KEEP_ALIVE_EVERY;
        loop {
            let piece = tokio::select! {
                piece = self.reader.next() => piece.map_or(Some(RESET), |piece| piece.for_owner(self.owner.as_ref())),
                () = sleep_until(silence_ends) => Some(KEEP_ALIVE),
                () = self.shutdown.cancelled() => return None,
            };
            if let Some(piece) = piece {
                return Some((piece, self));
            }
        }
    }
}

/// Adds one commit's changes to the backlog, as frames of the stream.
///
/// # Errors
/// The rows could not be read, or the change is larger than the backlog: the clients must list the objects again.
pub(crate) async fn publish(engine: &Engine, store: &Store, changes: &Changes, backlog: &Backlog) -> Result<(), Error> {
    let mut frames = Frames { backlog, piece: Vec::new(), owned: Vec::new(), left: watch_buffer::MAX_BYTES };
    for tasks in changes.tasks.chunks(TASKS_AT_ONCE) {
        publish_tasks(engine, store, tasks, &mut frames).await?;
    }
    for worker in &changes.workers {
        frames.add("worker", &show_worker(engine, worker), None)?;
    }
    for id in &changes.removed_tasks {
        frames.add("removed", &Gone { kind: "task".into(), id: id.to_string().into() }, None)?;
    }
    for id in &changes.removed_workers {
        frames.add("removed", &Gone { kind: "worker".into(), id: id.into() }, None)?;
    }
    frames.send();
    Ok(())
}

async fn publish_tasks(engine: &Engine, store: &Store, tasks: &[Arc<TaskState>], frames: &mut Frames<'_>) -> Result<(), Error> {
    let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
    let specs = engine.specs.by_id(&ids).await?;
    let specs: HashMap<_, &TaskSpec> = specs.iter().map(|spec| (spec.id, &**spec)).collect();
    let mut ended: Vec<LeaseId> = Vec::new();
    for state in tasks {
        // The task was removed meanwhile, which is reported by a change of its own.
        let Some(spec) = specs.get(&state.id) else { continue };
        frames.add("task", &show_task(engine, spec, state), Some(spec))?;
        match Lease::active(state) {
            Some(lease) => frames.add("lease", &lease, Some(spec))?,
            None => ended.extend(state.last_lease.as_ref().map(|lease| lease.id)),
        }
    }
    if !ended.is_empty() {
        for lease in &store.past_leases(&ended).await? {
            frames.add("lease", &show_lease(lease), specs.get(&lease.task_id).copied())?;
        }
    }
    Ok(())
}

/// Collects one commit's frames into pieces for the backlog.
struct Frames<'a> {
    backlog: &'a Backlog,
    piece: Vec<u8>,
    /// The parts of the piece that are about tasks of submit and member keys.
    owned: Vec<Owned>,
    /// The bytes that are left for this commit.
    left: usize,
}

impl Frames<'_> {
    /// Adds a frame. `of` is the task that it is about, if it is about one.
    ///
    /// All frames have the same id, which only makes a client that reconnects send `Last-Event-ID`.
    fn add(&mut self, event: &str, data: &impl Serialize, of: Option<&TaskSpec>) -> Result<(), Error> {
        let begun = self.piece.len();
        self.piece.extend_from_slice(b"id: 1\nevent: ");
        self.piece.extend_from_slice(event.as_bytes());
        self.piece.extend_from_slice(b"\ndata: ");
        serde_json::to_writer(&mut self.piece, data).map_err(|error| Error::Internal(error.to_string()))?;
        self.piece.extend_from_slice(b"\n\n");
        let frame = self.piece.len() - begun;
        self.left = self.left.checked_sub(frame).ok_or(TOO_MUCH)?;
        if self.piece.len() > PIECE_BYTES {
            let last = self.piece.split_off(begun);
            self.send();
            self.piece = last;
        }
        let end = self.piece.len();
        self.owned.extend(of.and_then(|spec| {
            let (key, team) = (spec.owner.clone()?, spec.team.clone());
            Some(Owned { part: end - frame..end, key, team })
        }));
        if frame > PIECE_BYTES {
            self.send();
        }
        Ok(())
    }

    fn send(&mut self) {
        if !self.piece.is_empty() {
            self.backlog.push(Piece::new(std::mem::take(&mut self.piece).into(), std::mem::take(&mut self.owned)));
        }
    }
}
