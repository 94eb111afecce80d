//! The last runs of the reconcilers that this replica runs, for the list of reconcilers and for the metrics.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bloom_core::Ms;
use bloom_core::reconciler::ReconcilerRun;
use bloom_telemetry::Metrics;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::clock::Clock;

/// The maximum length of a stored error, in characters. The log has the whole text.
const ERROR_CHARS: usize = 500;

/// The reconcilers that this replica runs, by name.
pub struct Reconcilers {
    clock: Arc<Clock>,
    metrics: Metrics,
    running: Mutex<BTreeMap<&'static str, Runs>>,
}

#[derive(Default)]
struct Runs {
    last: ReconcilerRun,
    /// The start times of the runs that are in progress. The Kubernetes controllers have several at a time.
    in_progress: Vec<Ms>,
}

/// The registration of a reconciler. This replica runs it until this value is dropped, which is usually when the replica's leadership ends.
pub struct Reconciler {
    reconcilers: Arc<Reconcilers>,
    name: &'static str,
    progress: Arc<Progress>,
}

/// What the current run of a reconciler has done so far.
#[derive(Debug, Default)]
pub struct Progress {
    items: AtomicU64,
    error: Mutex<Option<String>>,
}

impl Progress {
    /// Adds to the number of things that the run has changed or removed.
    pub fn add(&self, items: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
    }

    /// Records a failure that does not end the run, or after which the run ends as if it had succeeded, so that the next one does not come
    /// sooner. The list of reconcilers shows the error. The metrics do not count it, because whatever failed has its own metrics.
    pub fn failed(&self, error: &str) {
        *self.error.lock() = Some(error.to_owned());
    }
}

impl Reconcilers {
    pub(super) fn new(clock: Arc<Clock>, metrics: Metrics) -> Self {
        Self { clock, metrics, running: Mutex::default() }
    }

    /// Registers the reconciler with this name, which this replica runs from now on. `every_ms` is the same as in [`ReconcilerRun`].
    pub fn begin(self: &Arc<Self>, name: &'static str, every_ms: Option<Ms>) -> Reconciler {
        let last = ReconcilerRun { name: name.to_owned(), every_ms, started_at: self.clock.now(), ..ReconcilerRun::default() };
        self.running.lock().insert(name, Runs { last, in_progress: Vec::new() });
        Reconciler { reconcilers: self.clone(), name, progress: Arc::default() }
    }

    /// The last runs of the reconcilers that this replica runs now, by name.
    pub fn runs(&self) -> Vec<ReconcilerRun> {
        let recorded_at = self.clock.now();
        let running = self.running.lock();
        let runs = running.values().map(|Runs { last, in_progress }| {
            let running_since = in_progress.iter().min().copied();
            ReconcilerRun { running_since, recorded_at, ..last.clone() }
        });
        runs.collect()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Runs, Ms)) {
        let now = self.clock.now();
        if let Some(runs) = self.running.lock().get_mut(name) {
            change(runs, now);
        }
    }
}

impl Reconciler {
    /// The handle with which its runs report their progress.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Executes a run, and records its outcome.
    ///
    /// # Errors
    /// The error of the run.
    pub async fn observe<T, E: Display>(&self, run: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let (started, started_at) = (Instant::now(), self.reconcilers.clock.now());
        self.reconcilers.change(self.name, |runs, _| {
            runs.last.started_at = started_at;
            runs.in_progress.push(started_at);
        });
        let outcome = run.await;
        let took = started.elapsed();
        let items = self.progress.items.swap(0, Ordering::Relaxed);
        let noted = self.progress.error.lock().take();
        self.reconcilers.metrics.reconciled(self.name, took.as_secs_f64(), items, outcome.is_ok());
        self.reconcilers.change(self.name, |runs, now| {
            if let Some(place) = runs.in_progress.iter().position(|at| *at == started_at) {
                runs.in_progress.swap_remove(place);
            }
            let last = &mut runs.last;
            (last.duration_ms, last.items) = (Some(whole(took.as_millis())), whole(items));
            last.runs += 1;
            match outcome.as_ref().err().map(E::to_string).or(noted) {
                Some(error) => {
                    last.failures += 1;
                    last.failed_at = Some(now);
                    last.error = Some(error.chars().take(ERROR_CHARS).collect());
                }
                None => last.succeeded_at = Some(now),
            }
        });
        outcome
    }
}

impl Drop for Reconciler {
    fn drop(&mut self) {
        self.reconcilers.running.lock().remove(self.name);
    }
}

fn whole(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
