//! Notifies waiting requests of changes. One background task reads the engine's changes; a request is notified only of the task that it
//! follows. A notification has no content and may be missed: requests read the database when notified, and also every few seconds.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::routes::live::watch::{RESET, publish};
use crate::routes::live::watch_buffer::{Backlog, Piece, Reader};
use bloom_core::ids::TaskId;
use bloom_engine::{Changes, Engine};
use bloom_store::Store;

#[derive(Default)]
pub(crate) struct Hub {
    followed: Mutex<HashMap<TaskId, watch::Sender<()>>>,
    /// The serialized events of the watch streams, which are the same for all.
    backlog: Backlog,
}

/// Notifies a request when the task changes, or when changes may have been missed.
pub(crate) struct Follower {
    hub: Arc<Hub>,
    task: TaskId,
    changes: watch::Receiver<()>,
}

impl Follower {
    /// Marks all changes until now as seen.
    pub(crate) fn mark_seen(&mut self) {
        self.changes.mark_unchanged();
    }

    /// Waits for a change since [`mark_seen`](Self::mark_seen).
    pub(crate) async fn changed(&mut self) {
        // This can't fail: the sender lives as long as its followers.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut followed = self.hub.followed();
        if followed.get(&self.task).is_some_and(|sender| sender.receiver_count() <= 1) {
            followed.remove(&self.task);
        }
    }
}

impl Hub {
    pub(crate) fn follow(self: &Arc<Self>, task: TaskId) -> Follower {
        let changes = self.followed().entry(task).or_default().subscribe();
        Follower { hub: self.clone(), task, changes }
    }

    pub(crate) fn watch(&self) -> Reader {
        self.backlog.reader()
    }

    pub(crate) async fn run(self: Arc<Self>, engine: Engine, store: Store, shutdown: CancellationToken) {
        let mut changes = engine.replica.subscribe();
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = shutdown.cancelled() => return,
            };
            match change {
                Ok(change) if !change.reset => self.publish(&engine, &store, &change).await,
                Ok(_) | Err(RecvError::Lagged(_)) => self.reset(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn publish(&self, engine: &Engine, store: &Store, changes: &Changes) {
        let touched = changes.tasks.iter().map(|task| task.id).chain(changes.events.iter().copied());
        {
            let followed = self.followed();
            if !followed.is_empty() {
                for task in touched.chain(changes.removed_tasks.iter().copied()) {
                    if let Some(sender) = followed.get(&task) {
                        sender.send_replace(());
                    }
                }
            }
        }
        // If the changes can't be read, or are too large to send, the clients must list the objects again.
        if self.backlog.has_readers() && publish(engine, store, changes, &self.backlog).await.is_err() {
            self.backlog.push(Piece::for_all(RESET));
        }
    }

    fn reset(&self) {
        for sender in self.followed().values() {
            sender.send_replace(());
        }
        self.backlog.push(Piece::for_all(RESET));
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<TaskId, watch::Sender<()>>> {
        self.followed.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[tokio::test]
    async fn followers_wake_and_leave_nothing_behind() {
        let hub = Arc::new(Hub::default());
        let task = Uuid::from_u128(1);
        let mut one = hub.follow(task);
        let two = hub.follow(task);
        one.mark_seen();
        hub.reset();
        one.changed().await;
        drop(one);
        assert_eq!(hub.followed().len(), 1);
        drop(two);
        assert!(hub.followed().is_empty());
    }
}
