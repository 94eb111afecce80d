//! Removes a finished task on request. Retention removes tasks by their age; see `Maintenance` in the crate `bloom-database`.

use crate::audit::{Action, Actor, EntityType};
use crate::ids::TaskId;
use crate::operation::{Operation, Urgency, Weight};
use crate::rejection::Rejection;
use crate::row_keys::RowKeys;
use crate::wakeup::Subject;
use crate::working_set::{Halt, WorkingSet, need};

/// Removes a finished task with its leases, results and events. Its usage and its audit entries stay. Tasks that still wait for it are
/// cancelled.
#[derive(Clone, Debug)]
pub struct Delete {
    /// The task to remove.
    pub task: TaskId,
}

impl Operation for Delete {
    type Reply = ();

    fn weight(&self) -> Weight {
        // A task may have 10,000 events.
        Weight { rows: 1_000, ..Weight::default() }
    }

    fn urgency(&self) -> Urgency {
        Urgency::Bulk
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let id = self.task;
        let task = set.task(id)?;
        if !task.status.is_final() {
            return Err(Rejection::CannotDelete(task.status).into());
        }
        // The rows that this batch writes for the task must be in the database before they can be removed from there.
        if set.dirty.tasks.contains(&id) {
            return Err(need(|keys| keys.tasks.insert(id)));
        }
        let task = task.clone();
        set.audit(Action::TaskDeleted, EntityType::Task, id, &Actor::Admin, format!("was {}", task.status));
        set.remove_task(&task);
        // It has finished, but tasks that also wait for other tasks check it again, and then find that it is gone.
        set.wake(Subject::Dependents(id));
        Ok(())
    }
}
