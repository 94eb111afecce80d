//! Finds the objects to reconcile because their tasks have changed.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::ids::TaskId;
use bloom_engine::Changes;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, interval};

use super::Readable;
use crate::Context;

/// How often all objects are reconciled, because a wake-up may be lost.
const RESYNC_EVERY: Duration = Duration::from_secs(600);
/// How many specs are read at a time.
const PAGE: usize = 256;

/// Sends the objects of changed tasks to `one`. After a gap in the changes, sends to `all`.
pub(crate) async fn follow(context: Arc<Context>, namespace: Option<String>, one: Sender<ObjectRef<Readable>>, all: Sender<()>) {
    let mut changes = context.engine.replica.subscribe();
    let mut resync = interval(RESYNC_EVERY);
    resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    resync.reset();
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            _ = resync.tick() => {
                let _ = all.try_send(());
                continue;
            }
        };
        let sent = match change {
            Ok(change) if !change.reset => send(&context, namespace.as_deref(), &change, &one).await,
            Ok(_) | Err(RecvError::Lagged(_)) => false,
            Err(RecvError::Closed) => return,
        };
        if !sent {
            // If a reconcile of all objects is already due, another one is not needed.
            let _ = all.try_send(());
        }
    }
}

/// Sends the objects of these changes. Returns whether all of them were found.
async fn send(context: &Context, namespace: Option<&str>, changes: &Changes, one: &Sender<ObjectRef<Readable>>) -> bool {
    let is_served = |of_task: &Option<String>| of_task.is_some() && (namespace.is_none() || of_task.as_deref() == namespace);
    let ids: Vec<TaskId> = changes.tasks.iter().filter(|task| is_served(&task.namespace)).map(|task| task.id).collect();
    for ids in ids.chunks(PAGE) {
        let Ok(specs) = context.engine.specs.by_id(ids).await else { return false };
        for object in specs.iter().filter_map(|spec| spec.object.as_ref()) {
            if one.send(ObjectRef::new(&object.name).within(&object.namespace)).await.is_err() {
                return false;
            }
        }
    }
    true
}
