//! What clients ask of an existing task, cancel and requeue, and the settings that they store.

use super::super::audit::{Action, Actor, EntityType};
use super::super::ids::TaskId;
use super::super::mask::masked_url;
use super::super::operation::{Operation, Urgency};
use super::super::rejection::Rejection;
use super::super::row_keys::RowKeys;
use super::super::task::{Parked, Session, Status, TaskState};
use super::super::task_limits::LimitChange;
use super::super::wakeup::Subject;
use super::super::working_set::{Halt, WorkingSet};
use super::finish::finish;
use super::quotas::{self, Added};
use super::readiness::{Readiness, apply, evaluate, known_dependencies, park};

/// Names of the stored settings.
pub const MEMBRIDGE_SERVER_URL: &str = "membridge_server_url";
/// The name of the stored key of the control plane.
pub const MEMBRIDGE_ADMIN_KEY: &str = "membridge_admin_key";

/// Cancels a queued task. If the task runs, the worker is told to stop it.
#[derive(Clone, Debug)]
pub struct Cancel {
    /// The task to cancel.
    pub task: TaskId,
}

impl Operation for Cancel {
    type Reply = TaskState;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<TaskState, Halt> {
        let id = self.task;
        let task = set.task(id)?;
        if task.status == Status::Cancelled || (task.status.is_active() && task.cancel_requested) {
            return Ok(task.clone());
        }
        if task.status.is_final() {
            return Err(Rejection::CannotCancel(task.status).into());
        }
        let mut task = task.clone();
        task.cancel_requested = true;
        task.updated_at = set.stamp();
        if task.status == Status::Queued {
            set.audit(Action::TaskCancelled, EntityType::Task, id, &Actor::Api, "while queued");
            // An earlier attempt may have failed; but the task ends because that was requested.
            let at = set.now();
            task.failure = task.failure.take().map(|failure| failure.of_cancelled(at));
            finish(set, &mut task, Status::Cancelled);
        } else {
            set.audit(Action::TaskCancelled, EntityType::Task, id, &Actor::Api, "requested; the worker is told to stop");
        }
        task.revision = set.put_task(task.clone());
        Ok(task)
    }
}

/// Queues a failed, dead or cancelled task again.
#[derive(Clone, Debug)]
pub struct Requeue {
    /// The task to queue again.
    pub task: TaskId,
    /// The limits of its runs from now on.
    pub limits: LimitChange,
}

impl Operation for Requeue {
    type Reply = TaskState;

    fn urgency(&self) -> Urgency {
        Urgency::New
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<TaskState, Halt> {
        let id = self.task;
        let task = set.task(id)?;
        if !matches!(task.status, Status::Failed | Status::Dead | Status::Cancelled) {
            return Err(Rejection::CannotRequeue(task.status).into());
        }
        let added = Added { tasks: 1, bytes: 0 };
        let used = quotas::check(set, added)?;
        let used_of_creator = quotas::check_creator(set, task.owner.as_deref(), added)?;
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
            // Who requeues it wants it to run, which it can't without a budget.
            cost_before_requeue: task.usage.map_or(0.0, |usage| usage.cost_usd),
            finished_at: None,
            remove_at: None,
            // A late completion of an old lease must not complete the requeued task.
            last_lease: None,
            // Later tasks of its context wait for it again, although they are still marked as waiting for others.
            has_dependents: task.has_dependents || task.session == Session::Context,
            ..task.clone()
        };
        let detail = task.limit_to(self.limits).join(", ");
        // A task that has run had its dependencies met; they may have been removed since.
        let waits = task.has_dependencies && task.lease_count == 0;
        let dependencies = if waits { known_dependencies(set, id)? } else { Vec::new() };
        let readiness = evaluate(set, &mut task, &dependencies, id)?;
        if let Readiness::DependencyFailed(dependency) = readiness {
            let is_removed = !matches!(set.find_task(dependency), Ok(Some(_)));
            return Err(Rejection::CannotRequeueBefore { dependency, is_removed }.into());
        }
        quotas::take(set, used);
        quotas::take(set, used_of_creator);
        set.audit(Action::TaskRequeued, EntityType::Task, id, &Actor::Admin, detail);
        apply(set, &mut task, readiness);
        task.revision = set.put_task(task.clone());
        if task.session == Session::Context && task.status == Status::Queued {
            goes_first(set, &task);
        }
        Ok(task)
    }
}

/// The next task of the context may be ready by now, and has to wait for this one again.
fn goes_first(set: &mut WorkingSet, task: &TaskState) {
    set.wake(Subject::Context { context_id: task.context_id.clone(), after: Some(task.id) });
    let requeued = set.requeued.entry(task.context_id.clone()).or_default();
    let next = requeued.range(task.id..).next().copied();
    requeued.insert(task.id);
    // If tasks are requeued together, none of them may be ready for a moment before an earlier one parks it.
    let is_queued =
        |next: &TaskId| matches!(set.find_task(*next), Ok(Some(next)) if next.is_ready() || next.parked == Some(Parked::Reserved));
    if let Some(next) = next.filter(is_queued) {
        park(set, next, Parked::Session, task.id);
    }
}

/// Stores the settings that take precedence over flags and environment.
#[derive(Clone, Debug)]
pub struct Configure {
    /// The URL of the control plane.
    pub membridge_server_url: String,
    /// The key that the server sends to the control plane.
    pub membridge_admin_key: String,
}

impl Operation for Configure {
    type Reply = ();

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let (url, key) = (&self.membridge_server_url[..], &self.membridge_admin_key[..]);
        set.dirty.settings.push((MEMBRIDGE_SERVER_URL, url.to_owned()));
        set.dirty.settings.push((MEMBRIDGE_ADMIN_KEY, key.to_owned()));
        set.audit(Action::ConfigUpdated, EntityType::Config, "membridge", &Actor::Admin, masked_url(url));
        Ok(())
    }
}

/// Writes an audit entry only, for actions outside the database.
#[derive(Clone, Debug)]
pub struct RecordAudit {
    /// What happened.
    pub action: Action,
    /// The kind of object that the entry is about.
    pub entity_type: EntityType,
    /// Which object the entry is about: its id or its name.
    pub entity_id: String,
    /// Who did it. If the request used a named key, the entry names the key instead.
    pub actor: Actor,
    /// What else there is to say, for people; may be empty.
    pub detail: String,
}

impl Operation for RecordAudit {
    type Reply = ();

    fn urgency(&self) -> Urgency {
        Urgency::Bulk
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        set.audit(self.action, self.entity_type, &self.entity_id, &self.actor, self.detail.clone());
        Ok(())
    }
}
