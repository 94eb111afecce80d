//! A wait for the next deadline that an earlier one can cut short.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bloom_core::Ms;
use tokio::sync::Notify;

use super::Engine;

/// One waiter's alarm clock.
#[derive(Debug)]
pub struct Alarm {
    set_to: AtomicI64,
    rung: Notify,
}

impl Default for Alarm {
    fn default() -> Self {
        Self { set_to: AtomicI64::new(Ms::MAX), rung: Notify::new() }
    }
}

impl Alarm {
    pub fn ring(&self) {
        self.rung.notify_one();
    }

    /// Rings if the waiter would sleep past this time.
    pub fn ring_before(&self, at: Ms) {
        if at < self.set_to.load(Ordering::Acquire) {
            self.ring();
        }
    }

    /// Waits for the time, a ring, or the engine's stop.
    pub async fn wait_until(&self, engine: &Engine, at: Ms) {
        self.set_to.store(at, Ordering::Release);
        // Made before the look at the clock, so that no move of it is missed.
        let moved = engine.0.alarms.all.notified();
        let wait = at.saturating_sub(engine.now());
        if wait > 0 {
            // With a clock set by hand only a ring of all tells that it moved.
            let by_hand = engine.0.clock.is_manual();
            tokio::select! {
                biased;
                () = engine.0.stop.cancelled() => {}
                () = self.rung.notified() => {}
                () = moved, if by_hand => {}
                () = tokio::time::sleep(Duration::from_millis(wait.unsigned_abs())), if !by_hand => {}
            }
        }
        // Awake: whatever comes now is seen by the look that follows, or rings for the next wait.
        self.set_to.store(Ms::MAX, Ordering::Release);
    }
}

/// What reconcilers wait for. A ring only hastens: each looks at the database every second or two anyway.
#[derive(Debug, Default)]
pub struct Alarms {
    pub lease_due: Alarm,
    pub worker_silent: Alarm,
    pub task_due: Alarm,
    /// A task may be pushed.
    pub push_due: Alarm,
    /// For those that only go by the clock.
    all: Notify,
}

impl Alarms {
    pub fn ring_all(&self) {
        self.lease_due.ring();
        self.worker_silent.ring();
        self.task_due.ring();
        self.push_due.ring();
        self.all.notify_waiters();
    }
}
