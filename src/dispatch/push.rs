//! One push: sends a task and its lease to a worker's agent.
//!
//! The lease is committed first, then this process sends the task, once. No process ever sends it again for that lease: if this process
//! dies or the answer is lost, the lease expires and the task gets another one. A completion arrives by the agent's own calls, so it does
//! not need the answer here.

use std::borrow::Cow;
use std::time::Duration;

use reqwest::Method;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::{Agents, calls};
use bloom_api::agents::PushedTask;
use bloom_api::json::readable;
use bloom_core::command::{PushEnd, Requester};
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::reply::Leased;
use bloom_core::task::{ActiveLease, LeaseStatus, TaskState};
use bloom_core::worker::Worker;
use bloom_engine::Error;
use bloom_outbound::{self as outbound, SendError};

/// The interval of the checks whether the lease is still active.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How long to wait for the push's answer after the lease has ended, because agents may answer right after the completion.
const LATE_ANSWER: Duration = Duration::from_secs(5);
/// The number of tries to store the end of a push, and the pause between them. If all fail, the lease expires.
const TRIES: usize = 10;
const TRY_EVERY: Duration = Duration::from_secs(1);

/// The outcome of a push.
#[derive(Debug)]
pub enum Outcome {
    /// The agent has accepted or already finished the task; this is its answer.
    Accepted(Box<RawValue>),
    /// The agent refused the task, which has failed; this is its answer.
    Refused(Box<RawValue>),
    /// The push failed, and the task is queued again; the text says why.
    Failed(String),
    /// The agent did not answer the push, but the run goes on or has ended.
    Unanswered,
}

/// A push for a dispatch call, in progress.
pub struct Dispatched {
    /// The lease under which the task is pushed.
    pub lease_id: LeaseId,
    /// The worker that the task is pushed to.
    pub worker_id: WorkerId,
    /// Closed without a value if the server stops.
    pub outcome: oneshot::Receiver<Outcome>,
}

impl Agents {
    /// Leases the task to the worker (or to the best one) and pushes it there. The push continues if the caller goes away.
    ///
    /// # Errors
    /// Those of [`Engine::dispatch`](bloom_engine::Engine::dispatch); `Busy` if too many pushes are in progress.
    pub async fn dispatch(
        &self,
        task: TaskId,
        worker: Option<WorkerId>,
        ttl_ms: i64,
        by: Requester,
        runtime_url: String,
    ) -> Result<Dispatched, Error> {
        let permit = self.0.permits.clone().try_acquire_owned().map_err(|_| Error::Busy)?;
        let (leased, is_leased) = oneshot::channel();
        let (sender, outcome) = oneshot::channel();
        let agents = self.clone();
        self.0.engine.background.spawn(async move {
            match agents.0.engine.dispatch(task, worker, ttl_ms, by).await {
                Ok(Leased { task, worker, .. }) => {
                    // The caller may be gone; the push continues.
                    let _ = leased.send(Ok((task.lease.as_ref().map(|lease| lease.id), worker.id.clone())));
                    let _ = sender.send(agents.push(&task, &worker, &runtime_url).await);
                }
                Err(error) => drop(leased.send(Err(error))),
            }
            drop(permit);
        });
        let (lease, worker_id) = is_leased.await.unwrap_or(Err(Error::Unavailable))?;
        Ok(Dispatched { lease_id: lease.ok_or(Error::Internal)?, worker_id, outcome })
    }

    /// Pushes a task that the leader has leased.
    pub fn begin(&self, task: TaskState, worker: Worker) {
        let agents = self.clone();
        agents.warn_of_unknown_address();
        // A dispatch call may have taken the last permit meanwhile. The task is pushed anyway, because its lease exists.
        let permit = self.0.permits.clone().try_acquire_owned().ok();
        self.0.engine.background.spawn(async move {
            let runtime_url = agents.public_url().unwrap_or_else(|| agents.own_url());
            agents.push(&task, &worker, runtime_url).await;
            drop(permit);
        });
    }

    fn warn_of_unknown_address(&self) {
        static ONCE: std::sync::Once = std::sync::Once::new();
        if self.public_url().is_none() {
            let url = self.own_url();
            ONCE.call_once(|| tracing::warn!(url, "agents report to this URL; if they can't reach it, set PUBLIC_URL"));
        }
    }

    async fn push(&self, task: &TaskState, worker: &Worker, runtime_url: &str) -> Outcome {
        let Some(lease) = &task.lease else { return Outcome::Failed("the task has no lease".to_owned()) };
        let outcome = self.send(task, lease, worker, runtime_url).await;
        let (word, problem) = match &outcome {
            Outcome::Accepted(_) => ("accepted", None),
            Outcome::Refused(_) => ("refused", Some("the agent refused the task")),
            Outcome::Failed(error) => ("failed", Some(error.as_str())),
            Outcome::Unanswered => ("unanswered", None),
        };
        self.0.engine.metrics.pushed(word);
        match problem {
            Some(problem) => tracing::warn!(task = %task.id, lease = %lease.id, worker = worker.id, problem, "a push failed"),
            None => {
                tracing::debug!(task = %task.id, lease = %lease.id, worker = worker.id, outcome = word, "a task was pushed");
                if self.breakers().succeeded(&worker.id) {
                    self.0.engine.alarms.push_due.ring();
                }
            }
        }
        outcome
    }

