//! Sends the events of all runs of this agent in one call at a time. So the number of calls does not depend on the number of runs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reqwest::Method;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::Agent;
use crate::run::spool::{EventReader, MAX_BATCH_BYTES};
use crate::server_calls::report::{Backoff, may_pass};
use bloom_api::answers::{RunResult, RunResults};
use bloom_api::requests::{RunEvents, WorkerEvents};
use bloom_api::values::{Id, List};
use bloom_client::{CALL_LIMIT, Error, part};

/// The interval at which new events are read.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How many times the last events of a run are sent before they are given up.
const PATIENCE: u32 = 5;
/// The maximum number of runs in one call. The server accepts 1,000.
const MAX_RUNS: usize = 500;

/// The runs whose events are to be sent.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    added: Mutex<Vec<Run>>,
    changed: Notify,
}

/// A run whose events are to be sent, in order.
#[derive(Debug)]
struct Run {
    task: Uuid,
    lease: Uuid,
    events: EventReader,
    /// Cancelled when no more events will be added.
    is_over: CancellationToken,
    failures_at_end: u32,
    /// The backoff after calls in which the server could not store events of this run, while it could store those of others.
    backoff: Backoff,
    not_before: Option<Instant>,
    _sent: DropGuard,
}

/// The sending of one run's events.
#[derive(Debug)]
pub(crate) struct Sending {
    is_over: CancellationToken,
    sent: CancellationToken,
}

impl Runs {
    pub(crate) fn add(&self, task: Uuid, lease: Uuid, events: EventReader) -> Sending {
        let sending = Sending { is_over: CancellationToken::new(), sent: CancellationToken::new() };
        let (is_over, _sent) = (sending.is_over.clone(), sending.sent.clone().drop_guard());
        let backoff = Backoff::default();
        self.added.lock().push(Run { task, lease, events, is_over, failures_at_end: 0, backoff, not_before: None, _sent });
        self.changed.notify_one();
        sending
    }

    /// Declares that no more events of this run are added.
    pub(crate) fn end(&self, sending: &Sending) {
        sending.is_over.cancel();
        self.changed.notify_one();
    }
}

impl Sending {
    /// Waits until all events are sent or given up.
    pub(crate) async fn sent(&self) {
        self.sent.cancelled().await;
    }
}

/// The next call: the events, and the runs with the positions after their events.
#[derive(Default)]
struct Call {
    runs: Vec<(Run, u64)>,
    events: Vec<RunEvents>,
}

impl Agent {
    /// Sends the events of all runs, forever.
    pub(crate) async fn send_events(self: Arc<Self>) {
        let mut runs = VecDeque::new();
        let mut backoff = Backoff::default();
        loop {
            runs.extend(self.events.added.lock().drain(..));
            let call = next_call(&mut runs);
            if call.runs.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep(POLL_EVERY), if !runs.is_empty() => {}
                    () = self.events.changed.notified() => {}
                }
                continue;
            }
            match self.send_together(call, &mut runs).await {
                Ok(()) => backoff = Backoff::default(),
                Err(error) => tokio::time::sleep(backoff.wait(&error)).await,
            }
        }
    }

    /// Sends the events of these runs, and moves the runs behind others that may have more.
    ///
    /// # Errors
    /// The server could not be reached, or could not answer. The runs are behind the others, and will be sent again.
    async fn send_together(&self, call: Call, runs: &mut VecDeque<Run>) -> Result<(), Error> {
        let path = format!("api/runtime/workers/{}/events", part(&self.name));
        let body = WorkerEvents { runs: List(call.events) };
        let answer = self.client.send(Method::POST, &path, Some(&body), CALL_LIMIT).await;
        let results = answer.and_then(|answer| answer.json::<RunResults>()).map(|answer| answer.results);
        match results {
            Ok(results) if results.len() == call.runs.len() => {
                runs.extend(call.runs.into_iter().zip(results).filter_map(|((run, end), result)| run.after(end, &result)));
                Ok(())
            }
            Ok(_) => {
                let error = Error::Garbled("the server's answer does not mention each run".into());
                runs.extend(call.runs.into_iter().filter_map(|(run, _)| run.after_failure(&error)));
                Err(error)
            }
            Err(error) if may_pass(&error) => {
                runs.extend(call.runs.into_iter().filter_map(|(run, _)| run.after_failure(&error)));
                Err(error)
            }
            // One event that the server refuses must not hold up the other runs.
            Err(error) if call.runs.len() > 1 && matches!(error.status(), Some(400 | 413)) => {
                let mut outcome = Ok(());
                for (run, events) in call.runs.into_iter().zip(body.runs.0) {
                    let alone = Call { runs: vec![run], events: vec![events] };
                    outcome = outcome.and(Box::pin(self.send_together(alone, runs)).await);
                }
                outcome
            }
            Err(error) => {
                let result = RunResult { task_id: None, status: error.status().unwrap_or(400), error: Some(error.to_string()), code: None };
                runs.extend(call.runs.into_iter().filter_map(|(run, end)| run.after(end, &result)));
                Ok(())
            }
        }
    }
}

/// Takes new events from as many runs as fit into one call. Drops runs that are over and have no events left.
fn next_call(runs: &mut VecDeque<Run>) -> Call {
    let mut call = Call::default();
    let mut bytes = 0;
    for _ in 0..runs.len().min(MAX_RUNS) {
        if bytes >= MAX_BATCH_BYTES {
            break;
        }
        let Some(mut run) = runs.pop_front() else { break };
        if run.not_before.is_some_and(|time| Instant::now() < time) {
            runs.push_back(run);
            continue;
        }
        // Checked before the read, so that all events stored before the end are read.
        let is_over = run.is_over.is_cancelled();
        match run.events.batch() {
            Ok((events, _)) if events.is_empty() && is_over => {}
            Ok((events, _)) if events.is_empty() => runs.push_back(run),
            Ok((events, end)) => {
                bytes += end - run.events.position;
                call.events.push(RunEvents { task_id: Id(run.task), lease_id: Id(run.lease), events: List(events) });
                call.runs.push((run, end));
            }
            Err(error) => tracing::warn!(task = %run.task, %error, "a run's events can't be read"),
        }
    }
    call
}

impl Run {
    /// The run, unless the server takes no more of its events.
    fn after(mut self, end: u64, result: &RunResult) -> Option<Self> {
        match result.status {
            200 => (self.failures_at_end, self.backoff, self.not_before) = (0, Backoff::default(), None),
            // The lease is over, and the next heartbeat will stop the run.
            404 | 409 => return None,
            429 | 500.. => {
                let message = result.error.clone().unwrap_or_default();
                let error = Error::Refused { status: result.status, message, retry_after: None, fields: Vec::new() };
                self.not_before = Some(Instant::now() + self.backoff.wait(&error));
                return self.after_failure(&error);
            }
            _ => tracing::warn!(task = %self.task, error = result.error, "the server refused events; they are skipped"),
        }
        self.events.sent(end);
        Some(self)
    }

    /// The run, unless it is over and its last events were sent often enough.
    fn after_failure(mut self, error: &Error) -> Option<Self> {
        self.failures_at_end += u32::from(self.is_over.is_cancelled());
        if self.failures_at_end < PATIENCE {
            return Some(self);
        }
        tracing::warn!(task = %self.task, %error, "the server did not accept the last events of a run");
        None
    }
}
