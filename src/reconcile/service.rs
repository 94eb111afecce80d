//! The service mark: twice a second, every replica records in the database that it serves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_database::Service;
use bloom_engine::Engine;
use parking_lot::Mutex;

const EVERY: Duration = Duration::from_millis(500);
/// If the database's clock and this machine's clock move apart by more than this between two readings, the database's clock has stepped.
const STEP_MS: Ms = 2_000;
/// For this long after a step, a leader adjusts leases to it, until that has succeeded; a new leader does it once more. It does no harm if
/// its predecessor has done so, too. After this time, a lease whose row another program keeps locked no longer delays the others.
const FOLLOWED_FOR_MS: Ms = 10_000;
/// The maximum number of remembered steps. If the clock steps more often in this time, only its last steps are followed.
const MOST_STEPS: usize = 16;

/// A reading of the database's clock, with the local times of the query and the answer. The clock was read between these two times.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub now: Ms,
    pub asked_ms: Ms,
    pub answered_ms: Ms,
}

impl Reading {
    /// A reading whose answer has just arrived.
    pub(crate) fn of(engine: &Engine, asked_ms: Ms, now: Ms) -> Self {
        Self { now, asked_ms, answered_ms: engine.clock.elapsed_ms() }
    }

    /// How far the clock has stepped since an earlier reading; 0 if its movement fits the elapsed time.
    pub(crate) fn step_since(&self, earlier: &Self) -> Ms {
        let moved = self.now - earlier.now;
        let (least, most) = (self.asked_ms - earlier.answered_ms, self.answered_ms - earlier.asked_ms);
        moved - moved.clamp(least.min(most), most)
    }
}

/// A step of the database's clock.
#[derive(Clone, Copy)]
pub(super) struct ClockStep {
    /// Its number among the steps that this process has noticed, counted from 1.
    pub number: u64,
    pub step_ms: Ms,
    noticed_ms: Ms,
}

/// The recent steps of the database's clock that this replica has noticed. Each service mark reads the clock.
#[derive(Clone, Default)]
pub(super) struct ClockSteps(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    read: Option<Reading>,
    noticed: u64,
    recent: VecDeque<ClockStep>,
}

impl ClockSteps {
    pub(crate) fn observe(&self, reading: Reading) {
        let mut seen = self.0.lock();
        seen.recent.retain(|step| reading.answered_ms - step.noticed_ms < FOLLOWED_FOR_MS);
        // An answer that was overtaken by a later one may be older than a step that was already noticed.
        if seen.read.is_some_and(|known| known.asked_ms > reading.asked_ms) {
            return;
        }
        let step_ms = seen.read.replace(reading).map_or(0, |earlier| reading.step_since(&earlier));
        if step_ms.abs() > STEP_MS {
            seen.noticed += 1;
            let step = ClockStep { number: seen.noticed, step_ms, noticed_ms: reading.answered_ms };
            seen.recent.push_back(step);
            if seen.recent.len() > MOST_STEPS {
                seen.recent.pop_front();
            }
        }
    }

    /// The recent steps after the step with this number, in their order.
    pub(crate) fn after(&self, number: u64) -> Vec<ClockStep> {
        self.0.lock().recent.iter().filter(|step| step.number > number).copied().collect()
    }
}

/// Writes the service mark.
pub(super) async fn marked(engine: &Engine, steps: &ClockSteps) -> bloom_database::Result<(Service, Reading)> {
    let asked_ms = engine.clock.elapsed_ms();
    let service = engine.database.mark_served().await?;
    engine.clock.observe(service.now, asked_ms);
    let reading = Reading::of(engine, asked_ms, service.now);
    steps.observe(reading);
    Ok((service, reading))
}

/// Writes service marks until the shutdown. A gap in the marks of all replicas together shows that no lease could be renewed during it. On
/// SQLite, each mark is followed by a checkpoint, which keeps the write-ahead log short.
pub(super) async fn mark(engine: Engine, steps: ClockSteps) {
    loop {
        let (is_up, outcome) = match marked(&engine, &steps).await {
            Ok(_) => {
                let outcome = engine.database.checkpoint().await;
                (!outcome.as_ref().is_err_and(bloom_database::Error::is_unavailable), outcome)
            }
            // A database that can't be written to is not up, whatever the reason: a full disk causes errors of many kinds.
            Err(error) => (error.is_conflict(), Err(error)),
        };
        engine.metrics.database_up(is_up);
        if let Err(error) = outcome {
            tracing::debug!(%error, "the service mark was not written");
        }
        tokio::select! {
            biased;
            () = engine.background.stopped() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ClockSteps, Reading};

    #[test]
    fn an_answer_that_takes_long_is_no_step_of_the_clock() {
        let first = Reading { now: 1_000_000, asked_ms: 0, answered_ms: 10 };
        for (now, asked_ms, answered_ms, step) in [
            (1_001_000, 1_000, 1_010, 0),
            // The clock was read long before the answer arrived.
            (1_001_000, 1_000, 6_000, 0),
            (1_006_000, 1_000, 6_000, 0),
            (4_601_000, 1_000, 1_010, 3_599_990),
            (-2_599_000, 1_000, 1_010, -3_599_990),
        ] {
            assert_eq!(Reading { now, asked_ms, answered_ms }.step_since(&first), step, "{now}");
        }
    }

    #[test]
    fn each_recent_step_is_noticed_once() {
        let steps = ClockSteps::default();
        let read = |now, asked_ms, answered_ms| steps.observe(Reading { now, asked_ms, answered_ms });
        let noticed = |number| steps.after(number).iter().map(|step| step.step_ms).collect::<Vec<_>>();
        read(1_000_000, 0, 0);
        read(4_601_000, 1_000, 1_000);
        assert_eq!(noticed(0), [3_600_000]);
        // This answer was overtaken: the clock was read before the step.
        read(1_000_900, 900, 1_100);
        read(4_601_200, 1_200, 1_200);
        assert_eq!(noticed(0), [3_600_000]);
        read(1_002_000, 2_000, 2_000);
        assert_eq!(noticed(0), [3_600_000, -3_600_000]);
        assert_eq!(noticed(1), [-3_600_000]);
        read(1_011_500, 11_500, 11_500);
        assert_eq!(noticed(0), [-3_600_000]);
        read(1_012_000, 12_000, 12_000);
        assert!(noticed(0).is_empty());
    }
}