    /// Opens the worker's circuit breaker. This must happen before the task is queued again, or the task would be pushed to this worker
    /// again.
    fn open_breaker(&self, worker: &Worker) {
        if worker.is_pushed_to() {
            self.breakers().failed(&worker.id, self.0.engine.clock.now());
            self.0.engine.alarms.push_due.ring();
        }
    }

    async fn send(&self, task: &TaskState, lease: &ActiveLease, worker: &Worker, runtime_url: &str) -> Outcome {
        let engine = &self.0.engine;
        let unsent = |text: String| SendError { text, is_unsent: true };
        let request = match engine.specs.by_id(&[task.id]).await.map(|specs| specs.into_iter().next()) {
            Ok(Some(spec)) => self
                .request(Method::POST, &worker.url, "execute-task")
                .map(|request| match spec.traceparent.map(|task| engine.traces.attempt_of(task, lease.id)) {
                    Some(attempt) => request.header("traceparent", attempt.to_string()),
                    None => request,
                })
                .map(|request| request.json(&PushedTask::new(&spec, task, lease, runtime_url)))
                .map_err(unsent),
            Ok(None) => Err(unsent("the task was removed".to_owned())),
            Err(error) => Err(unsent(format!("the task could not be read: {error}"))),
        };
        let reply = match request {
            // Usually the lease ends before this limit, and then the answer is no longer awaited.
            Ok(request) => tokio::select! {
                reply = outbound::send(request, Duration::from_millis((task.longest_run_sec() + 120).unsigned_abs() * 1000)) => reply,
                () = self.is_over(task.id, lease.id) => return self.unanswered(task.id, lease.id, worker).await,
                () = engine.background.stopped() => return Outcome::Unanswered,
            },
            Err(failure) => Err(failure),
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(SendError { text, is_unsent }) => return self.undelivered(task.id, lease, worker, text, !is_unsent).await,
        };
        match answer_of(&reply.body) {
            Ok(answer) if reply.is_success() => Outcome::Accepted(answer),
            Ok(_) if lease.origin == Origin::Push && requeues(reply.status) => {
                self.undelivered(task.id, lease, worker, calls::refusal(&reply), false).await
            }
            Ok(answer) => {
                self.open_breaker(worker);
                self.end(task.id, lease.id, PushEnd::Refused { message: calls::refusal(&reply) }).await;
                Outcome::Refused(answer)
            }
            Err(_) => self.undelivered(task.id, lease, worker, format!("Agent returned {} without JSON", reply.status), false).await,
        }
    }

    /// Waits until the lease has ended, and then a little longer for the answer.
    async fn is_over(&self, task: TaskId, lease: LeaseId) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            if !self.0.engine.replica.holds(task, lease) {
                tokio::time::sleep(LATE_ANSWER).await;
                return;
            }
        }
    }

    /// The lease has ended and the agent has not answered: either it has completed the run by its own calls, or it did nothing.
    async fn unanswered(&self, task: TaskId, lease: LeaseId, worker: &Worker) -> Outcome {
        match self.0.engine.database.task_states(&[task]).await {
            Ok(states) if states.first().is_some_and(|state| is_expired(state, lease)) => {
                self.open_breaker(worker);
                Outcome::Failed("the agent did not answer, and the lease expired".to_owned())
            }
            _ => Outcome::Unanswered,
        }
    }

    async fn undelivered(&self, task: TaskId, lease: &ActiveLease, worker: &Worker, message: String, may_run: bool) -> Outcome {
        self.open_breaker(worker);
        let end = PushEnd::Undelivered { message: message.clone(), unless_running: may_run };
        match self.end(task, lease.id, end).await {
            Some(state) if is_at_work(&state, lease.id) => Outcome::Unanswered,
            _ => Outcome::Failed(message),
        }
    }

    /// Stores the end of a push. Returns the task after that, if it is known.
    async fn end(&self, task: TaskId, lease: LeaseId, end: PushEnd) -> Option<TaskState> {
        let engine = &self.0.engine;
        for _ in 0..TRIES {
            match engine.writers.submit(op::EndPush { task, lease, end: end.clone() }).await {
                Ok(state) => return Some(state),
                Err(Error::Busy | Error::Locked(_) | Error::Unavailable) if !engine.background.is_stopping() => {
                    tokio::time::sleep(TRY_EVERY).await
                }
                _ => return None,
            }
        }
        tracing::warn!(%task, %lease, "the end of a push could not be stored; its lease will expire");
        None
    }
}

/// The agent's answer for the caller, as JSON that every parser accepts.
fn answer_of(body: &[u8]) -> Result<Box<RawValue>, serde_json::Error> {
    let answer: &RawValue = serde_json::from_slice(body)?;
    readable(answer.get()).map(Cow::into_owned)
}

/// Whether the agent has or had the task: its lease is active, or was released by the agent.
fn is_at_work(state: &TaskState, lease: LeaseId) -> bool {
    let is_held = state.lease.as_ref().is_some_and(|active| active.id == lease);
    is_held || state.last_lease.as_ref().is_some_and(|last| last.id == lease && last.status == LeaseStatus::Released)
}

fn is_expired(state: &TaskState, lease: LeaseId) -> bool {
    state.last_lease.as_ref().is_some_and(|last| last.id == lease && last.status == LeaseStatus::Expired)
}

/// Whether the status does not concern the task itself: a wrong key, a conflict, no free slot, a full disk. A task that the leader pushed
/// then goes back to the queue. For a dispatch call the task fails, because its caller gets the answer.
fn requeues(status: u16) -> bool {
    matches!(status, 401 | 403 | 409 | 429 | 503 | 507)
}
