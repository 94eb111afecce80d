//! Heartbeats and events of runs.

use super::super::arguments::{Holder, NewEvent};
use super::super::event::{EventKind, TaskEvent};
use super::super::ids::{LeaseId, TaskId, WorkerId};
use super::super::limits::RUN_EVENTS_BYTES;
use super::super::operation::{Operation, Weight};
use super::super::rejection::Rejection;
use super::super::reply::{Recorded, RenewedLeases};
use super::super::row_keys::RowKeys;
use super::super::task::{Status, TaskState};
use super::super::working_set::{Halt, WorkingSet, need, unless_locked};

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

/// Leases that are due are renewed too: a lease ends only by a commit.
fn renew_lease(set: &mut WorkingSet, mut task: TaskState) -> TaskState {
    let now = set.now();
    if let Some(lease) = &mut task.lease {
        lease.last_heartbeat = now;
        lease.expires_at = lease.hard_end_at.map_or(now + lease.ttl_ms, |end| end.min(now + lease.ttl_ms));
        // If the clock has stepped back, `check_at` was set by a clock that was ahead.
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

/// Renews those of these leases that the worker still holds.
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
                // The lease is neither renewed nor lost: the worker asks again with its next heartbeat.
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

/// Stands for the first event of a run that is not kept, and for all that follow.
const CUT: &str = r#"{"phase":"events_cut","text":"the run has too many events; the rest is not kept"}"#;

/// Records events of a run. Events whose `seq` this lease has sent before are skipped.
#[derive(Clone, Debug)]
pub struct AppendEvents {
    /// The task of the run.
    pub task: TaskId,
    /// The lease of the run: the active one, or the last one if none is active.
    pub lease: LeaseId,
    /// Refuses them if the lease is another worker's.
    pub worker: Option<WorkerId>,
    /// The events in the order of their `seq`.
    pub events: Vec<NewEvent>,
}

impl Operation for AppendEvents {
    type Reply = Recorded;

    fn weight(&self) -> Weight {
        Weight { rows: 1 + self.events.len(), bytes: self.events.iter().map(|event| 64 + event.data.len()).sum() }
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Recorded, Halt> {
        let Self { task: id, lease, ref worker, ref events } = *self;
        let task = set.task(id)?;
        task.check_events(&Holder { lease: Some(lease), worker: worker.clone() })?;
        let mut task = task.clone();
        let known = task.event_seq;
        for event in events {
            if event.seq <= task.event_seq {
                continue;
            }
            task.event_seq = event.seq;
            if task.event_bytes > RUN_EVENTS_BYTES {
                continue;
            }
            task.event_bytes += i64::try_from(event.data.len()).unwrap_or(i64::MAX / 2);
            let is_cut = task.event_bytes > RUN_EVENTS_BYTES;
            task.event_count += 1;
            set.dirty.events.push(TaskEvent {
                task_id: id,
                number: task.event_count,
                lease_id: lease,
                seq: event.seq,
                kind: if is_cut { EventKind::Lifecycle } else { event.kind },
                at: event.at,
                data: if is_cut { CUT.to_owned() } else { event.data.clone() },
            });
        }
        let newest = task.event_count;
        if task.event_seq > known {
            set.put_task_quietly(task);
        }
        Ok(Recorded { newest })
    }
}
