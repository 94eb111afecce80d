//! The loops that drive the observed state toward the desired one.
//!
//! The loops have no state of their own. Each one queries the database, by an index and in pages, and sends commands like a request does.
//! Changes and deadlines that this replica learns of make a loop run sooner, but no loop depends on them, because each one also runs at a
//! fixed interval. All loops except the service mark run on the leader.

#![warn(missing_docs, unreachable_pub)]

mod counts;
mod expire_leases;
mod leader_election;
mod maintenance;
mod offline_workers;
mod quotas;
mod report;
mod service;
#[cfg(test)]
mod tests;
mod timers;
mod wakeups;

use std::fmt::Display;
use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::command::{Command, Op, Operation, Rejection, Requester};
use bloom_engine::{Alarm, Engine, Error, Progress};

pub use leader_election::Leadership;

/// The settings of the reconcilers.
#[derive(Clone, Debug)]
pub struct ReconcileOptions {
    /// How long a worker may be silent before it is offline, in milliseconds.
    pub worker_offline_after_ms: i64,
    /// How often the list of workers is read from the membridge control plane.
    pub worker_sync_ms: i64,
    /// The TTL of a lease that is made by a push.
    pub lease_ttl_ms: i64,
    /// Days that finished tasks are kept; 0 means forever.
    pub task_retention_days: u32,
    /// Days that the audit trail is kept; 0 means forever.
    pub audit_retention_days: u32,
    /// Whether audit entries must be in the object store before they are removed.
    pub audit_is_flushed: bool,
}

/// The usual interval of a reconciler. It runs at this interval even if every notification was lost.
pub const RECONCILE_EVERY_MS: Ms = 1_000;
/// The delay before the next try after an error.
const RETRY_MS: Ms = 500;
/// Rows per page of a loop.
pub const PAGE: usize = 500;
const PAGE_ROWS: i64 = PAGE as i64;

/// Starts the loops, which end with the engine. The caller can run further loops with the returned [`ReconcileContext`].
pub fn start(engine: &Engine, options: ReconcileOptions) -> ReconcileContext {
    let leadership = Leadership::default();
    let context = ReconcileContext { engine: engine.clone(), leadership: leadership.clone(), progress: Arc::default(), options };
    engine.background.spawn(leader_election::keep(engine.clone(), leadership));
    let steps = service::ClockSteps::default();
    engine.background.spawn(service::mark(engine.clone(), steps.clone()));
    engine.background.spawn(expire_leases::run(context.clone(), steps));
    engine.background.spawn(offline_workers::run(context.clone()));
    engine.background.spawn(timers::run(context.clone()));
    engine.background.spawn(wakeups::run(context.clone()));
    engine.background.spawn(maintenance::compact(context.clone()));
    engine.background.spawn(maintenance::retain(context.clone()));
    engine.background.spawn(counts::check(context.clone()));
    engine.background.spawn(quotas::measure(context.clone()));
    engine.background.spawn(report::record(engine.clone()));
    context
}

/// What each loop needs.
#[derive(Clone)]
pub struct ReconcileContext {
    /// The engine that executes the commands.
    pub engine: Engine,
    /// Whether this replica leads.
    pub leadership: Leadership,
    /// What the current run of the reconciler has done so far.
    pub progress: Arc<Progress>,
    /// The settings.
    pub options: ReconcileOptions,
}

impl ReconcileContext {
    /// Executes commands that are valid only while this replica leads. Returns `None` if it no longer leads, so that it has nothing more to
    /// do.
    ///
    /// # Errors
    /// The error of the first command that failed.
    pub async fn submit_led<O>(&self, ops: impl IntoIterator<Item = O>) -> Result<Option<Vec<O::Reply>>, Error>
    where
        O: Operation + Into<Op>,
    {
        self.try_led(ops).await.map(|outcomes| outcomes.into_iter().collect()).transpose()
    }

    /// Like [`submit_led`](Self::submit_led), but returns the outcome of each command.
    pub async fn try_led<O>(&self, ops: impl IntoIterator<Item = O>) -> Option<Vec<Result<O::Reply, Error>>>
    where
        O: Operation + Into<Op>,
    {
        let epoch = self.leadership.epoch()?;
        let commands = ops.into_iter().map(|op| Command { op, by: Requester::default(), epoch: Some(epoch) }).collect();
        let outcomes = self.engine.writers.submit_all(commands).await;
        if outcomes.iter().any(|outcome| matches!(outcome, Err(Error::Rejected(Rejection::NotLeader)))) {
            self.step_down();
            return None;
        }
        Some(outcomes)
    }

    /// Records that a commit was refused because another replica leads. Returns when to run next: `None`, until this replica leads again.
    pub fn step_down(&self) -> Option<Ms> {
        leader_election::change(&self.engine, &self.leadership, None);
        None
    }

    /// Runs `reconcile` while this replica leads: when its alarm rings, at the time that its last run returned, and every `every_ms`.
    pub async fn run<F, E: Display>(&self, name: &'static str, alarm: &Alarm, every_ms: Ms, mut reconcile: impl FnMut(Self) -> F)
    where
        F: Future<Output = Result<Option<Ms>, E>>,
    {
        loop {
            tokio::select! {
                biased;
                () = self.engine.background.stopped() => return,
                () = self.leadership.begins() => {}
            }
            let reconciler = self.engine.reconcilers.begin(name, Some(every_ms));
            let context = Self { progress: reconciler.progress(), ..self.clone() };
            while self.leadership.epoch().is_some() {
                let outcome = reconciler.observe(reconcile(context.clone())).await;
                let now = self.engine.clock.now();
                let next = match outcome {
                    Ok(at) => at.unwrap_or(Ms::MAX).min(now + every_ms),
                    Err(_) => now + RETRY_MS,
                };
                if self.leadership.epoch().is_none() {
                    break;
                }
                tokio::select! {
                    biased;
                    () = self.engine.background.stopped() => return,
                    () = alarm.wait_until(&self.engine.clock, next) => {}
                }
            }
        }
    }

    /// Like [`run`](Self::run), but only at a fixed interval.
    pub async fn every<F, E: Display>(&self, name: &'static str, pause_ms: Ms, mut reconcile: impl FnMut(Self) -> F)
    where
        F: Future<Output = Result<(), E>>,
    {
        let alarm = Alarm::default();
        self.run(name, &alarm, pause_ms, |context| {
            let running = reconcile(context);
            async move { running.await.map(|()| None) }
        })
        .await;
    }
}

fn unreadable(error: bloom_database::Error) -> Error {
    bloom_engine::log_failure(&error, "a reconciler could not read the database");
    Error::Unavailable
}
