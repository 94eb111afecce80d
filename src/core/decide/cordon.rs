//! Cordons, uncordons and drains a worker.

use super::change_worker::reply;
use crate::arguments::CordonChange;
use crate::audit::{Action, Actor, EntityType};
use crate::ids::WorkerId;
use crate::operation::Operation;
use crate::reply::ChangedWorker;
use crate::row_keys::RowKeys;
use crate::wakeup::Subject;
use crate::worker::Worker;
use crate::working_set::{Halt, WorkingSet};

/// Cordons, uncordons or drains a worker.
#[derive(Clone, Debug)]
pub struct Cordon {
    /// The worker to cordon, uncordon or drain.
    pub worker: WorkerId,
    /// Which of these to do.
    pub change: CordonChange,
}

impl Operation for Cordon {
    type Reply = ChangedWorker;

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.workers.insert(self.worker.clone());
        keys.exact_slots.insert(self.worker.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ChangedWorker, Halt> {
        let (id, change) = (&self.worker[..], self.change);
        let before = set.worker(id)?.clone();
        let (cordoned, draining, action) = match change {
            CordonChange::Cordon => (true, before.draining, Action::WorkerCordoned),
            CordonChange::Uncordon => (false, false, Action::WorkerUncordoned),
            CordonChange::Drain => (true, true, Action::WorkerDraining),
        };
        let mut worker = Worker { cordoned, draining, ..before.clone() };
        if worker != before {
            set.audit(action, EntityType::Worker, id, &Actor::Admin, "");
            worker = set.put_worker(worker);
            if !worker.takes_tasks() {
                set.wake(Subject::Reservations(worker.id.clone()));
            }
        }
        Ok(reply(set, worker, false))
    }
}
