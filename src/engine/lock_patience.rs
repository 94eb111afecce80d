//! How long a writer waits for rows that another program has locked.

use std::time::Duration;

use bloom_database::LockWait;
use tokio::time::Instant;

/// So long after it waited for a lock in vain, a writer does not wait long for another one: whoever keeps rows locked is no replica, and
/// the commands of everybody else stand behind those that need the rows.
const SHORT_FOR: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct LockPatience {
    /// When a lock was last waited for in vain.
    lost_at: Option<Instant>,
}

impl LockPatience {
    pub fn wait(&self) -> LockWait {
        match self.lost_at {
            Some(at) if at.elapsed() < SHORT_FOR => LockWait::Short,
            _ => LockWait::Long,
        }
    }

    /// A lock was waited for in vain.
    pub fn lose(&mut self, writer: &str) {
        if self.wait() == LockWait::Long {
            tracing::warn!(
                writer,
                "another program keeps rows of the database locked; commands that need them are refused until it lets them go"
            );
        }
        self.lost_at = Some(Instant::now());
    }
}
