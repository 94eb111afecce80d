//! Pushes: leasing a task to be sent to a worker's agent, and ending that lease if the push failed.
//!
//! The lease is made before the task is sent, and only the process that made it sends the task, once. If that process dies, the lease
//! expires.

use super::finish::finish;
use super::lease::{best, blocker, leased, sticky_worker};
use super::lease_end::{Retry, Wait, end_lease, plan, retry};
use super::readiness::park;
use crate::arguments::PushEnd;
use crate::audit::{Action, Actor, Concerns, EntityType};
use crate::ids::{LeaseId, TaskId, WorkerId};
use crate::operation::Operation;
use crate::origin::Origin;
use crate::rejection::Rejection;
use crate::reply::Pushed;
use crate::row_keys::RowKeys;
use crate::task::{Failure, LeaseStatus, Reason, Session, Status, TaskState};
use crate::worker::Worker;
use crate::working_set::{Halt, WorkingSet};

/// Leases a ready task to the best loaded worker that is pushed to: this worker, or the one that the task's context prefers.
#[derive(Clone, Debug)]
pub struct Push {
    /// The task to lease.
    pub task: TaskId,
    /// A worker that is pushed to and seems to have a free slot.
    pub worker: WorkerId,
    /// How long the lease lasts without a heartbeat, in ms.
    pub ttl_ms: i64,
}

impl Operation for Push {
    type Reply = Pushed;

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.places = true;
        keys.tasks.insert(self.task);
        keys.workers.insert(self.worker.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Pushed, Halt> {
        let Self { task: id, ref worker, ttl_ms } = *self;
        let task = set.task(id)?;
        task.check_queued()?;
        if let Some(parked) = task.parked.filter(|_| !task.is_open_to(worker)) {
            return Err(Rejection::NotReady(parked).into());
        }
        if let Some(closed) = set.closed(&task.agent_slug)? {
            return Err(Rejection::QueueClosed(closed).into());
        }
        if let Some((parked, by)) = blocker(set, task)? {
            park(set, id, parked, by);
            return Ok(Pushed::Parked(set.task(id)?.clone()));
        }
        // A session task already has the worker of its session recorded, and its reservation for that worker has ended.
        let sticky = match task.session {
            Session::Context => task.session_worker.clone(),
            Session::None => sticky_worker(set.context(&task.context_id)?, set.now()),
        };
        set.find_worker(worker)?;
        let worker = best(set, task, sticky.as_deref(), Worker::is_pushed_to)?.ok_or(Rejection::NoWorker)?;
        leased(set, id, &worker, Origin::Push, ttl_ms).map(Pushed::Leased)
    }
}

/// Handles a failed push, by ending its lease.
#[derive(Clone, Debug)]
pub struct EndPush {
    /// The task that was pushed.
    pub task: TaskId,
    /// The lease that was made for the push.
    pub lease: LeaseId,
    /// How the push failed, which decides what happens to the task.
    pub end: PushEnd,
}

impl Operation for EndPush {
    type Reply = TaskState;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.insert(self.task);
    }

    /// Changes nothing if the lease has already ended, by a completion, its expiry or the worker's removal.
    fn decide(&self, set: &mut WorkingSet) -> Result<TaskState, Halt> {
        let Self { task: id, lease, ref end } = *self;
        let task = set.task(id)?;
        let has_begun = matches!(end, PushEnd::Undelivered { unless_running: true, .. }) && task.status == Status::Running;
        let Some(active) = task.lease.as_ref().filter(|active| active.id == lease && !has_begun) else { return Ok(task.clone()) };
        let actor = Actor::of(active.origin);
        let (PushEnd::Refused { message } | PushEnd::Undelivered { message, .. }) = end;
        let failure = |reason| Failure { reason, message: message.clone(), at: set.now() };
        let retried = match end {
            PushEnd::Refused { .. } => None,
            PushEnd::Undelivered { .. } => {
                let failure = failure(Reason::WorkerLost);
                let cause = Retry { give_back: true, wait: Wait::No, session_worker: None, failure, actor: actor.clone() };
                let next = plan(set, task, &cause)?;
                Some((cause, next))
            }
        };
        let refused = failure(Reason::AgentError);
        let mut task = task.clone();
        let failure = retried.as_ref().map_or(&refused, |(cause, _)| &cause.failure);
        let ended = end_lease(set, &mut task, LeaseStatus::Failed, Some(failure));
        let concerns = Concerns { worker: ended.as_ref().map(|lease| lease.worker_id.as_str()), ..Concerns::default() };
        set.audit_concerning(concerns, Action::DispatchFailed, EntityType::Task, id, &actor, message);
        if let Some((cause, next)) = retried {
            retry(set, &mut task, cause, next);
        } else {
            task.failure = Some(if task.cancel_requested { refused.of_cancelled(set.now()) } else { refused });
            if task.cancel_requested {
                set.audit(Action::TaskCancelled, EntityType::Task, id, &actor, message);
            }
            let status = if task.cancel_requested { Status::Cancelled } else { Status::Failed };
            finish(set, &mut task, status);
        }
        task.revision = set.put_task(task.clone());
        Ok(task)
    }
}
