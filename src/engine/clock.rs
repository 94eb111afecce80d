//! This replica's estimate of the database's time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bloom_core::Ms;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The clock continues from the last time that the database reported, using this machine's monotonic clock. The local wall clock has no
/// influence.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    offset_ms: AtomicI64,
    /// The time, if a test controls it.
    manual: Option<Arc<AtomicI64>>,
    moved: Notify,
}

impl Clock {
    pub(super) fn new(manual: Option<Arc<AtomicI64>>) -> Self {
        Self { started: Instant::now(), offset_ms: AtomicI64::new(0), manual, moved: Notify::new() }
    }

    /// The database's time, as far as this process knows it.
    pub fn now(&self) -> Ms {
        match &self.manual {
            Some(time) => time.load(Ordering::SeqCst),
            None => self.elapsed_ms() + self.offset_ms.load(Ordering::Relaxed),
        }
    }

    /// Sets the time that the database has just reported.
    pub(super) fn set(&self, database_now: Ms) {
        self.offset_ms.store(database_now - self.elapsed_ms(), Ordering::Relaxed);
    }

    /// Corrects the clock with a time that the database returned for a query sent at `asked_ms` (in [`elapsed_ms`](Self::elapsed_ms)).
    /// While there are no commands, this is the only way in which a step of the database's clock is noticed.
    pub fn observe(&self, database_now: Ms, asked_ms: Ms) {
        let latest = database_now + (self.elapsed_ms() - asked_ms).max(0);
        self.set(self.now().clamp(database_now, latest));
    }

    /// The time since the start by the local monotonic clock. It is independent of the database's clock.
    pub fn elapsed_ms(&self) -> Ms {
        if let Some(time) = &self.manual {
            return time.load(Ordering::SeqCst);
        }
        Ms::try_from(self.started.elapsed().as_millis()).unwrap_or(Ms::MAX)
    }

    /// Wakes all waiters after a test has set the manual clock.
    pub fn notify_moved(&self) {
        self.moved.notify_waiters();
    }

    /// Waits until this time; with a manual clock, until [`notify_moved`](Self::notify_moved) is called.
    pub(super) async fn wait_until(&self, at: Ms) {
        // Created before the clock is read, so that no move of the clock is missed.
        let moved = self.moved.notified();
        let wait = at.saturating_sub(self.now());
        if wait <= 0 {
            return;
        }
        match self.manual {
            Some(_) => moved.await,
            None => tokio::time::sleep(Duration::from_millis(wait.unsigned_abs())).await,
        }
    }
}
