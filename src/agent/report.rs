//! Telling the server: events while a run goes on, its end until that is acknowledged.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Agent;
use super::spool::EventReader;
use super::verdict::Verdict;
use super::wire::{Completion, Events, Release};
use crate::client::{CALL_LIMIT, Error};
use crate::core::task::{Outcome, Reason};

/// New events are looked for so often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A result of 16 MiB takes its time.
const COMPLETE_LIMIT: Duration = Duration::from_secs(120);
/// The end of a run waits so long for its last events, with a server that answers but does not take them.
const EVENTS_PATIENCE: u32 = 5;

/// Waits that grow, with some chance so that agents drift apart.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(15);

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST_WAIT }
    }
}

impl Backoff {
    /// The wait before the next try, never shorter than the server asked for.
    pub fn wait(&mut self, error: &Error) -> Duration {
        use std::hash::{BuildHasher, RandomState};
        let chance = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
        let wait = self.next.mul_f64(0.5 + 0.5 * chance);
        self.next = (self.next * 2).min(LONGEST_WAIT);
        match error {
            Error::Refused { retry_after: Some(asked), .. } => wait.max((*asked).min(LONGEST_WAIT)),
            _ => wait,
        }
    }
}

/// Sends a run's events in order until it is told that no more come, and the rest then. Ends early if the server does not want them.
pub async fn send_events(agent: &Agent, task: Uuid, lease_id: Uuid, mut events: EventReader, over: CancellationToken) {
    let path = format!("api/runtime/llm-tasks/{task}/events");
    let mut backoff = Backoff::default();
    let mut failures_at_end = 0;
    loop {
        // Asked first: what was kept before the end is read after it.
        let is_over = over.is_cancelled();
        let (batch, end) = match events.batch() {
            Ok(batch) => batch,
            Err(error) => return tracing::warn!(%task, %error, "a run's events can't be read"),
        };
        if batch.is_empty() {
            if is_over {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = over.cancelled() => {}
            }
            continue;
        }
        let body = Events { lease_id, events: &batch };
        match agent.client.send(Method::POST, &path, Some(&body), CALL_LIMIT).await {
            Ok(_) => {
                events.sent(end);
                backoff = Backoff::default();
            }
            Err(error) if error.is_passing() || matches!(error.status(), Some(401 | 403)) => {
                if is_over {
                    failures_at_end += 1;
                    if failures_at_end >= EVENTS_PATIENCE {
                        return tracing::warn!(%task, %error, "a run's last events were not taken");
                    }
                }
                tokio::time::sleep(backoff.wait(&error)).await;
            }
            // The lease is over: the run will hear of it by its heartbeat.
            Err(error) if matches!(error.status(), Some(404 | 409)) => return,
            Err(error) => {
                tracing::warn!(%task, %error, "events were refused, so they are left out");
                events.sent(end);
            }
        }
    }
}

/// Sends a run's end until the server has it, or says that it does not want it.
pub async fn deliver(agent: &Agent, task: Uuid, lease: Uuid, verdict: Verdict) {
    match verdict {
        Verdict::Release { reason } => {
            let body = Release { lease_id: lease, reason: &reason };
            let _ = insist(agent, &format!("api/runtime/llm-tasks/{task}/release"), &body, task).await;
        }
        Verdict::Complete(completion) => {
            let path = format!("api/runtime/llm-tasks/{task}/complete");
            if let Err(error) = insist(agent, &path, &*completion, task).await
                && matches!(error.status(), Some(400 | 413))
            {
                // It would be refused for ever. That it ended and why not well can still be told.
                let _ = insist(agent, &path, &unfit(*completion, &error), task).await;
            }
        }
    }
}

fn unfit(completion: Completion, error: &Error) -> Completion {
    Completion {
        status: Outcome::Error,
        output: None,
        error_message: Some(format!("the server did not take the result: {error}")),
        reason: Some(Reason::BadOutput),
        retryable: false,
        retry_at: None,
        keep_attempt: false,
        session_id: None,
        model: None,
        ..completion
    }
}

/// Tries until there is an answer that another try would not change.
async fn insist(agent: &Agent, path: &str, body: &impl Serialize, task: Uuid) -> Result<(), Error> {
    let mut backoff = Backoff::default();
    let mut complained: Option<Instant> = None;
    loop {
        let error = match agent.client.send(Method::POST, path, Some(body), COMPLETE_LIMIT).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        // A key may be changed on either side; the result waits for that.
        if !(error.is_passing() || matches!(error.status(), Some(401 | 403)) || matches!(error, Error::Garbled(_))) {
            // Another lease has the task, or it is gone: this run's end is nobody's any more.
            tracing::warn!(%task, %error, "the server does not take this run's end");
            return Err(error);
        }
        if complained.is_none_or(|at| at.elapsed() >= Duration::from_secs(60)) {
            tracing::warn!(%task, %error, "a run's end is not acknowledged yet; it is sent again");
            complained = Some(Instant::now());
        }
        tokio::time::sleep(backoff.wait(&error)).await;
    }
}
