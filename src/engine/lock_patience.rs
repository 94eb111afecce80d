//! How long a writer waits for rows that another program has locked.

use std::time::Duration;

use bloom_database::LockWait;
use tokio::time::Instant;

/// For this long after a lock timeout, a writer waits only briefly for locks. Rows that stay locked for that long are locked by another
/// program, and all other commands of the batch wait too.
const SHORT_FOR: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct LockPatience {
    /// The time of the last lock timeout.
    lost_at: Option<Instant>,
}

impl LockPatience {
    pub(crate) fn wait(&self) -> LockWait {
        match self.lost_at {
            Some(at) if at.elapsed() < SHORT_FOR => LockWait::Short,
            _ => LockWait::Long,
        }
    }

    /// Records a lock timeout.
    pub(crate) fn lose(&mut self, writer: &str) {
        if self.wait() == LockWait::Long {
            tracing::warn!(
                writer,
                "another program keeps rows of the database locked; commands that need them are refused until it releases them"
            );
        }
        self.lost_at = Some(Instant::now());
    }
}
