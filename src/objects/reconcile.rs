//! The leader's work on the object store: it moves outputs there, writes the audit trail and removes orphans. It does one after the other,
//! so that no object is removed as an orphan while its output is being moved. Other replicas only find out when they can write again.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_database::Maintenance;
use bloom_engine::Error;
use bloom_reconcile::ReconcileContext;
use bloom_store::Store;
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use super::stuck_files::Held;
use super::{Failure, Objects, audit, files, orphans, unreadable};

const EVERY_MS: Ms = 2_000;
/// The most outputs of one page, and how long one run moves outputs.
const MOVED: i64 = 20;
const MOVING: Duration = Duration::from_secs(10);
const BACKLOG: i64 = 10_000;
/// How often a server that writes nothing checks whether it could.
const PROBE_EVERY: Duration = Duration::from_secs(30);
/// How often a replica that is not the leader checks whether a write has failed.
const FOLLOWED_EVERY: Duration = Duration::from_secs(5);
/// The shortest and the longest pause between two sweeps of the bucket; usually a quarter of the grace.
const SWEEP_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

#[derive(Default)]
struct State {
    probed: Option<Instant>,
    swept: Option<Instant>,
    next_page: Option<orphans::Page>,
    held: Held,
}

/// Moves large outputs and the audit trail to the object store, and removes objects that nothing refers to. Ends with the engine.
pub async fn run(context: ReconcileContext, store: Store, objects: Objects) {
    let state = Arc::new(Mutex::new(State::default()));
    let every = |context: ReconcileContext| {
        let (store, objects, state) = (store.clone(), objects.clone(), state.clone());
        async move { once(&context, &store, &objects, &mut *state.lock().await).await }
    };
    // All of this may be aborted at any point, so a stopping server does not wait for the object store.
    tokio::select! {
        biased;
        () = context.engine.background.stopped() => {}
        () = context.every("objects", EVERY_MS, every) => {}
        () = follow(&context, &store, &objects) => {}
    }
}

/// A replica that is not the leader writes only during completions and uploads. So after a failure it checks here whether it can write
/// again.
async fn follow(context: &ReconcileContext, store: &Store, objects: &Objects) {
    let mut ticks = tokio::time::interval(FOLLOWED_EVERY);
    loop {
        ticks.tick().await;
        if context.leadership.epoch().is_some() {
            continue;
        }
        objects.metrics().objects().backlog(None);
        if objects.has_failed().await && try_to_write(context, store, objects).await.is_ok() {
            tracing::info!("the object store can be written to again");
        }
    }
}

async fn try_to_write(context: &ReconcileContext, store: &Store, objects: &Objects) -> Result<(), Failure> {
    objects.confirm_owned(&context.engine, store).await?;
    objects.probe().await
}

async fn once(context: &ReconcileContext, store: &Store, objects: &Objects, state: &mut State) -> Result<(), Error> {
    objects.metrics().objects().backlog(Some(store.output_backlog(BACKLOG).await.map_err(unreadable)?));
    let is_due = state.probed.is_none_or(|at| at.elapsed() >= PROBE_EVERY);
    if is_due || !objects.is_owned() || objects.is_paused().await {
        state.probed = Some(Instant::now());
        if let Err(failure) = try_to_write(context, store, objects).await {
            tracing::warn!(failure = failure.text, "the object store can't be written to: the database keeps the outputs until it can");
            context.progress.failed(&failure.text);
            return Ok(());
        }
    }
    if !move_outputs(context, store, objects, &mut state.held).await?
        || !files::move_all(context, store, objects, &mut state.held, MOVING).await?
        || !audit::flush(context, store, objects).await?
    {
        return Ok(());
    }
    let pause = (objects.grace() / 4).clamp(SWEEP_EVERY.0, SWEEP_EVERY.1);
    if state.next_page.is_none() && state.swept.is_some_and(|at| at.elapsed() < pause) {
        return Ok(());
    }
    state.swept = Some(Instant::now());
    if let Err(failure) = objects.confirm_owned(&context.engine, store).await {
        tracing::warn!(failure = failure.text, "no objects are removed, because the owner of the bucket is not known");
        context.progress.failed(&failure.text);
        return Ok(());
    }
    let page = state.next_page.take().unwrap_or_else(orphans::Page::first);
    state.next_page = orphans::sweep(context, store, objects, page).await?;
    Ok(())
}

/// Moves outputs to the object store. Returns whether the object store accepts writes.
async fn move_outputs(context: &ReconcileContext, store: &Store, objects: &Objects, held: &mut Held) -> Result<bool, Error> {
    let begun = Instant::now();
    let mut after = Uuid::nil();
    loop {
        let page = store.outputs_to_move(after, MOVED).await.map_err(unreadable)?;
        let Some(last) = page.last() else { return Ok(true) };
        after = *last;
        for artifact in page {
            if held.has(artifact) {
                continue;
            }
            if context.leadership.epoch().is_none() || begun.elapsed() > MOVING {
                return Ok(true);
            }
            let Some(result) = store.artifact(artifact).await.map_err(unreadable)? else { continue };
            let Some(output) = &result.output else { continue };
            match objects.write_output(result.task_id, artifact, output).await {
                Ok(object) => {
                    held.release(artifact);
                    context.engine.writers.maintain(Maintenance::MoveOutput { artifact, object }).await?;
                    context.progress.add(1);
                }
                Err(failure) => {
                    tracing::warn!(%artifact, failure = failure.text, "an output could not be moved to the object store; it will be retried");
                    context.progress.failed(&failure.text);
                    if !held.hold(artifact, objects).await {
                        return Ok(false);
                    }
                }
            }
        }
    }
}
