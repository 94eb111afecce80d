//! Collects signs of life of workers. They are written together, about once a second, so that heartbeats need not write the worker's row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_core::ids::WorkerId;
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
/// The most names that are kept, so that a caller that invents names can't fill the memory.
const WORKERS: usize = 100_000;

pub struct LastSeen {
    /// How often signs of life are written, and how often an open claim counts as one.
    pub(super) every: Duration,
    noted: Mutex<BTreeMap<WorkerId, Ms>>,
    urgent: Notify,
    clock: Arc<Clock>,
    replica: Arc<Replica>,
    writers: Arc<Writers>,
}

impl LastSeen {
    pub(super) fn new(offline_after_ms: i64, clock: Arc<Clock>, replica: Arc<Replica>, writers: Arc<Writers>) -> Self {
        let every = Duration::from_millis(offline_after_ms.unsigned_abs() / 5).clamp(FLUSH_AT_MOST_EVERY, FLUSH_EVERY);
        Self { every, noted: Mutex::default(), urgent: Notify::new(), clock, replica, writers }
    }

    /// Records a sign of life of the worker.
    pub fn record(&self, worker: &str) {
        let now = self.clock.now();
        let is_lost = self.replica.see(worker, now);
        let mut noted = self.noted.lock();
        if let Some(last) = noted.get_mut(worker) {
            *last = now;
        } else if noted.len() < WORKERS {
            noted.insert(worker.to_owned(), now);
        }
        drop(noted);
        // A lost worker should be back at once.
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
            let mut noted: Vec<_> = std::mem::take(&mut *self.noted.lock()).into_iter().collect();
            while !noted.is_empty() {
                let rest = noted.split_off(noted.len().min(AT_ONCE));
                // A failure loses the signs of one interval; more will follow.
                let _ = self.writers.submit(op::RecordLastSeen { last_seen: noted }).await;
                noted = rest;
            }
        }
    }
}
