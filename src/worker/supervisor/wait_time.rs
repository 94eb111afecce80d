//! The time that a run waits for people. It does not count towards the run's time limits.

use bloom_core::limits::ASKED_MS;

/// How much longer than [`ASKED_MS`] a run may wait, because the agent receives the last answers a little later.
const SLACK: u64 = 60_000;

/// All times are in ms on the [`boot_clock`](crate::machine::boot_clock).
pub(crate) struct Waits {
    until: u64,
    /// How long it may still wait.
    left: u64,
    looked_at: u64,
}

impl Waits {
    pub(crate) fn new(now: u64) -> Self {
        Self { until: 0, left: ASKED_MS.unsigned_abs() + SLACK, looked_at: now }
    }

    /// Sets until when the run waits at most; 0: it does not wait. Returns the result of [`Self::passed`] for the previous value, because
    /// the new one counts from now on.
    #[must_use]
    pub(crate) fn set_until(&mut self, until: u64, now: u64) -> u64 {
        let passed = self.passed(now);
        self.until = until;
        passed
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.looked_at < self.until && self.left > 0
    }

    /// How long the run has waited since the last call. Its limits move by that much.
    #[must_use]
    pub(crate) fn passed(&mut self, now: u64) -> u64 {
        let passed = now.min(self.until).saturating_sub(self.looked_at).min(self.left);
        self.left -= passed;
        self.looked_at = now;
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_waits_until_its_limit_and_a_day_in_all() {
        let mut waits = Waits::new(1_000);
        assert_eq!((waits.is_waiting(), waits.passed(2_000)), (false, 0));
        assert_eq!(waits.set_until(5_000, 2_000), 0);
        assert_eq!((waits.is_waiting(), waits.passed(3_000), waits.passed(9_000)), (true, 1_000, 2_000));
        assert_eq!((waits.is_waiting(), waits.passed(10_000)), (false, 0));
        assert_eq!((waits.set_until(11_000, 10_000), waits.set_until(0, 10_400), waits.passed(12_000)), (0, 400, 0));
        assert_eq!(waits.set_until(u64::MAX, 12_000), 0);
        let day = ASKED_MS.unsigned_abs() + SLACK - 3_400;
        assert_eq!((waits.passed(12_000 + day - 1), waits.is_waiting()), (day - 1, true));
        assert_eq!((waits.passed(u64::MAX), waits.is_waiting()), (1, false));
    }
}
