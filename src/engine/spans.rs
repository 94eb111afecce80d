//! Spans of what a commit did to tasks: how long they waited for a worker, and the attempts that ended.

use std::collections::HashMap;
use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::task::{LeaseStatus, PastLease, Reason, Status, TaskState};
use bloom_core::trace_context::TraceContext;
use bloom_core::working_set::WorkingSet;
use bloom_telemetry::Traces;
use bloom_telemetry::traces::Span;
use tokio::sync::mpsc;

use super::background::Background;
use super::specs::Specs;

/// The maximum number of commits whose spans are still to be made, which takes a while if specs are read from a slow database. Spans of
/// further commits are dropped.
const MAX_COMMITS: usize = 1024;

/// Something that becomes a span once the trace of its task is known.
#[derive(Debug)]
enum Part {
    Assigned { task: Box<TaskState>, ready_at: Ms },
    Ended { lease: Box<PastLease>, attempt: i64, reason: Option<Reason>, status: Status },
}

impl Part {
    fn task(&self) -> TaskId {
        match self {
            Self::Assigned { task, .. } => task.id,
            Self::Ended { lease, .. } => lease.task_id,
        }
    }
}

/// Makes the spans in the background, because a task's trace is in its spec. It is empty if tracing is off.
#[derive(Debug)]
pub(super) struct Spans(Option<mpsc::Sender<Vec<Part>>>);

impl Spans {
    /// The background task ends when this is dropped and everything is recorded.
    pub(crate) fn start(traces: Traces, specs: Arc<Specs>, background: &Background) -> Self {
        if !traces.is_on() {
            return Self(None);
        }
        let (sender, mut commits) = mpsc::channel::<Vec<Part>>(MAX_COMMITS);
        background.spawn(async move {
            while let Some(parts) = commits.recv().await {
                let ids: Vec<_> = parts.iter().map(Part::task).collect();
                match specs.by_id(&ids).await {
                    Ok(specs) => {
                        let of_tasks: HashMap<_, _> = specs.iter().filter_map(|spec| Some((spec.id, spec.traceparent?))).collect();
                        let spans = parts.iter().filter_map(|part| span(&traces, *of_tasks.get(&part.task())?, part));
                        spans.for_each(|span| traces.record(span));
                    }
                    Err(error) => tracing::debug!(%error, "spans are lost, because the traces of their tasks could not be read"),
                }
            }
        });
        Self(Some(sender))
    }

    /// Records the spans of a commit.
    pub(crate) fn observe(&self, set: &WorkingSet) {
        let Some(commits) = &self.0 else { return };
        let parts: Vec<_> = assigned(set).chain(ended(set)).collect();
        if !parts.is_empty() {
            // The spans are dropped if the channel is full, because commits never wait for traces.
            let _ = commits.try_send(parts);
        }
    }
}

fn assigned(set: &WorkingSet) -> impl Iterator<Item = Part> {
    set.dirty.tasks.iter().filter_map(|id| {
        let task = set.loaded.tasks.get(id)?.as_ref()?;
        let is_new = task.status == Status::Leased && task.lease.as_ref()?.started_at == set.now();
        is_new.then(|| Part::Assigned { ready_at: task.ready_at.unwrap_or_else(|| task.created_at()), task: Box::new(task.clone()) })
    })
}

/// Leaves out leases whose records merely changed, for example because a completion came too late.
fn ended(set: &WorkingSet) -> impl Iterator<Item = Part> {
    set.dirty.past_leases.iter().filter(|lease| lease.ended_at == set.now()).filter_map(|lease| {
        let task = set.loaded.tasks.get(&lease.task_id)?.as_ref()?;
        let reason = task.failure.as_ref().filter(|failure| failure.at == lease.ended_at).map(|failure| failure.reason);
        Some(Part::Ended { attempt: task.lease_count, reason, status: task.status, lease: Box::new(lease.clone()) })
    })
}

fn span(traces: &Traces, task: TraceContext, part: &Part) -> Option<Span> {
    match part {
        Part::Assigned { task: state, ready_at } => {
            let lease = state.lease.as_ref()?;
            let span = Span::new("assign", traces.begin(Some(task))?, Some(task), *ready_at, lease.started_at);
            let span = of_lease(span, state.id, lease.id, &lease.worker_id, &state.agent_slug);
            Some(span.with("bloom.attempt", state.lease_count).with("bloom.origin", lease.origin.as_str()))
        }
        Part::Ended { lease, attempt, reason, status } => {
            let span = Span::new("attempt", traces.attempt_of(task, lease.id), Some(task), lease.started_at, lease.ended_at);
            let span = of_lease(span, lease.task_id, lease.id, &lease.worker_id, &lease.agent_slug);
            let span = span.with("bloom.attempt", *attempt).with("bloom.lease.status", lease.status.as_str());
            let span = span.with("bloom.task.status", status.as_str()).with_usage(lease.model.as_deref(), lease.usage);
            Some(match reason {
                Some(reason) => span.failed(reason.as_str()),
                None if lease.status != LeaseStatus::Released => span.failed(lease.status.as_str()),
                None => span,
            })
        }
    }
}

fn of_lease(span: Span, task: TaskId, lease: LeaseId, worker: &str, agent_slug: &str) -> Span {
    let span = span.with("bloom.task.id", task.to_string()).with("bloom.lease.id", lease.to_string());
    span.with("bloom.worker.id", worker.to_owned()).with("gen_ai.agent.name", agent_slug.to_owned())
}
