//! A wait for the next deadline that ends sooner if an earlier deadline arrives.

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
    /// Ends the current wait, or the next one if there is none.
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
        // While the waiter is awake, every deadline rings. The waiter's next run sees the deadline, or its next wait ends at once.
        self.set_to.store(Ms::MAX, Ordering::Release);
    }
}

/// The alarms that reconcilers wait for. A ring only makes a reconciler run sooner, because each of them also runs at a fixed interval.
#[derive(Debug, Default)]
pub struct Alarms {
    /// Rings when a lease must be checked before the waiter would wake up.
    pub lease_due: Alarm,
    /// Rings when workers have changed, because the next one may become silent at another time.
    pub worker_silent: Alarm,
    /// Rings when a parked task is due before the waiter would wake up.
    pub task_due: Alarm,
    /// Rings when a task may be pushed.
    pub push_due: Alarm,
}

impl Alarms {
    /// Wakes every waiter.
    pub fn ring_all(&self) {
        self.lease_due.ring();
        self.worker_silent.ring();
        self.task_due.ring();
        self.push_due.ring();
    }
}
