//! Events of runs: sent by agents, read as a list or as a stream.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::limits::waiting_requests::Permit;
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::error::Error;
use crate::messages::error_precedence::Ask;
use crate::messages::list_streaming;
use crate::messages::path_ids::TaskPath;
use crate::messages::representations::Query;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use crate::routes::live::hub::Follower;
use crate::routes::live::sse::{KEEP_ALIVE, event_stream};
use crate::routes::live::wait_for_task::POLL_EVERY;
use bloom_api::answers::{Event, Recorded};
use bloom_api::error::ErrorText;
use bloom_api::lists::EventParams;
use bloom_api::requests::NewEvents;
use bloom_api::wire::Wire;
use bloom_core::command::NewEvent;
use bloom_core::event::TaskEvent;
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::reply;
use bloom_core::task::TaskState;
use bloom_store::{PAGE_BYTES, Store, wall_clock};

/// Limit of the events in one piece of a stream.
const PIECE: i64 = 50;
/// Limit of their bytes, unless a single event is larger: for each client that does not read, one piece is kept in memory.
const PIECE_BYTES: i64 = 1 << 20;

/// How long a stream waits for the last events after the end of a task. They may never arrive, because the worker may have died, or its
/// disk may have been full.
const LATE_EVENTS_MS: i64 = 30_000;

pub(crate) const SEND: RoutePolicy = RoutePolicy::WORKER.rate(Rate::Events);

/// Records events of a run.
///
/// At most 500 events per call. Events whose `seq` was sent before under the same lease are ignored, so a call can be repeated. Only the
/// newest 10,000 events of a task are kept.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks/{id}/events", operation_id = "sendEvents", tag = "events",
    params(("id" = String, Path)), request_body = NewEvents,
    responses(
        (status = 200, description = "Recorded.", body = Recorded),
        (status = 404, description = "The task or the lease does not exist.", body = ErrorText),
        (status = 409, description = "Another lease holds the task.", body = ErrorText),
    )
)]
pub(crate) async fn send(State(app): State<AppState>, caller: Caller, path: TaskPath, body: Content) -> HandlerResult {
    let raw = body.raw()?;
    let sent = match NewEvents::read(raw) {
        Ok(sent) => sent,
        Err(wrong) => return Err(app.most_important_error(&path, Ask::Events, raw, wrong.into()).await),
    };
    ownership::lease(&app, &caller, path.known(), sent.lease_id.0).await?;
    let op = op::AppendEvents { task: path.id()?, lease: sent.lease_id.0, worker: None, events: sent.events.map(NewEvent::from) };
    let reply::Recorded { newest } = app.engine.writers.submit(caller.command(op)).await?;
    ok(&Recorded { newest })
}

pub(crate) const LIST: RoutePolicy = RoutePolicy::READ.rate(Rate::Events).or_submit();

/// Lists the events of a task, oldest first.
///
/// With `Accept: text/event-stream`, the answer is a stream that continues after the number in the header `Last-Event-ID` and sends `end`
/// when the task is finished.
#[utoipa::path(
    get, path = "/api/runtime/llm-tasks/{id}/events", operation_id = "listEvents", tag = "events",
    params(("id" = String, Path), EventParams),
    responses(
        (status = 200, description = "Events by number.", content((Vec<Event> = "application/json"), (String = "text/event-stream"))),
        (status = 404, description = "Task not found.", body = ErrorText),
    )
)]
pub(crate) async fn list(
    State(app): State<AppState>,
    caller: Caller,
    path: TaskPath,
    Query(params): Query,
    headers: HeaderMap,
) -> HandlerResult {
    let id = path.id()?;
    let store = &app.store;
    let state = store.task_states(&[id]).await?.into_iter().next().ok_or(Error::TASK_NOT_FOUND)?;
    let before_last = state.event_count - params.lenient("last", i64::MAX, 0..=i64::MAX).min(state.event_count);
    let after = params.lenient("after", 0, 0..=i64::MAX).max(before_last);
    let wants_stream =
        headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|accept| accept.contains("text/event-stream"));
    if wants_stream {
        let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok()).unwrap_or(after);
        let follower = app.hub.follow(id);
        let (store, shutdown) = (app.store.clone(), app.shutdown.clone());
        let following =
            Following { store, task: id, seen, follower, shutdown, is_over: false, _permit: app.stream_limits.events.take(&caller)? };
        return Ok(event_stream(stream::unfold(following, Following::next)));
    }
    let limit = params.limit();
    let sizes = store.event_sizes(id, after, limit, PAGE_BYTES).await?;
    let last = sizes.last().map(|(last, _)| *last).filter(|last| *last < state.event_count);
    let next = last.map(|last| format!("</api/runtime/llm-tasks/{id}/events?limit={limit}&after={last}>; rel=\"next\""));
    let read = move |app: AppState, numbers: Vec<i64>| async move {
        let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return Ok(Vec::new()) };
        let events = app.store.events_up_to(id, first - 1, *last).await?;
        list_streaming::rows(events.iter().map(show).collect::<Result<Vec<_>, _>>()?)
    };
    list_streaming::list(&app, caller.client, sizes, next, read).await
}

fn show(event: &TaskEvent) -> Result<Event<'_>, Error> {
    Event::new(event).map_err(|error| Error::Internal(format!("event {} of task {}: {error}", event.number, event.task_id)))
}

/// Whether no more events of the task are expected: it is finished, and the last event of its run has arrived or is overdue.
fn is_told(state: &TaskState) -> bool {
    let is_late = || state.finished_at.is_none_or(|at| wall_clock() - at > LATE_EVENTS_MS);
    state.status.is_final() && (state.last_event_seq.is_none_or(|last| state.event_seq >= last) || is_late())
}

struct Following {
    store: Store,
    task: TaskId,
    /// The number of the last event sent.
    seen: i64,
    follower: Follower,
    shutdown: CancellationToken,
    is_over: bool,
    _permit: Permit,
}

impl Following {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        while !self.is_over && !self.shutdown.is_cancelled() {
            self.follower.mark_seen();
            match self.poll().await {
                Ok(Some(piece)) => return Some((piece, self)),
                Ok(None) => {}
                // The client reconnects by itself, with the number of the last event that it received.
                Err(_) => return None,
            }
            tokio::select! {
                () = self.follower.changed() => {}
                () = tokio::time::sleep(POLL_EVERY) => return Some((KEEP_ALIVE, self)),
                () = self.shutdown.cancelled() => return None,
            }
        }
        None
    }

    /// The next piece, if there is something to send.
    async fn poll(&mut self) -> Result<Option<Bytes>, Error> {
        let store = &self.store;
        // The state is read first: if it is final, the events read after it are complete.
        let state = store.task_states(&[self.task]).await?.into_iter().next();
        let events = store.events(self.task, self.seen, PIECE, PIECE_BYTES).await?;
        let mut out = Vec::new();
        for event in &events {
            out.extend_from_slice(format!("id: {}\ndata: ", event.number).as_bytes());
            serde_json::to_writer(&mut out, &show(event)?).map_err(|error| Error::Internal(error.to_string()))?;
            out.extend_from_slice(b"\n\n");
            self.seen = event.number;
        }
        if state.as_ref().is_none_or(|state| is_told(state) && self.seen >= state.event_count) {
            self.is_over = true;
            let status = state.map_or("removed", |state| state.status.as_str());
            out.extend_from_slice(format!("event: end\ndata: {{\"status\":\"{status}\"}}\n\n").as_bytes());
        }
        Ok((!out.is_empty()).then(|| out.into()))
    }
}
