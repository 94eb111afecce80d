//! The last runs of a reconciler.

use super::Ms;
use super::words::words;

words! {
    /// Whether a reconciler does its work.
    ReconcilerState {
        /// Its last run ended without an error, or none has ended yet.
        Ok = "ok",
        /// Its last run ended with an error. It tries again by itself.
        Failing = "failing",
        /// It should have run again, but has not: a run takes very long, or no replica runs it.
        Late = "late",
    }
}

/// How long after its scheduled time a run that has not begun is considered late. It is longer than a change of leader takes.
const LATE_MS: Ms = 60_000;

/// The last runs of a reconciler, as recorded by the replica that runs it, since that replica began to run it. Times are milliseconds since
/// the epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReconcilerRun {
    /// The name of the reconciler, as in the metrics.
    pub name: String,
    /// The longest pause between two runs; `None` if it runs only when something has changed.
    pub every_ms: Option<Ms>,
    /// When the last run began. Before the first run, it is when the replica began to run the reconciler.
    pub started_at: Ms,
    /// When the oldest unfinished run began; `None` if none is in progress.
    pub running_since: Option<Ms>,
    /// How long the last finished run took.
    pub duration_ms: Option<Ms>,
    /// How many things that run changed or removed.
    pub items: i64,
    /// The number of finished runs.
    pub runs: i64,
    /// The number of finished runs that failed.
    pub failures: i64,
    /// When a run last ended without an error.
    pub succeeded_at: Option<Ms>,
    /// When a run last ended with an error.
    pub failed_at: Option<Ms>,
    /// The error of that run.
    pub error: Option<String>,
    /// When the replica recorded all this.
    pub recorded_at: Ms,
}

impl ReconcilerRun {
    /// Whether the reconciler does its work, judged at this time.
    pub fn state(&self, now: Ms) -> ReconcilerState {
        let is_late = |since: Ms, every_ms: Ms| now - since > every_ms + LATE_MS;
        if is_late(self.recorded_at, 0) || self.every_ms.is_some_and(|every_ms| is_late(self.started_at, every_ms)) {
            return ReconcilerState::Late;
        }
        if self.failed_at > self.succeeded_at { ReconcilerState::Failing } else { ReconcilerState::Ok }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reconciler_is_failing_after_an_error_and_late_when_it_does_not_run() {
        let run = ReconcilerRun { every_ms: Some(5_000), started_at: 100_000, recorded_at: 160_000, ..ReconcilerRun::default() };
        assert_eq!(run.state(165_000), ReconcilerState::Ok, "its first run is in progress");
        assert_eq!(run.state(165_001), ReconcilerState::Late, "its run does not end");
        assert_eq!(ReconcilerRun { every_ms: None, ..run.clone() }.state(220_000), ReconcilerState::Ok, "it waits for changes");
        assert_eq!(ReconcilerRun { every_ms: None, ..run.clone() }.state(220_001), ReconcilerState::Late, "no replica leads");
        let failed = ReconcilerRun { failed_at: Some(150_000), ..run };
        assert_eq!(failed.state(160_000), ReconcilerState::Failing);
        assert_eq!(ReconcilerRun { succeeded_at: Some(149_999), ..failed.clone() }.state(160_000), ReconcilerState::Failing);
        assert_eq!(ReconcilerRun { succeeded_at: Some(150_001), ..failed }.state(160_000), ReconcilerState::Ok);
    }
}
