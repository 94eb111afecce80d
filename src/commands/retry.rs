//! Commands that continue while a server restarts.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::server_calls::{failed, retry_after};
use super::term;
use super::when::span_text;
use crate::CommandError;
use bloom_client::Error;
use bloom_core::Ms;

/// How long a server may be unreachable, for example during a restart, before waiting fails.
const AWAY_LIMIT: Duration = Duration::from_secs(300);
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Retries while the server can't be reached for a while, for example during a restart.
pub(crate) struct Retry {
    since: Option<Instant>,
    wait: Duration,
    is_reported: bool,
    /// Whether the server was reached before. If it never was, the address may be wrong, so calls are not retried.
    was_there: bool,
}

impl Retry {
    /// `is_reported`: whether the user gets a message.
    pub(crate) fn new(is_reported: bool, was_there: bool) -> Self {
        Self { since: None, wait: FIRST_WAIT, is_reported, was_there }
    }

    /// Must be called when the server has answered.
    pub(crate) fn is_over(&mut self) {
        *self = Self::new(self.is_reported, true);
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error is permanent, or has lasted too long.
    pub(crate) async fn pause(&mut self, error: Error) -> Result<(), CommandError> {
        let is_first = self.since.is_none();
        let since = *self.since.get_or_insert_with(Instant::now);
        self.was_there |= error.was_there();
        let may_pass = error.is_passing() && self.was_there;
        if !may_pass || since.elapsed() > AWAY_LIMIT {
            return Err(failed(error));
        }
        if is_first && self.is_reported {
            term::info(&format!("{error}; trying again for up to {}", span_text(AWAY_LIMIT.as_millis() as Ms)));
        }
        let asked = retry_after(&error).unwrap_or_default().min(LONGEST_RETRY_AFTER);
        sleep(self.wait.max(asked)).await;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        Ok(())
    }
}
