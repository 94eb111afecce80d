//! How long a pool waits after a failure.

use std::time::{Duration, Instant};

/// The wait after the second failure; the first one causes none. Each further failure doubles the wait.
const FIRST_WAIT: Duration = Duration::from_secs(5);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// How long to wait before creating the next pod after pods have ended or could not be created.
#[derive(Default)]
pub(crate) struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    pub(crate) fn fail(&mut self, now: Instant) {
        let wait = self
            .failures
            .checked_sub(1)
            .map_or(Duration::ZERO, |doublings| FIRST_WAIT.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_WAIT));
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + wait);
    }

    pub(crate) fn may_try(&self, now: Instant) -> bool {
        self.left(now).is_none()
    }

    /// The time until the next try, unless it is over.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow() {
        let (now, mut backoff) = (Instant::now(), Backoff::default());
        assert!(backoff.may_try(now));
        let waits: Vec<u64> = (0..9)
            .map(|_| {
                backoff.fail(now);
                backoff.left(now).map_or(0, |left| left.as_secs())
            })
            .collect();
        assert_eq!(waits, [0, 5, 10, 20, 40, 80, 160, 300, 300]);
    }
}
