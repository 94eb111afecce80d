//! The database's time, as well as it is known here.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bloom_core::Ms;
use tokio::sync::Notify;
use tokio::time::Instant;

/// It goes on from the last time that the database told, by this machine's monotonic clock: what the wall clock does here is no matter.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    offset_ms: AtomicI64,
    /// Tests set the time; nobody else does.
    manual: Option<Arc<AtomicI64>>,
    moved: Notify,
}

impl Clock {
    pub(super) fn new(manual: Option<Arc<AtomicI64>>) -> Self {
        Self { started: Instant::now(), offset_ms: AtomicI64::new(0), manual, moved: Notify::new() }
    }

    pub fn now(&self) -> Ms {
        match &self.manual {
            Some(time) => time.load(Ordering::SeqCst),
            None => self.elapsed_ms() + self.offset_ms.load(Ordering::Relaxed),
        }
    }

    /// The database has just told its time.
    pub(super) fn set(&self, database_now: Ms) {
        self.offset_ms.store(database_now - self.elapsed_ms(), Ordering::Relaxed);
    }

    /// The database told this time in answer to what was asked then, by [`elapsed_ms`](Self::elapsed_ms). Where no command comes, nothing
    /// else tells that its clock has stepped.
    pub fn heed(&self, database_now: Ms, asked_ms: Ms) {
        let latest = database_now + (self.elapsed_ms() - asked_ms).max(0);
        self.set(self.now().clamp(database_now, latest));
    }

    /// What has passed here since the start, whatever the database's clock says.
    pub fn elapsed_ms(&self) -> Ms {
        if let Some(time) = &self.manual {
            return time.load(Ordering::SeqCst);
        }
        Ms::try_from(self.started.elapsed().as_millis()).unwrap_or(Ms::MAX)
    }

    /// Wakes all who wait for a time, after a test has set the manual clock.
    pub fn tell_moved(&self) {
        self.moved.notify_waiters();
    }

    /// Waits for this time; with a manual clock, until somebody tells that it was moved.
    pub(super) async fn wait_until(&self, at: Ms) {
        // Made before the look at the clock, so that no move of it is missed.
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
