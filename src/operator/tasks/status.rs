//! The status of an object, computed by a pure function from the object, the rows of its task, and a few other facts.
//!
//! Its times come from the database. So a status that is computed again, after a restart or by another replica, is the same and is not
//! written again.

use std::time::Duration;

use bloom_core::Ms;
use bloom_core::task::{Reason, Status};
use bloom_core::usage;
use bloom_engine::WaitingState;
use bloom_store::{LeaseRow, ResultPreview, TaskRow};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::crds::LLMTask;
use crate::crds::task::{LLMTaskStatus, ResultRef, Usage};
use crate::words::{camel, cut, time};

/// Limit of `resultPreview`.
pub(crate) const PREVIEW_BYTES: usize = 4_096;
/// The size limit of messages. Kubernetes allows 32 KiB in conditions.
const MESSAGE_BYTES: usize = 1_024;
const PENDING: &str = "Pending";
const QUEUED: &str = "Queued";
const LEASED: &str = "Leased";
const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";

/// Why no task can be created for an object yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    reason: &'static str,
    message: String,
    /// When to try again, unless the object changes before.
    pub look_again: Duration,
}

impl Problem {
    /// Something to which the object refers does not exist or can't be used. It may appear at any time.
    pub(crate) fn missing(reason: &'static str, message: String) -> Self {
        Self { reason, message, look_again: Duration::from_secs(5) }
    }

    /// The object itself is wrong.
    pub(crate) fn invalid(message: String) -> Self {
        Self { reason: "Invalid", message, look_again: Duration::from_secs(600) }
    }

    /// The server refuses the task in the present situation.
    pub(crate) fn refused(message: String) -> Self {
        Self { reason: "Refused", message, look_again: Duration::from_secs(60) }
    }
}

/// What a status shows besides the rows of the task.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// The record of the last lease, if none is active.
    pub last_lease: Option<LeaseRow>,
    /// The beginning of the result of a completed task.
    pub result: Option<ResultPreview>,
    pub waiting: Option<WaitingState>,
    /// The object of the active lease.
    pub lease_name: Option<String>,
    pub public_url: Option<String>,
}

/// The status of an object that has a task.
pub(crate) fn of(object: &LLMTask, before: &LLMTaskStatus, row: &TaskRow, shown: &Shown) -> LLMTaskStatus {
    let state = &row.state;
    let failure = state.failure.as_ref().filter(|_| !matches!(state.status, Status::Completed | Status::Leased | Status::Running));
    let waiting = shown.waiting.as_ref();
    let reason = match (waiting, failure) {
        (Some(waiting), _) => Some(camel(waiting.reason.as_str())),
        (None, Some(failure)) => Some(camel(failure.reason.as_str())),
        (None, None) if state.status == Status::Cancelled => Some(camel(Reason::Cancelled.as_str())),
        (None, None) => None,
    };
    let message = waiting.map(|waiting| waiting.message.as_str()).or(failure.map(|failure| failure.message.as_str()));
    let lease = state.lease.as_ref();
    let worker = lease.map(|lease| &lease.worker_id).or(state.last_lease.as_ref().map(|last| &last.worker_id));
    let started_at = lease.map(|lease| lease.started_at).or(shown.last_lease.as_ref().map(|last| last.started_at));
    let mut status = LLMTaskStatus {
        observed_generation: object.metadata.generation,
        task_id: Some(state.id.to_string()),
        phase: Some(phase(state.status).into()),
        reason,
        message: message.map(|message| cut(message, MESSAGE_BYTES).to_owned()),
        attempts: Some(state.attempts),
        worker_name: worker.cloned(),
        lease_name: shown.lease_name.clone(),
        start_time: started_at.map(time),
        completion_time: state.finished_at.map(time),
        usage: state.usage.map(usage),
        result_preview: shown.result.as_ref().map(|result| cut(&result.text, PREVIEW_BYTES).to_owned()),
        result: shown.result.as_ref().map(|result| result_ref(row, result, shown.public_url.as_deref())),
        conditions: Vec::new(),
    };
    status.conditions = conditions(object, before, row, &status, shown);
    status
}

/// The status of an object that has no task yet.
pub(crate) fn pending(object: &LLMTask, before: &LLMTaskStatus, problem: Problem) -> LLMTaskStatus {
    let message = cut(&problem.message, MESSAGE_BYTES).to_owned();
    let facts = [QUEUED, LEASED, COMPLETE, FAILED].map(|kind| (kind, false, problem.reason.to_owned(), message.clone()));
    LLMTaskStatus {
        observed_generation: object.metadata.generation,
        phase: Some(PENDING.into()),
        reason: Some(problem.reason.into()),
        message: Some(message),
        conditions: facts.map(|fact| condition(object, before, fact, None)).into(),
        ..LLMTaskStatus::default()
    }
}

