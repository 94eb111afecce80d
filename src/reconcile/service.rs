//! The mark of service: every replica tells the database twice a second that it serves.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_database::Service;
use bloom_engine::Engine;
use parking_lot::Mutex;

const EVERY: Duration = Duration::from_millis(500);
/// The database's clock and this machine's may differ by so much between two runs; more is a step.
pub(super) const STEP_MS: Ms = 2_000;
/// So long after a step a new leader follows it. That its predecessor has done so as well does no harm.
const FOLLOWED_FOR_MS: Ms = 10_000;

/// What the database's clock told, between two moments here: however long the answer took, it was read in between.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub now: Ms,
    pub asked_ms: Ms,
    pub told_ms: Ms,
}

impl Reading {
    /// Of an answer that has just come.
    pub fn of(engine: &Engine, asked_ms: Ms, now: Ms) -> Self {
        Self { now, asked_ms, told_ms: engine.clock.elapsed_ms() }
    }

    /// How far the clock has moved besides what has passed since an earlier reading; 0 where both fit together.
    pub fn step_since(&self, earlier: &Self) -> Ms {
        let moved = self.now - earlier.now;
        let (least, most) = (self.asked_ms - earlier.told_ms, self.told_ms - earlier.asked_ms);
        moved - moved.clamp(least.min(most), most)
    }
}

/// What this replica has seen of the database's clock: each service mark reads it.
#[derive(Clone, Default)]
pub(super) struct ClockSteps(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    read: Option<Reading>,
    /// The last step, and when it was seen.
    step: Option<(Ms, Ms)>,
}

impl ClockSteps {
    fn note(&self, reading: Reading) {
        let mut seen = self.0.lock();
        let step_ms = seen.read.replace(reading).map_or(0, |earlier| reading.step_since(&earlier));
        if step_ms.abs() > STEP_MS {
            seen.step = Some((step_ms, reading.told_ms));
        }
    }

    /// 0: there was none of late.
    pub fn recent(&self, elapsed_ms: Ms) -> Ms {
        let seen = self.0.lock();
        seen.step.filter(|(_, at)| elapsed_ms - at < FOLLOWED_FOR_MS).map_or(0, |(step_ms, _)| step_ms)
    }
}

/// Writes the service mark.
pub(super) async fn marked(engine: &Engine, steps: &ClockSteps) -> bloom_database::Result<(Service, Reading)> {
    let asked_ms = engine.clock.elapsed_ms();
    let service = engine.database.mark_served().await?;
    engine.clock.heed(service.now, asked_ms);
    let reading = Reading::of(engine, asked_ms, service.now);
    steps.note(reading);
    Ok((service, reading))
}

/// A gap in the marks of all replicas together is a time in which no lease could be renewed. On SQLite the log of writes is kept short
/// at the same pace.
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
        let first = Reading { now: 1_000_000, asked_ms: 0, told_ms: 10 };
        for (now, asked_ms, told_ms, step) in [
            (1_001_000, 1_000, 1_010, 0),
            // Its clock was read long before it answered.
            (1_001_000, 1_000, 6_000, 0),
            (1_006_000, 1_000, 6_000, 0),
            (4_601_000, 1_000, 1_010, 3_599_990),
            (-2_599_000, 1_000, 1_010, -3_599_990),
        ] {
            assert_eq!(Reading { now, asked_ms, told_ms }.step_since(&first), step, "{now}");
        }
    }
}
