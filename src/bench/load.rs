//! Runs many clients concurrently.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::calls::Session;
use super::latency::Latency;
use super::report::Row;
use super::{Bench, BenchError};

/// The warm-up before the measurement, in which statements are prepared, connections opened and caches filled.
const PRACTICE: Duration = Duration::from_millis(500);

/// How long the clients run: for a time, or until a number of items is done.
#[derive(Clone)]
pub(crate) struct Window {
    from: Instant,
    until: Instant,
    left: Arc<AtomicI64>,
}

impl Window {
    pub(crate) fn lasting(time: Duration) -> Self {
        Self::new(PRACTICE, time, i64::MAX)
    }

    /// Until `items` are done, and no longer than an hour.
    pub(crate) fn of_items(items: u64) -> Self {
        Self::new(Duration::ZERO, Duration::from_secs(3600), i64::try_from(items).unwrap_or(i64::MAX))
    }

    fn new(practice: Duration, time: Duration, items: i64) -> Self {
        let from = Instant::now() + practice;
        Self { from, until: from + time, left: Arc::new(AtomicI64::new(items)) }
    }

    /// Takes the next `items` to do; false if the time is over or nothing is left.
    pub(crate) fn take(&self, items: usize) -> bool {
        let items = i64::try_from(items).unwrap_or(i64::MAX);
        Instant::now() < self.until && self.left.fetch_sub(items, Ordering::Relaxed) > 0
    }

    /// Whether work that began at `began` and ends now lies within the window.
    pub(crate) fn counts(&self, began: Instant) -> bool {
        began >= self.from && Instant::now() < self.until
    }
}

/// What the clients did within the window.
#[derive(Default)]
pub(crate) struct Tally {
    pub done: u64,
    pub took: Duration,
    pub busy: u64,
    pub calls: Vec<(&'static str, Latency)>,
}

impl Tally {
    fn add(&mut self, session: &Session, done: u64) {
        self.done += done;
        self.busy += session.busy();
        for (name, latency) in &session.calls {
            match self.calls.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => sum.add(latency),
                None => self.calls.push((name, latency.clone())),
            }
        }
    }

    /// A row for the whole and one for each call.
    pub(crate) fn rows(&self, scenario: &'static str, case: &str, what: &str) -> Vec<Row> {
        let mut rate = Row::new(scenario, case, what);
        rate.count = Some(self.done);
        rate.per_second = Some(self.done as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE));
        let mut rows = vec![rate];
        // In the order in which a task goes through them.
        let known = ["create", "lease", "claim", "heartbeat", "complete"];
        let mut calls: Vec<_> = self.calls.iter().collect();
        calls.sort_by_key(|(name, _)| known.iter().position(|other| other == name).unwrap_or(known.len()));
        rows.extend(calls.into_iter().map(|(name, latency)| Row::of_calls(scenario, case, name, latency)));
        if self.busy > 0 {
            let mut busy = Row::new(scenario, case, "answered 503 and sent again");
            busy.count = Some(self.busy);
            rows.push(busy);
        }
        rows
    }
}

/// Runs `work` in every session until the window closes. `work` returns how many items it did within the window.
pub(crate) async fn run<W, F>(sessions: Vec<Session>, window: &Window, work: W) -> Result<Tally, BenchError>
where
    W: Fn(Session, Window) -> F,
    F: Future<Output = Result<(Session, u64), BenchError>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for mut session in sessions {
        session.measure_from = window.from;
        running.spawn(work(session, window.clone()));
    }
    let mut tally = Tally::default();
    let mut leaving = Vec::new();
    while let Some(ended) = running.join_next().await {
        let (session, done) = ended.map_err(|error| format!("a client ended unexpectedly: {error}"))??;
        tally.took = window.from.elapsed().min(window.until - window.from);
        tally.add(&session, done);
        leaving.push(session);
    }
    for session in leaving {
        session.leave().await?;
    }
    Ok(tally)
}

/// `count` sessions, each with a worker of its own.
pub(crate) async fn workers(bench: &Arc<Bench>, agent: &'static str, count: usize) -> Result<Vec<Session>, BenchError> {
    let mut sessions = Vec::with_capacity(count);
    for index in 0..count {
        sessions.push(Session::connect_worker(bench, agent, index).await?);
    }
    Ok(sessions)
}