/// The status of an object whose task was removed from the server before it ended.
pub(crate) fn removed(object: &LLMTask, before: LLMTaskStatus) -> LLMTaskStatus {
    let message = "The task was removed from the server before it ended, as far as is known".to_owned();
    let facts = [(QUEUED, false), (LEASED, false), (COMPLETE, false), (FAILED, true)];
    LLMTaskStatus {
        observed_generation: object.metadata.generation,
        phase: Some(FAILED.into()),
        reason: Some("Removed".into()),
        message: Some(message.clone()),
        conditions: facts.map(|(kind, holds)| condition(object, &before, (kind, holds, "Removed".into(), message.clone()), None)).into(),
        ..before
    }
}

/// Whether the status says that the task has ended.
pub(crate) fn has_ended(status: &LLMTaskStatus) -> bool {
    status.conditions.iter().any(|condition| matches!(condition.type_.as_str(), COMPLETE | FAILED) && condition.status == "True")
}

/// The phase in Kubernetes's terms. `Running` covers leased and running, because the first heartbeat of a worker is not worth a write.
fn phase(status: Status) -> &'static str {
    match status {
        Status::Queued => QUEUED,
        Status::Leased | Status::Running => "Running",
        Status::Completed => "Completed",
        Status::Failed => FAILED,
        Status::Dead => "Dead",
        Status::Cancelled => "Cancelled",
    }
}

fn conditions(object: &LLMTask, before: &LLMTaskStatus, row: &TaskRow, status: &LLMTaskStatus, shown: &Shown) -> Vec<Condition> {
    let state = &row.state;
    let reason = |otherwise: &str| status.reason.clone().unwrap_or_else(|| otherwise.to_owned());
    let message = || status.message.clone().unwrap_or_default();
    let worker = || format!("Worker {} has it", status.worker_name.as_deref().unwrap_or_default());
    let now = phase(state.status);
    let is = |holds: bool, reason: String, message: String| (holds, reason, message);
    let is_not = || is(false, now.to_owned(), String::new());
    let (queued, leased, complete, failed) = match state.status {
        Status::Queued => (is(true, reason("Ready"), message()), is_not(), is_not(), is_not()),
        Status::Leased | Status::Running => (is_not(), is(true, now.to_owned(), worker()), is_not(), is_not()),
        Status::Completed => (is_not(), is_not(), is(true, now.to_owned(), String::new()), is_not()),
        Status::Failed | Status::Dead | Status::Cancelled => (is_not(), is_not(), is_not(), is(true, reason(FAILED), message())),
    };
    // When the task entered its present state, according to the database.
    let lease_began = state.lease.as_ref().map(|lease| lease.started_at).or(shown.last_lease.as_ref().map(|last| last.started_at));
    let lease_ended = shown.last_lease.as_ref().and_then(|last| last.ended_at);
    let queued_at = if queued.0 { lease_ended.or(Some(state.created_at())) } else { lease_began.or(state.finished_at) };
    let leased_at = if leased.0 { lease_began } else { lease_ended };
    let ended_at = |holds: bool| if holds { state.finished_at } else { None };
    let (complete_at, failed_at) = (ended_at(complete.0), ended_at(failed.0));
    let facts = [(QUEUED, queued, queued_at), (LEASED, leased, leased_at), (COMPLETE, complete, complete_at), (FAILED, failed, failed_at)];
    facts.map(|(kind, (holds, reason, message), at)| condition(object, before, (kind, holds, reason, message), at)).into()
}

/// A condition keeps its time as long as it keeps its status. `at` is the time of the change; without it, the creation time of the object
/// is used.
fn condition(
    object: &LLMTask,
    before: &LLMTaskStatus,
    (kind, holds, reason, message): (&str, bool, String, String),
    at: Option<Ms>,
) -> Condition {
    let status = if holds { "True" } else { "False" };
    let before = before.conditions.iter().find(|condition| condition.type_ == kind);
    let kept = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
    let created = || object.metadata.creation_timestamp.clone();
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        observed_generation: object.metadata.generation,
        last_transition_time: kept.or(at.map(time)).or_else(created).unwrap_or(Time(Timestamp::UNIX_EPOCH)),
        reason,
        message,
    }
}

fn result_ref(row: &TaskRow, result: &ResultPreview, public_url: Option<&str>) -> ResultRef {
    let uri = format!("{}/api/runtime/llm-tasks/{}/result", public_url.unwrap_or_default(), row.spec.id);
    ResultRef { uri, bytes: result.bytes }
}

fn usage(usage: usage::Usage) -> Usage {
    let usage::Usage { input_tokens, output_tokens, cost_usd, cost_estimated } = usage;
    Usage { input_tokens, output_tokens, cost_usd, cost_estimated: cost_estimated.then_some(true) }
}
