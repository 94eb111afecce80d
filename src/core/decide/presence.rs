//! The presence of a worker: when it was last seen, and when it is marked offline.

use crate::Ms;
use crate::arguments::Loss;
use crate::audit::{Action, Actor, EntityType};
use crate::ids::WorkerId;
use crate::operation::{Operation, Weight};
use crate::reply::Due;
use crate::row_keys::RowKeys;
use crate::wakeup::Subject;
use crate::worker::{Worker, WorkerStatus};
use crate::working_set::{Halt, WorkingSet, unless_locked};

/// Records that the worker is seen now. A worker that was marked offline is no longer lost, so its own status is shown again.
pub(super) fn see(set: &mut WorkingSet, worker: Worker) -> Worker {
    let at = set.now();
    see_at(set, worker, at)
}

fn see_at(set: &mut WorkingSet, mut worker: Worker, at: Ms) -> Worker {
    // A time in the future was written before the clock stepped back.
    worker.last_seen = if worker.last_seen > set.now() { at } else { worker.last_seen.max(at) };
    if worker.lost {
        worker.lost = false;
        audit_return(set, &worker);
        worker = set.put_worker(worker);
    } else {
        set.dirty.seen.insert(worker.id.clone());
        set.loaded.workers.insert(worker.id.clone(), Some(worker.clone()));
    }
    worker
}

pub(super) fn audit_return(set: &mut WorkingSet, worker: &Worker) {
    set.audit(Action::WorkerOnline, EntityType::Worker, &worker.id, &Actor::Worker(worker.id.clone()), "seen again");
}

/// Records when these workers were seen.
#[derive(Clone, Debug)]
pub struct RecordLastSeen {
    /// The workers, and when each of them was seen. A time that is earlier than the recorded one changes nothing.
    pub last_seen: Vec<(WorkerId, Ms)>,
}

impl Operation for RecordLastSeen {
    type Reply = ();

    fn weight(&self) -> Weight {
        Weight { rows: self.last_seen.len(), ..Weight::default() }
    }

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.workers.extend(self.last_seen.iter().map(|(worker, _)| worker.clone()));
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let last_seen = &self.last_seen;
        for (id, _) in last_seen {
            unless_locked(set.find_worker(id))?;
        }
        for (id, at) in last_seen {
            // A `last_seen` from before the worker was marked offline has arrived late. It must not bring the worker back.
            let is_news = |worker: &&Worker| !(worker.lost && *at < worker.updated_at);
            let is_later = |worker: &&Worker| worker.last_seen < *at || worker.last_seen > set.now();
            if let Some(worker) = unless_locked(set.find_worker(id))?.flatten().filter(is_news).filter(is_later) {
                let worker = worker.clone();
                let at = (*at).min(set.now());
                see_at(set, worker, at);
            }
        }
        Ok(())
    }
}

/// Marks the worker offline until it is seen again.
#[derive(Clone, Debug)]
pub struct MarkOffline {
    /// The worker to mark offline.
    pub worker: WorkerId,
    /// Why it is marked offline.
    pub cause: Loss,
}

impl Operation for MarkOffline {
    type Reply = Due;

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.workers.insert(self.worker.clone());
    }

    /// The leases of the worker continue, and each ends by its own expiry.
    fn decide(&self, set: &mut WorkingSet) -> Result<Due, Halt> {
        let (id, cause) = (&self.worker[..], &self.cause);
        let Some(worker) = set.find_worker(id)? else { return Ok(Due::Done) };
        let mut worker = worker.clone();
        if let Loss::Uninstalled = cause {
            set.audit(Action::AgentUninstalled, EntityType::Worker, id, &Actor::Admin, "");
            worker.agent_version = "uninstalled".into();
        } else if worker.lost || worker.status == WorkerStatus::Offline {
            return Ok(Due::Done);
        }
        if worker.last_seen > set.now() {
            // The clock has stepped back. The time without a sign of life is counted from now on.
            see(set, worker);
            return Ok(Due::Later(set.now() + 1));
        }
        let (actor, detail) = match cause {
            Loss::Silent { for_ms, served_since, has_started } => {
                let was_silent = *has_started && served_since - worker.last_seen > *for_ms;
                let counted_from = if was_silent { worker.last_seen } else { worker.last_seen.max(*served_since) };
                if set.now() - counted_from <= *for_ms {
                    return Ok(Due::Later(counted_from + for_ms + 1));
                }
                (Actor::Reconciler, format!("not seen for more than {} s", for_ms / 1000))
            }
            Loss::Unreachable(error) => (Actor::Admin, format!("its agent does not answer: {error}")),
            Loss::Uninstalled => (Actor::Admin, "its agent was uninstalled".into()),
            Loss::PodEnded => (Actor::Reconciler, "its pod has ended".into()),
        };
        if !worker.lost && worker.status != WorkerStatus::Offline {
            set.audit(Action::WorkerOffline, EntityType::Worker, id, &actor, detail);
        }
        worker.lost = true;
        set.put_worker(worker);
        set.wake(Subject::Reservations(id.to_owned()));
        Ok(Due::Done)
    }
}
