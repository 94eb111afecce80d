//! Suspends a task, and resumes it.

use super::readiness::{apply, evaluate};
use super::reevaluate::dependencies;
use crate::audit::{Action, Actor, EntityType};
use crate::ids::TaskId;
use crate::operation::{Operation, Urgency};
use crate::rejection::Rejection;
use crate::row_keys::RowKeys;
use crate::task::{Status, TaskState};
use crate::working_set::{Halt, WorkingSet};

/// Suspends a task, or resumes it. A queued task is parked, or evaluated again. A leased or running task goes on; if it is queued again
/// while it is suspended, it is parked.
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
