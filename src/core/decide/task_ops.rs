//! What users ask of a task that exists: cancel it, queue it again; and the settings that they store.

use super::super::audit::{Action, EntityType};
use super::super::command::{Rejection, Reply};
use super::super::ids::TaskId;
use super::super::task::{Session, Status, TaskState};
use super::super::wakeup::Subject;
use super::super::working_set::{Halt, WorkingSet};
use super::lease_end::finish;
use super::readiness::{apply, evaluate, known_dependencies};

/// Names of the stored settings.
pub const MEMBRIDGE_SERVER_URL: &str = "membridge_server_url";
pub const MEMBRIDGE_ADMIN_KEY: &str = "membridge_admin_key";

pub(super) fn cancel(set: &mut WorkingSet, id: TaskId) -> Result<Reply, Halt> {
    let task = set.task(id)?;
    if task.status == Status::Cancelled || (task.status.is_active() && task.cancel_requested) {
        return Ok(Reply::Task(task.clone()));
    }
    if task.status.is_final() {
        return Err(Rejection::CannotCancel(task.status).into());
    }
    let mut task = task.clone();
    task.cancel_requested = true;
    task.updated_at = set.stamp();
    if task.status == Status::Queued {
        set.audit(Action::TaskCancelled, EntityType::Task, id, "api", "while queued");
        finish(set, &mut task, Status::Cancelled);
    } else {
        set.audit(Action::TaskCancelled, EntityType::Task, id, "api", "requested; the worker is told to stop");
    }
    task.revision = set.put_task(task.clone());
    Ok(Reply::Task(task))
}

pub(super) fn requeue(set: &mut WorkingSet, id: TaskId) -> Result<Reply, Halt> {
    let task = set.task(id)?;
    if !matches!(task.status, Status::Failed | Status::Dead | Status::Cancelled) {
        return Err(Rejection::CannotRequeue(task.status).into());
    }
    let mut task = TaskState {
        status: Status::Queued,
        updated_at: set.stamp(),
        attempts: 0,
        infra_retries: 0,
        cancel_requested: false,
        not_before: None,
        parked: None,
        wake_at: None,
        session_worker: None,
        failure: None,
        finished_at: None,
        remove_at: None,
        // An old lease must not complete the new round.
        last_lease: None,
        // Later tasks of its context stand behind it again, though they wait for others as yet.
        has_dependents: task.has_dependents || task.session == Session::Context,
        ..task.clone()
    };
    // Whatever has run had its dependencies met; they may be gone by now.
    let waits = task.has_dependencies && task.lease_count == 0;
    let dependencies = if waits { known_dependencies(set, id)? } else { Vec::new() };
    let verdict = evaluate(set, &mut task, &dependencies, id)?;
    set.audit(Action::TaskRequeued, EntityType::Task, id, "admin", "");
    if task.session == Session::Context {
        // The next one of its context may be ready by now. It is this one's turn again.
        set.wake(Subject::Context { context_id: task.context_id.clone(), after: Some(id) });
    }
    apply(set, &mut task, verdict);
    task.revision = set.put_task(task.clone());
    Ok(Reply::Task(task))
}

pub(super) fn configure(set: &mut WorkingSet, url: &str, key: &str) -> Result<Reply, Halt> {
    set.dirty.settings.push((MEMBRIDGE_SERVER_URL, url.to_owned()));
    set.dirty.settings.push((MEMBRIDGE_ADMIN_KEY, key.to_owned()));
    set.audit(Action::ConfigUpdated, EntityType::Config, "membridge", "admin", url);
    Ok(Reply::Done)
}
