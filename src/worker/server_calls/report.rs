//! Reports the verdict of a run to the server until the server acknowledges it.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::future::BoxFuture;
use reqwest::Method;
use serde::de::IgnoredAny;
use uuid::Uuid;

use crate::Agent;
use crate::run::verdict::Verdict;
use bloom_api::answers::{RunResult, RunResults};
use bloom_api::complete::{Completion, NewCompletions, WorkerCompletion};
use bloom_api::requests::Release;
use bloom_api::values::{Id, List};
use bloom_client::{CALL_LIMIT, Client, Error, part};
use bloom_core::task::{Outcome, Reason};

/// The time limit of a completion, not counting the time for its output.
const COMPLETE_LIMIT: Duration = Duration::from_secs(120);
/// Bytes of output per second on the slowest connection. The server expects 64 KiB of a body per second, in which output may be escaped.
const SLOWEST: usize = 16 << 10;
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
/// The maximum wait without jitter, which adds up to the same again.
const LONGEST_WAIT: Duration = Duration::from_millis(7_500);
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(15);

/// Exponential backoff with jitter, so that agents do not retry in step.
#[derive(Debug)]
pub(crate) struct Backoff(ExponentialBackoff);

impl Default for Backoff {
    fn default() -> Self {
        let waits = ExponentialBuilder::default().with_min_delay(SHORTEST_WAIT).with_max_delay(LONGEST_WAIT);
        Self(waits.with_jitter().without_max_times().build())
    }
}

impl Backoff {
    /// The wait before the next attempt; longer if the server asks for it.
    pub(crate) fn wait(&mut self, error: &Error) -> Duration {
        let wait = self.0.next().unwrap_or(LONGEST_WAIT);
        match error {
            Error::Refused { retry_after: Some(asked), .. } => wait.max((*asked).min(LONGEST_RETRY_AFTER)),
            _ => wait,
        }
    }
}

/// Whether a later attempt may succeed. A key may be corrected on either side, and an answer that is not the API's may come from a proxy.
pub(crate) fn may_pass(error: &Error) -> bool {
    error.is_passing() || matches!(error.status(), Some(401 | 403)) || matches!(error, Error::Garbled(_))
}

/// Sends a run's verdict with a client of this agent, until the server accepts or refuses it.
pub(crate) async fn deliver(agent: &Agent, client: &Client, task: Uuid, lease: Uuid, verdict: Verdict) {
    match verdict {
        Verdict::Release { reason } => {
            let body = Release { lease_id: Id(lease), reason: reason.into() };
            let path = format!("api/runtime/llm-tasks/{task}/release");
            insist(agent, task, lease, || Box::pin(release(client, &path, &body))).await;
        }
        Verdict::Complete(completion) => {
            // The worker's route has the worker's rate limit and answers each completion separately.
            let path = format!("api/runtime/workers/{}/complete", part(&agent.name));
            let whole = completions(task, lease, (*completion).clone());
            let refused = insist(agent, task, lease, || Box::pin(complete(client, &path, &whole))).await;
            if let Some(error) = refused.filter(|error| matches!(error.status(), Some(400 | 413))) {
                // The server would always refuse this completion, so a failure without the output is sent instead.
                let body = completions(task, lease, unfit(*completion, &error));
                insist(agent, task, lease, || Box::pin(complete(client, &path, &body))).await;
            }
        }
    }
}

async fn release(client: &Client, path: &str, body: &Release) -> Result<(), Error> {
    client.send(Method::POST, path, Some(body), CALL_LIMIT).await?.json::<IgnoredAny>().map(drop)
}

fn completions(task: Uuid, lease: Uuid, completion: Completion) -> NewCompletions {
    NewCompletions { completions: List(vec![WorkerCompletion::new(task, lease, completion)]) }
}

async fn complete(client: &Client, path: &str, body: &NewCompletions) -> Result<(), Error> {
    let outputs = body
        .completions
        .0
        .iter()
        .filter_map(|one| one.completion.as_ref().ok())
        .filter_map(|(.., completion)| completion.output.as_deref());
    let limit = COMPLETE_LIMIT + Duration::from_secs((outputs.map(str::len).sum::<usize>() / SLOWEST) as u64);
    let answer: RunResults = client.send(Method::POST, path, Some(body), limit).await?.json()?;
    match answer.results.into_iter().next() {
        Some(RunResult { status: 200, .. }) => Ok(()),
        Some(RunResult { status, error, .. }) => {
            Err(Error::Refused { status, message: error.unwrap_or_default(), retry_after: None, fields: Vec::new() })
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

/// Repeats the call until it succeeds or is refused, and returns the refusal.
async fn insist<'a>(agent: &Agent, task: Uuid, lease: Uuid, call: impl Fn() -> BoxFuture<'a, Result<(), Error>>) -> Option<Error> {
    let mut backoff = Backoff::default();
    let mut complained: Option<Instant> = None;
    loop {
        let error = call().await.err()?;
        if !may_pass(&error) {
            // For example, another lease has the task, or the task was removed.
            tracing::warn!(%task, %error, "the server refused the completion of this run");
            return Some(error);
        }
        agent.note_if_key_is_refused(lease, &error);
        if complained.is_none_or(|at| at.elapsed() >= Duration::from_secs(60)) {
            tracing::warn!(%task, %error, "a completion is not acknowledged yet; it is sent again");
            complained = Some(Instant::now());
        }
        tokio::time::sleep(backoff.wait(&error)).await;
    }
}
