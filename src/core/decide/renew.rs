//! Renews the lease of one task, or several leases that a worker holds.

use crate::arguments::Holder;
use crate::ids::{LeaseId, TaskId, WorkerId};
use crate::operation::{Operation, Weight};
use crate::rejection::Rejection;
use crate::reply::RenewedLeases;
use crate::row_keys::RowKeys;
use crate::task::{Status, TaskState};
use crate::working_set::{Halt, WorkingSet, need, unless_locked};

/// Renews the lease of one task.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The task whose lease is renewed.
    pub task: TaskId,
    /// Who renews it: the lease, the worker, or both.
    pub holder: Holder,
}

impl Operation for Heartbeat {
    type Reply = TaskState;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<TaskState, Halt> {
        let Self { task: id, ref holder } = *self;
        let task = set.find_task(id)?.ok_or(Rejection::TaskOrLeaseNotFound)?;
        task.held_by(holder)?;
        let task = task.clone();
        Ok(renew_lease(set, task))
    }
}

/// Renews the task's lease. A lease that is already due is renewed too, because a lease ends only by a commit.
fn renew_lease(set: &mut WorkingSet, mut task: TaskState) -> TaskState {
    let now = set.now();
    if let Some(lease) = &mut task.lease {
        lease.last_heartbeat = now;
        lease.expires_at = lease.hard_end_at.map_or(now + lease.ttl_ms, |end| end.min(now + lease.ttl_ms));
        // If the clock has stepped back, `check_at` was set while the clock was ahead.
        lease.check_at = lease.check_at.min(lease.expires_at);
    }
    if task.status == Status::Leased {
        task.status = Status::Running;
        task.updated_at = set.stamp();
        task.revision = set.put_task(task.clone());
    } else {
        task.revision = set.put_task_quietly(task.clone());
    }
    task
}

/// Renews these leases, except those that the worker no longer holds.
#[derive(Clone, Debug)]
pub struct RenewLeases {
    /// The worker that must hold the leases.
    pub worker: WorkerId,
    /// The leases to renew.
    pub leases: Vec<LeaseId>,
}

impl Operation for RenewLeases {
    type Reply = RenewedLeases;

    fn weight(&self) -> Weight {
        Weight { rows: self.leases.len(), ..Weight::default() }
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.leases.extend(self.leases.iter().copied());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<RenewedLeases, Halt> {
        let Self { worker, leases } = self;
        let mut holds = Vec::new();
        let mut lost = Vec::new();
        for id in leases {
            let task = *set.loaded.lease_tasks.get(id).ok_or_else(|| need(|keys| keys.leases.insert(*id)))?;
            let state = match task {
                // The row is locked, so the lease is neither renewed nor lost. The worker asks again with its next heartbeat.
                Some(task) => match unless_locked(set.find_task(task))? {
                    Some(state) => state,
                    None => continue,
                },
                None => None,
            };
            let holder = Holder { lease: Some(*id), worker: Some(worker.to_owned()) };
            match state {
                Some(state) if state.held_by(&holder).is_ok() => holds.push((*id, state.id)),
                _ => lost.push(*id),
            }
        }
        let mut renewed = Vec::with_capacity(holds.len());
        let (mut cancel, mut cancel_leases, mut answered) = (Vec::new(), Vec::new(), Vec::new());
        for (lease, task) in holds {
            let task = set.task(task)?.clone();
            cancel.extend(task.cancel_requested.then_some(task.id));
            cancel_leases.extend(task.cancel_requested.then_some(lease));
            answered.extend(task.is_answered().then_some(task.id));
            renew_lease(set, task);
            renewed.push(lease);
        }
        Ok(RenewedLeases { renewed, lost, cancel, cancel_leases, answered })
    }
}
