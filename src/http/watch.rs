//! Everything that changes, as it changes.

use std::collections::HashMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::AppState;
use super::answer::Answer;
use super::show::{show_task, show_worker};
use super::stream::{KEEP_ALIVE, Seat, event_stream};
use crate::api::answers::Lease;
use crate::api::error::Failure;
use crate::core::ids::LeaseId;
use crate::engine::{Changes, Engine};
use crate::store::Store;

/// Something was missed: list again.
pub const RESET: Bytes = Bytes::from_static(b"id: 1\nevent: reset\ndata: {}\n\n");
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// A stream of changes: `task`, `lease` and `worker` with the whole object, `removed` with its kind and id, `reset` after a gap.
#[utoipa::path(
    get, path = "/api/runtime/watch", operation_id = "watch", tag = "events",
    responses((status = 200, description = "A stream without end.", body = String, content_type = "text/event-stream"))
)]
pub async fn watch(State(app): State<AppState>, headers: HeaderMap) -> Answer {
    let seat = app.seats.watch()?;
    let watching = Watching { frames: app.hub.frames(), shutdown: app.shutdown.clone(), _seat: seat };
    // Who comes back has missed what happened meanwhile.
    let missed = headers.contains_key("last-event-id").then_some(RESET);
    Ok(event_stream(stream::iter(missed).chain(stream::unfold(watching, Watching::next))))
}

struct Watching {
    frames: broadcast::Receiver<Bytes>,
    shutdown: CancellationToken,
    _seat: Seat,
}

impl Watching {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let frame = tokio::select! {
            frame = self.frames.recv() => match frame {
                Ok(frame) => frame,
                Err(RecvError::Lagged(_)) => RESET,
                Err(RecvError::Closed) => return None,
            },
            () = tokio::time::sleep(KEEP_ALIVE_EVERY) => KEEP_ALIVE,
            () = self.shutdown.cancelled() => return None,
        };
        Some((frame, self))
    }
}

#[derive(Serialize)]
struct Gone<'a> {
    kind: &'static str,
    id: &'a str,
}

/// One commit's changes, as the stream sends them.
pub async fn frames(engine: &Engine, store: &Store, changes: &Changes) -> Result<Bytes, Failure> {
    let mut out = Vec::new();
    let ids: Vec<_> = changes.tasks.iter().map(|task| task.id).collect();
    let specs = if ids.is_empty() { Vec::new() } else { engine.specs(&ids).await? };
    let specs: HashMap<_, _> = specs.iter().map(|spec| (spec.id, spec)).collect();
    let mut ended: Vec<LeaseId> = Vec::new();
    for state in &changes.tasks {
        // A task that was removed meanwhile has a change of its own.
        let Some(spec) = specs.get(&state.id) else { continue };
        frame(&mut out, "task", &show_task(engine, spec, state))?;
        match Lease::active(state) {
            Some(lease) => frame(&mut out, "lease", &lease)?,
            None => ended.extend(state.last_lease.as_ref().map(|lease| lease.id)),
        }
    }
    if !ended.is_empty() {
        for lease in &store.past_leases(&ended).await? {
            frame(&mut out, "lease", &Lease::from(lease))?;
        }
    }
    for worker in &changes.workers {
        frame(&mut out, "worker", &show_worker(engine, worker))?;
    }
    for id in &changes.removed_tasks {
        frame(&mut out, "removed", &Gone { kind: "task", id: &id.to_string() })?;
    }
    for id in &changes.removed_workers {
        frame(&mut out, "removed", &Gone { kind: "worker", id })?;
    }
    Ok(out.into())
}

/// The id is the same for all: it only makes a client say that it comes back.
fn frame(out: &mut Vec<u8>, event: &str, data: &impl Serialize) -> Result<(), Failure> {
    out.extend_from_slice(b"id: 1\nevent: ");
    out.extend_from_slice(event.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    serde_json::to_writer(&mut *out, data).map_err(|error| Failure::Internal(error.to_string()))?;
    out.extend_from_slice(b"\n\n");
    Ok(())
}
