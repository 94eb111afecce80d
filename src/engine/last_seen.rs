//! Collects signs of life of workers. They are written together, about once a second, so that a heartbeat does not have to write the
//! worker's row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_core::ids::{InstanceId, WorkerId};
use bloom_core::op;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::background::Background;
use super::clock::Clock;
use super::replica::Replica;
use super::writers::Writers;

const FLUSH_EVERY: Duration = Duration::from_secs(1);
const FLUSH_AT_MOST_EVERY: Duration = Duration::from_millis(50);
/// Workers in one command.
const AT_ONCE: usize = 500;
/// The maximum number of names that are kept, so that a caller that invents names can't fill the memory.
const WORKERS: usize = 100_000;

/// Collects the signs of life of workers, and writes them together at short intervals.
pub struct LastSeen {
    /// How often signs of life are written, and how often an open claim counts as one.
    pub(super) every: Duration,
    pending: Mutex<BTreeMap<WorkerId, Ms>>,
    urgent: Notify,
    clock: Arc<Clock>,
    replica: Arc<Replica>,
    writers: Arc<Writers>,
}

impl LastSeen {
    pub(super) fn new(offline_after_ms: i64, clock: Arc<Clock>, replica: Arc<Replica>, writers: Arc<Writers>) -> Self {
        let every = Duration::from_millis(offline_after_ms.unsigned_abs() / 5).clamp(FLUSH_AT_MOST_EVERY, FLUSH_EVERY);
        Self { every, pending: Mutex::default(), urgent: Notify::new(), clock, replica, writers }
    }

    /// Records a sign of life of the worker, unless it comes from an agent that was replaced. The runs of a replaced agent may go on for a
    /// long time, and the name must become free when the agent that has it is gone.
    pub fn record(&self, worker: &str, instance: Option<InstanceId>) {
        if self.replica.is_of_other(worker, instance) {
            return;
        }
        let now = self.clock.now();
        let is_lost = self.replica.see(worker, now);
        let mut pending = self.pending.lock();
        if let Some(last) = pending.get_mut(worker) {
            *last = now;
        } else if pending.len() < WORKERS {
            pending.insert(worker.to_owned(), now);
        }
        drop(pending);
        // A lost worker should come back at once.
        if is_lost {
            self.urgent.notify_one();
        }
    }

    pub(super) async fn flush(self: Arc<Self>, background: Background) {
        while !background.is_stopping() {
            tokio::select! {
                biased;
                () = background.stopped() => {}
                () = self.urgent.notified() => {}
                () = tokio::time::sleep(self.every) => {}
            }
            let mut pending: Vec<_> = std::mem::take(&mut *self.pending.lock()).into_iter().collect();
            while !pending.is_empty() {
                let rest = pending.split_off(pending.len().min(AT_ONCE));
                // A failure loses the signs of life of one interval. More will follow.
                let _ = self.writers.submit(op::RecordLastSeen { last_seen: pending }).await;
                pending = rest;
            }
        }
    }
}
