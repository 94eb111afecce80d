//! Leader election. The leader is the holder of a database row with an epoch, which expires by the database's clock.
//!
//! Leadership keeps the reconcilers on one replica. If two replicas both believe that they lead, they do no harm: their commands carry the
//! epoch, which is checked in the commit, and [`decide`](bloom_core::decide) checks everything else again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bloom_engine::Engine;
use tokio::sync::Notify;
use tokio::time::Instant;

const RENEW_EVERY: Duration = Duration::from_millis(300);
const TTL_MS: i64 = 1_000;

/// The epoch of this replica's leadership, if it leads.
#[derive(Clone, Debug, Default)]
pub struct Leadership(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// 0 if this replica does not lead.
    epoch: AtomicI64,
    changed: Notify,
}

impl Leadership {
    /// The epoch of this leadership, which the leader's commands carry; `None` if this replica does not lead.
    pub fn epoch(&self) -> Option<i64> {
        Some(self.0.epoch.load(Ordering::Acquire)).filter(|epoch| *epoch != 0)
    }

    /// Waits until this replica leads.
    pub async fn begins(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.epoch().is_some() {
                return;
            }
            changed.await;
        }
    }

    fn set(&self, epoch: Option<i64>) {
        self.0.epoch.store(epoch.unwrap_or(0), Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

pub(super) async fn keep(engine: Engine, leadership: Leadership) {
    let mut renewed = Instant::now();
    // Unique for each process, so a restarted process is a new holder.
    let holder = format!("{:016x}{:016x}", engine.random.draw(), engine.random.draw());
    while !engine.background.is_stopping() {
        match engine.database.lead(&holder, TTL_MS).await {
            Ok(Some(epoch)) => {
                renewed = Instant::now();
                change(&engine, &leadership, Some(epoch));
            }
            Ok(None) => change(&engine, &leadership, None),
            // The outcome is unknown, so the leadership stays until it has certainly expired.
            Err(error) => {
                tracing::debug!(%error, "leadership could not be renewed");
                if renewed.elapsed() > Duration::from_millis(TTL_MS.unsigned_abs()) {
                    change(&engine, &leadership, None);
                }
            }
        }
        tokio::select! {
            biased;
            () = engine.background.stopped() => {}
            () = tokio::time::sleep(RENEW_EVERY) => {}
        }
    }
    if leadership.epoch().is_some() {
        change(&engine, &leadership, None);
        // This lets another replica take over at once instead of after a second.
        let _ = engine.database.resign(&holder).await;
    }
}

/// Sets the leadership. Every change goes through this function, even after a refused commit, so that metrics and logs include it.
pub(super) fn change(engine: &Engine, leadership: &Leadership, epoch: Option<i64>) {
    if leadership.epoch() == epoch {
        return;
    }
    leadership.set(epoch);
    engine.metrics.leader(epoch);
    match epoch {
        Some(epoch) => tracing::info!(epoch, "this replica leads"),
        None => tracing::info!("this replica no longer leads"),
    }
}
