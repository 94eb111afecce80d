//! The service mark: every replica records in the database twice a second that it serves.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_database::Service;
use bloom_engine::Engine;
use parking_lot::Mutex;

const EVERY: Duration = Duration::from_millis(500);
/// If the database's clock and this machine's differ by more than this between two runs, the database's clock has stepped.
pub(super) const STEP_MS: Ms = 2_000;
/// For this long after a step, a new leader adjusts leases by it. If its predecessor did so too, it does no harm.
const FOLLOWED_FOR_MS: Ms = 10_000;

/// A reading of the database's clock, and the local times of query and answer. The clock was read between these two.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub now: Ms,
    pub asked_ms: Ms,
    pub answered_ms: Ms,
}

impl Reading {
    /// A reading whose answer has just arrived.
    pub fn of(engine: &Engine, asked_ms: Ms, now: Ms) -> Self {
        Self { now, asked_ms, answered_ms: engine.clock.elapsed_ms() }
    }

    /// How far the clock has stepped since an earlier reading; 0 if its movement fits the elapsed time.
    pub fn step_since(&self, earlier: &Self) -> Ms {
        let moved = self.now - earlier.now;
        let (least, most) = (self.asked_ms - earlier.answered_ms, self.answered_ms - earlier.asked_ms);
        moved - moved.clamp(least.min(most), most)
    }
}

/// The steps of the database's clock that this replica has noticed; each service mark reads the clock.
#[derive(Clone, Default)]
pub(super) struct ClockSteps(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    read: Option<Reading>,
    /// The last step, and when it was noticed.
    step: Option<(Ms, Ms)>,
}

impl ClockSteps {
    fn observe(&self, reading: Reading) {
        let mut seen = self.0.lock();
        let step_ms = seen.read.replace(reading).map_or(0, |earlier| reading.step_since(&earlier));
        if step_ms.abs() > STEP_MS {
            seen.step = Some((step_ms, reading.answered_ms));
        }
    }

    /// The last step; 0 if there was none recently.
    pub fn recent(&self, elapsed_ms: Ms) -> Ms {
        let seen = self.0.lock();
        seen.step.filter(|(_, at)| elapsed_ms - at < FOLLOWED_FOR_MS).map_or(0, |(step_ms, _)| step_ms)
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

/// Writes service marks until the stop. During a gap in the marks of all replicas together, no lease could be renewed. On SQLite, each
/// mark is followed by a checkpoint, which keeps the write-ahead log short.
pub(super) async fn mark(engine: Engine, steps: ClockSteps) {
    loop {
        let outcome = match marked(&engine, &steps).await {
            Ok(_) => engine.database.checkpoint().await,
            Err(error) => Err(error),
        };
        engine.metrics.database_up(!outcome.as_ref().is_err_and(bloom_database::Error::is_unavailable));
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
    use super::Reading;

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
}
