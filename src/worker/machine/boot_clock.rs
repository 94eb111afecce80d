//! The clock for leases. Like the server's clock, it continues while the machine sleeps. [`Instant`](std::time::Instant) would stand still,
//! so a machine that wakes up would continue runs whose tasks other workers have got meanwhile.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use bloom_client::now_ms;
use bloom_core::Ms;

/// Milliseconds since the machine's boot. All processes on the machine have the same clock.
pub(crate) fn now() -> u64 {
    // The clock is read through libc, so that a test can step it for all processes, as a sleep of the machine does. Every Linux has this
    // clock.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |now| millis(now.into()))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The id of the boot from which [`now`] counts.
pub(crate) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// A time that a later process can compare with its own.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Stamp {
    boot: String,
    pub at: u64,
    /// For a process after a reboot, when no run of this boot exists any more.
    wall_clock: Ms,
}

impl Stamp {
    pub(crate) fn now() -> Self {
        Self { boot: boot(), at: now(), wall_clock: now_ms() }
    }

    /// The time since this stamp. The wall clock may have been changed meanwhile, so it is used only after a reboot.
    pub(crate) fn age(&self) -> Duration {
        let by_wall_clock = || u64::try_from(now_ms().saturating_sub(self.wall_clock)).unwrap_or(u64::MAX);
        Duration::from_millis(if self.boot == boot() { now().saturating_sub(self.at) } else { by_wall_clock() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_counts_after_a_boot_only() {
        let stamp = Stamp::now();
        assert!(Stamp { wall_clock: 0, ..stamp.clone() }.age() < Duration::from_secs(60));
        assert!(Stamp { boot: "another".into(), wall_clock: 0, ..stamp }.age() > Duration::from_secs(1_000_000));
    }
}
