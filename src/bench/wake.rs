//! The time from the submit of a task to its delivery to an idle worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::calls::{Session, WAKE_AGENT};
use super::load;
use super::report::Row;
use super::{Bench, BenchError};

/// The numbers of idle workers to measure with. Each is in a long poll, and a task wakes one of them.
const IDLE: [usize; 2] = [1, 32];
/// The duration of a long poll, and so the maximum time until all workers have ended.
const POLL_SECONDS: i64 = 5;
/// The pause between two submits, in which every worker starts its next poll.
const PAUSE: Duration = Duration::from_millis(10);
/// A task that is not delivered within this time counts as lost.
const DELIVERY_LIMIT: Duration = Duration::from_secs(10);
/// The time for all workers to start their polls before the first submit.
const SETTLE: Duration = Duration::from_millis(300);

/// Measures the time from a submit until a waiting worker has the task.
pub(crate) async fn submit_to_delivery(bench: &Arc<Bench>) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for idle in IDLE {
        let workers = load::workers(bench, WAKE_AGENT, idle).await?;
        let mut submitter = Session::connect(bench, WAKE_AGENT, 1000).await?;
        let until = Instant::now() + SETTLE + bench.time;
        let mut polls = JoinSet::new();
        let (delivered, mut deliveries) = mpsc::channel(idle);
        for session in workers {
            // Workers poll longer than tasks are submitted, so that the last task finds them all waiting.
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

/// When the task was delivered. Tasks of an earlier, interrupted run may come first and are ignored.
async fn delivery_of(task: Uuid, deliveries: &mut mpsc::Receiver<(Uuid, Instant)>) -> Option<Instant> {
    loop {
        let (found, at) = deliveries.recv().await?;
        if found == task {
            return Some(at);
        }
    }
}

/// Why a task was not delivered: a worker's error if there is one, because it says more than the timeout.
async fn why_undelivered(polls: &mut JoinSet<Result<Session, BenchError>>) -> BenchError {
    while let Some(Ok(ended)) = polls.try_join_next() {
        if let Err(failure) = ended {
            return failure;
        }
    }
    format!("a task was not delivered to an idle worker within {} s", DELIVERY_LIMIT.as_secs()).into()
}
