//! Converts rows of the store and replies of the engine to answers.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{FromRequestParts, RawQuery};
use axum::http::request::Parts;

use crate::messages::error::Error;
use bloom_api::answers::{Lease, Repository};
use bloom_api::directives::{Directives, PausedAccount, ResumedAccount};
use bloom_api::lists::Params;
use bloom_api::tasks::{Task, Waiting};
use bloom_api::usage::Usage;
use bloom_api::workers::Worker;
use bloom_core::project::{Project, ProjectId};
use bloom_core::task::{LeaseOutcome, TaskSpec, TaskState};
use bloom_core::worker;
use bloom_engine::Engine;
use bloom_store::{LeaseRow, Store};

pub(crate) fn show_task<'a>(engine: &Engine, spec: &'a TaskSpec, state: &'a TaskState) -> Task<'a> {
    let waiting = engine.replica.waiting(state, engine.clock.now());
    let waiting = waiting.map(|waiting| Waiting { reason: waiting.reason.into(), message: waiting.message, until: waiting.until });
    Task::new(spec, state, waiting)
}

/// The approximate size of a task in an answer, without its texts.
const TASK_BYTES: usize = 1 << 10;

/// The approximate size of these tasks in an answer.
pub(crate) fn bytes_of<'a>(specs: impl IntoIterator<Item = &'a TaskSpec>) -> usize {
    let texts = |spec: &TaskSpec| spec.prompt.len() + spec.context_hints.iter().map(String::len).sum::<usize>();
    specs.into_iter().map(|spec| TASK_BYTES + texts(spec)).sum()
}

pub(crate) fn show_worker<'a>(engine: &Engine, worker: &'a worker::Worker) -> Worker<'a> {
    Worker::new(worker, engine.replica.active_leases(&worker.id))
}

pub(crate) fn directives(engine: &Engine, worker: &str, accounts: &[String]) -> Directives {
    let directives = engine.replica.directives(worker, accounts, engine.clock.now());
    let paused_accounts = directives.paused_accounts.into_iter().map(PausedAccount::from).collect();
    let resumed_accounts = directives.resumed_accounts.into_iter().map(ResumedAccount::from).collect();
    let bloom_engine::Directives { cancel, cancel_leases, answered, drain, .. } = directives;
    Directives { cancel, cancel_leases, answered, drain, paused_accounts, resumed_accounts }
}

pub(crate) type Projects = BTreeMap<ProjectId, Project>;

/// The current projects of these tasks. Edits of a project also apply to tasks that were created before them.
pub(crate) async fn projects_of(store: &Store, specs: impl IntoIterator<Item = &TaskSpec>) -> Result<Projects, Error> {
    let ids: BTreeSet<ProjectId> = specs.into_iter().filter_map(|spec| Some(spec.project.as_ref()?.id)).collect();
    let mut projects = Projects::new();
    for id in ids {
        projects.extend(store.project(id).await?.map(|project| (id, project)));
    }
    Ok(projects)
}

/// The active lease of this task, for the worker that is to run it.
pub(crate) fn lease_to_run<'a>(engine: &Engine, spec: &'a TaskSpec, state: &'a TaskState, projects: &'a Projects) -> Option<Lease<'a>> {
    let lease = Lease::active(state)?;
    let traceparent = spec.traceparent.map(|task| engine.traces.attempt_of(task, lease.id));
    let repository = spec.project.as_ref().map(|project| Repository::new(project, projects.get(&project.id)));
    let context_reset_at = state.lease.as_ref().and_then(|active| active.context_reset_at);
    let profile_timeout_max = state.profile_timeout_max;
    let conversation = state.conversation.as_deref().map(Cow::from);
    Some(Lease { traceparent, budget_left: state.budget_left(), repository, context_reset_at, conversation, profile_timeout_max, ..lease })
}

/// The spec of a task that existed a moment ago.
pub(crate) async fn spec(engine: &Engine, state: &TaskState) -> Result<Arc<TaskSpec>, Error> {
    let specs = engine.specs.by_id(&[state.id]).await?;
    // The task was removed after the reply.
    specs.into_iter().next().ok_or(Error::TASK_NOT_FOUND)
}

pub(crate) fn show_lease(row: &LeaseRow) -> Lease<'_> {
    Lease {
        id: row.id,
        task_id: row.task_id,
        worker_id: (&row.worker_id).into(),
        started_at: row.started_at,
        expires_at: row.expires_at,
        ttl_seconds: row.ttl_ms / 1000,
        status: row.status.into(),
        last_heartbeat: row.last_heartbeat,
        context_id: (&row.context_id).into(),
        ended_at: row.ended_at,
        outcome: row.ended_at.map(|_| LeaseOutcome::of(row.completed, row.reason).into()),
        reason: row.reason.map(Into::into),
        message: row.message.as_deref().map(Cow::from),
        model: row.model.as_deref().map(Cow::from),
        usage: row.usage().map(Usage::from),
        traceparent: None,
        budget_left: None,
        repository: None,
        context_reset_at: None,
        conversation: None,
        profile_timeout_max: None,
    }
}

/// The query of a request.
pub(crate) struct Query(pub Params);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let Ok(RawQuery(query)) = RawQuery::from_request_parts(parts, state).await;
        Ok(Self(Params::parse(query.as_deref())))
    }
}
