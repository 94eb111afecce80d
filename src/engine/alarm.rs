//! A wait for the next deadline, which ends sooner if an earlier deadline arrives.

use std::sync::atomic::{AtomicI64, Ordering};

use bloom_core::Ms;
use tokio::sync::Notify;

use super::clock::Clock;

/// The alarm of one waiter.
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
    /// Ends the current wait, or the next one.
    pub fn ring(&self) {
        self.rung.notify_one();
    }

    /// Rings if the waiter would sleep past this time.
    pub fn ring_before(&self, at: Ms) {
        if at < self.set_to.load(Ordering::Acquire) {
            self.ring();
        }
    }

    /// Waits until this time or a ring.
    pub async fn wait_until(&self, clock: &Clock, at: Ms) {
        self.set_to.store(at, Ordering::Release);
        tokio::select! {
            biased;
            () = clock.wait_until(at) => {}
            () = self.rung.notified() => {}
        }
        // While the waiter is awake, every deadline rings: the waiter's next run sees it, or its next wait ends at once.
        self.set_to.store(Ms::MAX, Ordering::Release);
    }
}

/// What reconcilers wait for. A ring only makes them run sooner: each of them also runs at a fixed interval.
#[derive(Debug, Default)]
pub struct Alarms {
    /// Rings when a lease is to be checked before the waiter would wake up.
    pub lease_due: Alarm,
    /// Rings when workers have changed: the next one may become silent at another time.
    pub worker_silent: Alarm,
    /// Rings when a parked task is due before the waiter would wake up.
    pub task_due: Alarm,
    /// A task may be pushed.
    pub push_due: Alarm,
}

impl Alarms {
    /// Has every waiter run again.
    pub fn ring_all(&self) {
        self.lease_due.ring();
        self.worker_silent.ring();
        self.task_due.ring();
        self.push_due.ring();
    }
}
