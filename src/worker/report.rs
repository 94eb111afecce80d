//! Telling the server: events while a run goes on, its end until that is acknowledged.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::future::BoxFuture;
use reqwest::Method;
use serde::de::IgnoredAny;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Agent;
use super::spool::EventReader;
use super::verdict::Verdict;
use bloom_api::answers::{CompletionResult, Completions};
use bloom_api::complete::{Completion, NewCompletions, WorkerCompletion};
use bloom_api::requests::{NewEvents, Release};
use bloom_api::values::{Id, List};
use bloom_client::{self as client, CALL_LIMIT, Error};
use bloom_core::task::{Outcome, Reason};

/// New events are looked for so often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A result of 16 MiB takes its time.
const COMPLETE_LIMIT: Duration = Duration::from_secs(120);
/// The end of a run waits so long for its last events, with a server that answers but does not take them.
const EVENTS_PATIENCE: u32 = 5;

const SHORTEST_WAIT: Duration = Duration::from_millis(100);
/// With as much again by chance.
const LONGEST_WAIT: Duration = Duration::from_millis(7_500);
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(15);

/// Waits that grow, with some chance so that agents drift apart.
#[derive(Debug)]
pub struct Backoff(ExponentialBackoff);

impl Default for Backoff {
    fn default() -> Self {
        let waits = ExponentialBuilder::default().with_min_delay(SHORTEST_WAIT).with_max_delay(LONGEST_WAIT);
        Self(waits.with_jitter().without_max_times().build())
    }
}

impl Backoff {
    /// The wait before the next try, if the server asks for it a longer one.
    pub fn wait(&mut self, error: &Error) -> Duration {
        let wait = self.0.next().unwrap_or(LONGEST_WAIT);
        match error {
            Error::Refused { retry_after: Some(asked), .. } => wait.max((*asked).min(LONGEST_RETRY_AFTER)),
            _ => wait,
        }
    }
}

/// Whether the server may take later what it does not now: a key may be changed on either side, and what is no answer of the API may be
/// a proxy's.
fn may_pass(error: &Error) -> bool {
    error.is_passing() || matches!(error.status(), Some(401 | 403)) || matches!(error, Error::Garbled(_))
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
        let body = NewEvents { lease_id: Id(lease_id), events: List(batch) };
        match agent.client.send(Method::POST, &path, Some(&body), CALL_LIMIT).await {
            Ok(_) => {
                events.sent(end);
                backoff = Backoff::default();
            }
            Err(error) if may_pass(&error) => {
                if is_over {
                    failures_at_end += 1;
                    if failures_at_end >= EVENTS_PATIENCE {
                        return tracing::warn!(%task, %error, "the server did not accept the last events of a run");
                    }
                }
                tokio::time::sleep(backoff.wait(&error)).await;
            }
            // The lease is over: the run will hear of it by its heartbeat.
            Err(error) if matches!(error.status(), Some(404 | 409)) => return,
            Err(error) => {
                tracing::warn!(%task, %error, "the server refused events; they are skipped");
                events.sent(end);
            }
        }
    }
}

/// Sends a run's end until the server has it, or says that it does not want it.
pub async fn deliver(agent: &Agent, task: Uuid, lease: Uuid, verdict: Verdict) {
    match verdict {
        Verdict::Release { reason } => {
            let body = Release { lease_id: Id(lease), reason: reason.into() };
            let path = format!("api/runtime/llm-tasks/{task}/release");
            insist(task, || Box::pin(release(agent, &path, &body))).await;
        }
        Verdict::Complete(completion) => {
            let whole = completions(task, lease, (*completion).clone());
            let refused = insist(task, || Box::pin(complete(agent, &whole))).await;
            if let Some(error) = refused.filter(|error| matches!(error.status(), Some(400 | 413))) {
                // It would be refused for ever. That it ended and why not well can still be told.
                let told = completions(task, lease, unfit(*completion, &error));
                insist(task, || Box::pin(complete(agent, &told))).await;
            }
        }
    }
}

async fn release(agent: &Agent, path: &str, body: &Release) -> Result<(), Error> {
    agent.client.send(Method::POST, path, Some(body), CALL_LIMIT).await?.json::<IgnoredAny>().map(drop)
}

fn completions(task: Uuid, lease: Uuid, completion: Completion) -> NewCompletions {
    NewCompletions { completions: List(vec![WorkerCompletion::new(task, lease, completion)]) }
}

/// By the worker's own call: it has the worker's rate limit, and tells of each completion by itself.
async fn complete(agent: &Agent, body: &NewCompletions) -> Result<(), Error> {
    let path = format!("api/runtime/workers/{}/complete", client::part(&agent.name));
    let answer: Completions = agent.client.send(Method::POST, &path, Some(body), COMPLETE_LIMIT).await?.json()?;
    match answer.results.into_iter().next() {
        Some(CompletionResult { status: 200, .. }) => Ok(()),
        Some(CompletionResult { status, error, .. }) => {
            Err(Error::Refused { status, message: error.unwrap_or_default(), retry_after: None })
        }
        None => Err(Error::Garbled("the server's answer does not mention the completion".into())),
    }
}

fn unfit(completion: Completion, error: &Error) -> Completion {
    Completion {
        status: Outcome::Error,
        output: None,
        error_message: Some(format!("the server refused the result: {error}").into()),
        reason: Some(Reason::BadOutput),
        retryable: false,
        retry_at: None,
        keep_attempt: false,
        session_id: None,
        model: None,
        ..completion
    }
}

/// Tries until there is an answer that another try would not change; gives it if it is a refusal.
async fn insist<'a>(task: Uuid, call: impl Fn() -> BoxFuture<'a, Result<(), Error>>) -> Option<Error> {
    let mut backoff = Backoff::default();
    let mut complained: Option<Instant> = None;
    loop {
        let error = call().await.err()?;
        if !may_pass(&error) {
            // Another lease has the task, or it is gone: this run's end is nobody's any more.
            tracing::warn!(%task, %error, "the server refused the completion of this run");
            return Some(error);
        }
        if complained.is_none_or(|at| at.elapsed() >= Duration::from_secs(60)) {
            tracing::warn!(%task, %error, "a completion is not acknowledged yet; it is sent again");
            complained = Some(Instant::now());
        }
        tokio::time::sleep(backoff.wait(&error)).await;
    }
}
