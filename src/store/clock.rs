//! The database's clock. PostgreSQL's clock is read in its statements; for SQLite, this process provides the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bloom_core::Ms;
use rustix::time::{ClockId, clock_gettime};

/// Where a store gets the time from.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// PostgreSQL's clock, or the machine's with SQLite.
    #[default]
    Database,
    /// A manual clock, for tests.
    Manual(Arc<AtomicI64>),
}

/// If the wall clock differs from the steady clock by more than this, it was set.
const STEP_MS: i64 = 2_000;

type Read = Box<dyn Fn() -> Ms + Send + Sync>;

/// The time since the machine started, plus the offset to the wall clock. So time advances evenly, even while the machine sleeps and when
/// the wall clock is set. [`follow`](Self::follow) adopts such a change at one known moment.
pub(crate) struct SteadyClock {
    wall: Read,
    since_start: Read,
    offset: AtomicI64,
}

impl SteadyClock {
    pub(crate) fn of_machine() -> Self {
        Self::new(Box::new(wall_clock), Box::new(since_start))
    }

    pub(crate) fn new(wall: Read, since_start: Read) -> Self {
        let offset = AtomicI64::new(wall() - since_start());
        Self { wall, since_start, offset }
    }

    pub(crate) fn now(&self) -> Ms {
        self.offset.load(Ordering::SeqCst).saturating_add((self.since_start)())
    }

    /// Adopts the wall clock's time if that clock was set. Returns the step in ms, which is positive for a step forward.
    pub(crate) fn follow(&self) -> Option<i64> {
        let step = (self.wall)() - self.now();
        if step.abs() <= STEP_MS {
            return None;
        }
        self.offset.fetch_add(step, Ordering::SeqCst);
        Some(step)
    }
}

/// The wall clock of the server's machine.
pub fn wall_clock() -> Ms {
    jiff::Timestamp::now().as_millisecond()
}

fn since_start() -> Ms {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.saturating_mul(1000).saturating_add(time.tv_nsec / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks() -> (SteadyClock, Arc<AtomicI64>, Arc<AtomicI64>) {
        let (wall, since_start) = (Arc::new(AtomicI64::new(1_800_000_000_000)), Arc::new(AtomicI64::new(50_000)));
        let read = |time: &Arc<AtomicI64>| -> Read {
            let time = time.clone();
            Box::new(move || time.load(Ordering::SeqCst))
        };
        (SteadyClock::new(read(&wall), read(&since_start)), wall, since_start)
    }

    #[test]
    fn time_goes_on_though_the_wall_clock_is_set() {
        let (clock, wall, since_start) = clocks();
        assert_eq!(clock.now(), 1_800_000_000_000);
        wall.fetch_sub(3_600_000, Ordering::SeqCst);
        since_start.fetch_add(700, Ordering::SeqCst);
        assert_eq!(clock.now(), 1_800_000_000_700);
    }

    #[test]
    fn a_step_is_followed_either_way_and_once() {
        for step in [-3_600_000, 3_600_000, 2_001, -2_001] {
            let (clock, wall, _) = clocks();
            wall.fetch_add(step, Ordering::SeqCst);
            assert_eq!(clock.follow(), Some(step));
            assert_eq!(clock.now(), 1_800_000_000_000 + step);
            assert_eq!(clock.follow(), None);
        }
    }

    #[test]
    fn small_corrections_are_not_followed() {
        let (clock, wall, _) = clocks();
        wall.fetch_add(2_000, Ordering::SeqCst);
        assert_eq!(clock.follow(), None);
        assert_eq!(clock.now(), 1_800_000_000_000);
    }

    #[test]
    fn the_machine_has_both_clocks() {
        let clock = SteadyClock::of_machine();
        assert!((clock.now() - wall_clock()).abs() < STEP_MS && clock.follow().is_none());
    }
}
