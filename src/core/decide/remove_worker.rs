//! Removes a worker, and ends its leases.

use super::lease_end::{Next, Retry, Wait, end_lease, plan, retry};
use crate::audit::{Action, Actor, Concerns, EntityType};
use crate::ids::WorkerId;
use crate::operation::Operation;
use crate::row_keys::RowKeys;
use crate::task::{Failure, LeaseStatus, Reason, TaskState};
use crate::wakeup::Subject;
use crate::working_set::{Halt, WorkingSet, need};

/// Removes a worker. Its leases end, and their tasks are queued again.
#[derive(Clone, Debug)]
pub struct RemoveWorker {
    /// The worker to remove.
    pub worker: WorkerId,
}

impl Operation for RemoveWorker {
    type Reply = ();

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.workers.insert(self.worker.clone());
        keys.worker_tasks.insert(self.worker.clone());
        keys.exact_slots.insert(self.worker.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let id = &self.worker[..];
        set.worker(id)?;
        let tasks = set.loaded.worker_tasks.get(id).cloned().ok_or_else(|| need(|keys| keys.worker_tasks.insert(id.to_owned())))?;
        let mut held = Vec::new();
        for task in tasks {
            held.extend(set.find_task(task)?.filter(|task| task.lease.as_ref().is_some_and(|lease| lease.worker_id == id)).cloned());
        }
        let slots = set.slots(id);
        if !slots.exact || slots.used.count_ones() as usize != held.len() {
            // A lease was made between the look-up and the lock.
            return Err(need(|keys| {
                keys.exact_slots.insert(id.to_owned());
                keys.worker_tasks.insert(id.to_owned());
            }));
        }
        let mut planned: Vec<(TaskState, Retry, Next)> = Vec::new();
        let mut missing = RowKeys::default();
        for task in held {
            let failure = Failure { reason: Reason::WorkerLost, message: format!("worker {id} was removed"), at: set.now() };
            let cause = Retry { give_back: true, wait: Wait::No, session_worker: None, failure, actor: Actor::Admin };
            match plan(set, &task, &cause) {
                Ok(next) => planned.push((task, cause, next)),
                Err(Halt::Need(keys)) => missing.merge(&keys),
                Err(rejected) => return Err(rejected),
            }
        }
        if missing != RowKeys::default() {
            return Err(Halt::Need(Box::new(missing)));
        }
        for (task, cause, next) in planned {
            // The retry of an earlier task of this list may have set the flag of this one.
            let mut task = set.find_task(task.id)?.cloned().unwrap_or(task);
            end_lease(set, &mut task, LeaseStatus::Failed, Some(&cause.failure));
            let detail = format!("worker {id} was removed");
            set.audit_concerning(Concerns::worker(id), Action::TaskReleased, EntityType::Task, task.id, &Actor::Admin, detail);
            retry(set, &mut task, cause, next);
            set.put_task(task);
        }
        set.audit(Action::WorkerRemoved, EntityType::Worker, id, &Actor::Admin, "");
        set.remove_worker(id);
        set.wake(Subject::Reservations(id.to_owned()));
        Ok(())
    }
}
