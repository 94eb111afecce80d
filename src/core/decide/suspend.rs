//! Suspends a task, and resumes it.

use super::super::audit::{Action, Actor, EntityType};
use super::super::ids::TaskId;
use super::super::operation::{Operation, Urgency};
use super::super::rejection::Rejection;
use super::super::row_keys::RowKeys;
use super::super::task::{Status, TaskState};
use super::super::working_set::{Halt, WorkingSet};
use super::readiness::{apply, evaluate};
use super::reevaluate::dependencies;

/// Suspends a task, or resumes it. A queued task is parked, or evaluated again. A leased or running one goes on, and is parked if it is queued
/// again while it is suspended.
#[derive(Clone, Debug)]
pub struct Suspend {
    /// The task to suspend or to resume.
    pub task: TaskId,
    /// `false` resumes the task.
    pub suspend: bool,
}

impl Operation for Suspend {
    type Reply = TaskState;

    fn urgency(&self) -> Urgency {
        Urgency::New
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<TaskState, Halt> {
        let Self { task: id, suspend } = *self;
        let before = set.task(id)?;
        if before.status.is_final() {
            let refused = if suspend { Rejection::CannotSuspend } else { Rejection::CannotResume };
            return Err(refused(before.status).into());
        }
        if before.suspend == suspend {
            return Ok(before.clone());
        }
        let mut task = TaskState { suspend, ..before.clone() };
        let readiness = if task.status == Status::Queued {
            let dependencies = dependencies(set, &task)?;
            Some(evaluate(set, &mut task, &dependencies, id)?)
        } else {
            None
        };
        task.updated_at = set.stamp();
        let action = if suspend { Action::TaskSuspended } else { Action::TaskResumed };
        set.audit(action, EntityType::Task, id, &Actor::Admin, format!("while {}", task.status));
        if let Some(readiness) = readiness {
            apply(set, &mut task, readiness);
        }
        task.revision = set.put_task(task.clone());
        Ok(task)
    }
}
