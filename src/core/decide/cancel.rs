//! Cancels a task.

use super::finish::finish;
use crate::audit::{Action, Actor, EntityType};
use crate::ids::TaskId;
use crate::operation::Operation;
use crate::rejection::Rejection;
use crate::row_keys::RowKeys;
use crate::task::{Status, TaskState};
use crate::working_set::{Halt, WorkingSet};

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
            // An earlier attempt may have failed, but the task ends because of the request.
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
