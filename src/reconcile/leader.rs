//! Which replica reconciles: the holder of a row with an epoch, on the database's clock.
//!
//! It keeps the work in one place; nothing unsafe happens when two believe that they lead: their commands carry the epoch, which is
//! checked in the commit, and [`decide`](crate::core::decide) looks at everything again anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::Engine;

const RENEW_EVERY: Duration = Duration::from_millis(300);
const TTL_MS: i64 = 1_000;
const NOBODY: i64 = -1;

/// This replica's leadership, if it has it.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<AtomicI64>);

impl Default for Leadership {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(NOBODY)))
    }
}

impl Leadership {
    pub fn epoch(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Acquire)).filter(|epoch| *epoch != NOBODY)
    }

    /// A commit was refused for want of leadership: it is over, until the next renewal says otherwise.
    pub(super) fn is_over(&self) {
        self.0.store(NOBODY, Ordering::Release);
    }
}

pub(super) async fn keep(engine: Engine, leadership: Leadership) {
    let mut renewed = Instant::now();
    // Of this process alone: a restart is a new holder.
    let holder = uuid::Uuid::now_v7().simple().to_string();
    while !engine.is_stopping() {
        match engine.store().lead(&holder, TTL_MS).await {
            Ok(Some(epoch)) => {
                renewed = Instant::now();
                change(&engine, &leadership, epoch);
            }
            Ok(None) => change(&engine, &leadership, NOBODY),
            // Not known: it counts until it has run out for certain.
            Err(error) => {
                tracing::debug!(%error, "leadership could not be renewed");
                if renewed.elapsed() > Duration::from_millis(TTL_MS.unsigned_abs()) {
                    change(&engine, &leadership, NOBODY);
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(RENEW_EVERY) => {}
            () = engine.stopped() => {}
        }
    }
    if leadership.epoch().is_some() {
        change(&engine, &leadership, NOBODY);
        // Another replica takes over at once instead of after a second.
        let _ = engine.store().resign(&holder).await;
    }
}

fn change(engine: &Engine, leadership: &Leadership, epoch: i64) {
    if leadership.0.swap(epoch, Ordering::AcqRel) == epoch {
        return;
    }
    engine.metrics().leader(epoch != NOBODY);
    if epoch == NOBODY {
        tracing::info!("another replica leads");
    } else {
        tracing::info!(epoch, "this replica leads");
        engine.alarms().ring_all();
    }
}
