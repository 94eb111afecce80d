//! Tells waiting requests what has changed. One task reads the engine's changes; a request wakes only for what it waits for.
//! A wake-up carries nothing and may be missed: whoever waits reads again, and looks again after some seconds anyway.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::watch::{RESET, frames};
use crate::core::ids::TaskId;
use crate::engine::{Changes, Engine};
use crate::store::Store;

/// Commits that a stream may lag behind before it has to list again.
const BACKLOG: usize = 256;

pub struct Hub {
    followed: Mutex<HashMap<TaskId, watch::Sender<()>>>,
    /// What the watch streams send, ready made: it is the same for all.
    frames: broadcast::Sender<Bytes>,
}

impl Default for Hub {
    fn default() -> Self {
        Self { followed: Mutex::default(), frames: broadcast::Sender::new(BACKLOG) }
    }
}

/// Wakes when the task changes, or when something might have been missed.
pub struct Follower {
    hub: Arc<Hub>,
    task: TaskId,
    changes: watch::Receiver<()>,
}

impl Follower {
    /// What changed before now has been seen.
    pub fn mark_seen(&mut self) {
        self.changes.mark_unchanged();
    }

    /// Since [`mark_seen`](Self::mark_seen).
    pub async fn changed(&mut self) {
        // The sender lives as long as its followers do.
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
    pub fn follow(self: &Arc<Self>, task: TaskId) -> Follower {
        let changes = self.followed().entry(task).or_default().subscribe();
        Follower { hub: self.clone(), task, changes }
    }

    pub fn frames(&self) -> broadcast::Receiver<Bytes> {
        self.frames.subscribe()
    }

    pub async fn run(self: Arc<Self>, engine: Engine, store: Store, shutdown: CancellationToken) {
        let mut changes = engine.subscribe();
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = shutdown.cancelled() => return,
            };
            match change {
                Ok(change) if !change.reset => self.tell(&engine, &store, &change).await,
                Ok(_) | Err(RecvError::Lagged(_)) => self.reset(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn tell(&self, engine: &Engine, store: &Store, changes: &Changes) {
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
        if self.frames.receiver_count() > 0 {
            let frames = frames(engine, store, changes).await.unwrap_or(RESET);
            if !frames.is_empty() {
                // Nobody listens any more: as well.
                let _ = self.frames.send(frames);
            }
        }
    }

    fn reset(&self) {
        for sender in self.followed().values() {
            sender.send_replace(());
        }
        let _ = self.frames.send(RESET);
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<TaskId, watch::Sender<()>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
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
