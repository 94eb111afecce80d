//! Word from other replicas, and to them. A wake-up carries nothing and may be lost: what counts is read from the feed of commits.

use std::sync::Arc;
use std::time::Duration;

use super::changes::Changes;
use super::{Engine, lock};
use crate::store::{self, Feed};

/// A look at the feed at least so often, whatever wake-ups come.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// At most five wake-ups a second go out: PostgreSQL serialises commits that notify.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Follows the commits of other replicas.
pub(super) async fn follow(engine: Engine) {
    let mut listener = None;
    while !engine.is_stopping() {
        if listener.is_none() {
            listener = engine.0.store.listener().await.unwrap_or(None);
        }
        tokio::select! {
            () = wake_up(&mut listener) => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = engine.0.stop.cancelled() => return,
        }
        if let Err(error) = engine.catch_up().await {
            tracing::warn!(%error, "the feed of other replicas could not be read");
        }
    }
}

async fn wake_up(listener: &mut Option<store::Listener>) {
    match listener {
        Some(open) => {
            if open.recv().await.is_err() {
                *listener = None;
            }
        }
        None => std::future::pending().await,
    }
}

/// Tells other replicas that there was a commit: the first at once, then at most five a second.
pub(super) async fn tell(engine: Engine) {
    loop {
        tokio::select! {
            () = engine.0.committed.notified() => {}
            () = engine.0.stop.cancelled() => return,
        }
        // A lost wake-up costs them a quarter of a second.
        let _ = engine.0.store.notify().await;
        tokio::select! {
            () = tokio::time::sleep(TELL_EVERY) => {}
            () = engine.0.stop.cancelled() => return,
        }
    }
}

impl Engine {
    async fn catch_up(&self) -> Result<(), store::Error> {
        let positions: Vec<_> = lock(&self.0.positions).iter().map(|(lane, n)| (*lane, *n)).collect();
        let own = lock(&self.0.own_lanes).clone();
        let Feed { entries, gap } = self.0.store.feed(&positions, &own).await?;
        if gap || entries.iter().any(|entry| entry.changes.recounted) {
            self.read_picture().await?;
            self.announce(Changes { reset: true, settings: true, ..Changes::default() });
            return Ok(());
        }
        if entries.is_empty() {
            return Ok(());
        }
        let mut changes = Changes::default();
        let (mut tasks, mut workers) = (Vec::new(), Vec::new());
        for entry in &entries {
            tasks.extend_from_slice(&entry.changes.tasks);
            workers.extend_from_slice(&entry.changes.workers);
            changes.removed_tasks.extend_from_slice(&entry.changes.removed_tasks);
            changes.removed_workers.extend_from_slice(&entry.changes.removed_workers);
            changes.events.extend_from_slice(&entry.changes.events);
            changes.settings |= entry.changes.settings;
        }
        tasks.sort_unstable();
        tasks.dedup();
        changes.tasks = self.0.store.task_states(&tasks).await?.into_iter().map(Arc::new).collect();
        if !workers.is_empty() {
            changes.workers =
                self.0.store.workers().await?.into_iter().filter(|worker| workers.contains(&worker.id)).map(Arc::new).collect();
        }
        changes.removed_workers.retain(|id| !changes.workers.iter().any(|worker| worker.id == *id));
        for entry in &entries {
            // The first takes the picture over, the others add their counts.
            let word = if std::ptr::eq(entry, &entries[0]) { &changes } else { &Changes::default() };
            self.take_over(word, (entry.lane, entry.n), &entry.counts.tasks, entry.counts.leases);
        }
        self.announce(changes);
        Ok(())
    }
}
