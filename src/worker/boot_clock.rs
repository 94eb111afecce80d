//! The clock for leases: it goes on while the machine sleeps, as the clock of the server does. [`Instant`](std::time::Instant) stands still
//! then, so a machine that wakes up would go on with runs that other workers have got meanwhile.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine's boot. All processes of the machine have the same clock.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000
}

pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
