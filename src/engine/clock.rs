//! The database's time, as well as it is known here.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bloom_core::Ms;
use tokio::time::Instant;

/// It goes on from the last time that the database told, by this machine's monotonic clock: what the wall clock does here is no matter.
#[derive(Debug)]
pub(super) struct Clock {
    started: Instant,
    offset_ms: AtomicI64,
    /// Tests set the time; nobody else does.
    manual: Option<Arc<AtomicI64>>,
}

impl Clock {
    pub fn new(manual: Option<Arc<AtomicI64>>) -> Self {
        Self { started: Instant::now(), offset_ms: AtomicI64::new(0), manual }
    }

    pub fn now(&self) -> Ms {
        match &self.manual {
            Some(time) => time.load(Ordering::SeqCst),
            None => self.elapsed_ms() + self.offset_ms.load(Ordering::Relaxed),
        }
    }

    /// The database has just told its time.
    pub fn set(&self, database_now: Ms) {
        self.offset_ms.store(database_now - self.elapsed_ms(), Ordering::Relaxed);
    }

    pub fn is_manual(&self) -> bool {
        self.manual.is_some()
    }

    /// What has passed here since the start, whatever the database's clock says.
    pub fn elapsed_ms(&self) -> Ms {
        if let Some(time) = &self.manual {
            return time.load(Ordering::SeqCst);
        }
        Ms::try_from(self.started.elapsed().as_millis()).unwrap_or(Ms::MAX)
    }
}
