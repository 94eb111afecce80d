//! Signs of life of workers, gathered: they are written once a second, so that heartbeats need not touch the worker's row.

use std::collections::BTreeMap;
use std::time::Duration;

use bloom_core::Ms;
use bloom_core::ids::WorkerId;
use bloom_core::op;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Engine;

const FLUSH_EVERY: Duration = Duration::from_secs(1);
const FLUSH_AT_MOST_EVERY: Duration = Duration::from_millis(50);
/// Workers in one command.
const AT_ONCE: usize = 500;
/// Names held at most; a caller that invents names can't fill the memory.
const WORKERS: usize = 100_000;

pub(super) struct LastSeen {
    /// How often they are written, and how often an open claim counts as one.
    pub every: Duration,
    noted: Mutex<BTreeMap<WorkerId, Ms>>,
    urgent: Notify,
}

impl LastSeen {
    pub fn new(offline_after_ms: i64) -> Self {
        let every = Duration::from_millis(offline_after_ms.unsigned_abs() / 5).clamp(FLUSH_AT_MOST_EVERY, FLUSH_EVERY);
        Self { every, noted: Mutex::default(), urgent: Notify::new() }
    }

    /// `urgent`: the worker counts as lost, so the word is not to wait.
    pub fn note(&self, worker: &str, at: Ms, urgent: bool) {
        let mut noted = self.noted.lock();
        if let Some(last) = noted.get_mut(worker) {
            *last = at;
        } else if noted.len() < WORKERS {
            noted.insert(worker.to_owned(), at);
        }
        drop(noted);
        if urgent {
            self.urgent.notify_one();
        }
    }
}

pub(super) async fn flush(engine: Engine) {
    while !engine.is_stopping() {
        tokio::select! {
            biased;
            () = engine.0.stop.cancelled() => {}
            () = engine.0.last_seen.urgent.notified() => {}
            () = tokio::time::sleep(engine.0.last_seen.every) => {}
        }
        let mut noted: Vec<_> = std::mem::take(&mut *engine.0.last_seen.noted.lock()).into_iter().collect();
        while !noted.is_empty() {
            let rest = noted.split_off(noted.len().min(AT_ONCE));
            // A failure loses a second's signs; the next ones come.
            let _ = engine.submit(op::RecordLastSeen { last_seen: noted }).await;
            noted = rest;
        }
    }
}
