//! How soon an idle worker has the task that somebody submits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::calls::{Session, WAKE_AGENT};
use super::load;
use super::report::Row;
use super::{Bench, BenchError};

/// Idle workers, each in a long poll of its own; the task wakes one of them.
const IDLE: [usize; 2] = [1, 32];
/// Long polls last this long, then the worker asks again; so long it may take until all have ended.
const POLL_SECONDS: i64 = 5;
/// Between two submits, so that every worker is back in its poll.
const PAUSE: Duration = Duration::from_millis(10);
/// A task that is not delivered by then is lost.
const DELIVERY_LIMIT: Duration = Duration::from_secs(10);
/// Registering and polling before the first submit.
const SETTLE: Duration = Duration::from_millis(300);

/// Submit → the task is in the hands of a worker that waited for it.
pub async fn submit_to_delivery(bench: &Arc<Bench>) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for idle in IDLE {
        let workers = load::workers(bench, WAKE_AGENT, idle).await?;
        let mut submitter = Session::connect(bench, WAKE_AGENT, 1000).await?;
        let until = Instant::now() + SETTLE + bench.time;
        let mut polls = JoinSet::new();
        let (delivered, mut deliveries) = mpsc::channel(idle);
        for session in workers {
            // Whoever submits last still finds everybody polling.
            polls.spawn(poll(session, delivered.clone(), until + SETTLE));
        }
        drop(delivered);
        tokio::time::sleep(SETTLE).await;
        submitter.measure_from = Instant::now();
        while Instant::now() < until {
            let began = Instant::now();
            let task = submitter.create().await?;
            let Ok(Some(at)) = tokio::time::timeout(DELIVERY_LIMIT, delivery_of(task, &mut deliveries)).await else {
                return Err(why_undelivered(&mut polls).await);
            };
            submitter.record_span("submit to delivery", at.duration_since(began));
            tokio::time::sleep(PAUSE).await;
        }
        while let Some(ended) = polls.join_next().await {
            ended.map_err(|error| format!("a worker ended unexpectedly: {error}"))??.leave().await?;
        }
        let case = format!("{idle} idle");
        rows.extend(submitter.calls.iter().map(|(name, latency)| Row::of_calls("wake", &case, name, latency)));
    }
    Ok(rows)
}

async fn poll(mut session: Session, delivered: mpsc::Sender<(Uuid, Instant)>, until: Instant) -> Result<Session, BenchError> {
    while Instant::now() < until {
        for held in session.claim(1, POLL_SECONDS).await? {
            let at = Instant::now();
            if delivered.send((held.task, at)).await.is_err() {
                return Ok(session);
            }
            session.complete(&held).await?;
        }
    }
    Ok(session)
}

/// When the task was delivered. Others may come first: of a run that broke off.
async fn delivery_of(task: Uuid, deliveries: &mut mpsc::Receiver<(Uuid, Instant)>) -> Option<Instant> {
    loop {
        let (found, at) = deliveries.recv().await?;
        if found == task {
            return Some(at);
        }
    }
}

/// The worker's own trouble says more than the submitter's.
async fn why_undelivered(polls: &mut JoinSet<Result<Session, BenchError>>) -> BenchError {
    while let Some(Ok(ended)) = polls.try_join_next() {
        if let Err(failure) = ended {
            return failure;
        }
    }
    format!("a task was not delivered to an idle worker within {} s", DELIVERY_LIMIT.as_secs()).into()
}
