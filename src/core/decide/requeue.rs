//! Queues a task again.

use super::quotas::{self, Added};
use super::readiness::{Readiness, apply, evaluate, known_dependencies, park};
use crate::audit::{Action, Actor, EntityType};
use crate::ids::TaskId;
use crate::operation::{Operation, Urgency};
use crate::rejection::Rejection;
use crate::row_keys::RowKeys;
use crate::task::{Parked, Session, Status, TaskState};
use crate::task_limits::LimitChange;
use crate::wakeup::Subject;
use crate::working_set::{Halt, WorkingSet};

/// Queues a failed, dead or cancelled task again.
#[derive(Clone, Debug)]
pub struct Requeue {
    /// The task to queue again.
    pub task: TaskId,
    /// The new limits of its runs.
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
            // The budget starts again, because a requeued task could not run without one.
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
        // The dependencies of a task that has run were met. They may have been removed since.
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

/// Makes the next task of the context wait for this one again, because it may already be ready.
fn goes_first(set: &mut WorkingSet, task: &TaskState) {
    set.wake(Subject::Context { context_id: task.context_id.clone(), after: Some(task.id) });
    let requeued = set.requeued.entry(task.context_id.clone()).or_default();
    let next = requeued.range(task.id..).next().copied();
    requeued.insert(task.id);
    // If tasks are requeued together, none of them may be ready even for a moment before an earlier one parks it.
    let is_queued =
        |next: &TaskId| matches!(set.find_task(*next), Ok(Some(next)) if next.is_ready() || next.parked == Some(Parked::Reserved));
    if let Some(next) = next.filter(is_queued) {
        park(set, next, Parked::Session, task.id);
    }
}
