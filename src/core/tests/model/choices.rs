//! The possible next steps of a state.

use super::state::{Act, Ask, State};
use super::{Setting, WORKERS};
use bloom_core::command::Op;
use bloom_core::ids::TaskId;
use bloom_core::origin::Origin;
use bloom_core::task::{Status, TaskState};

impl Setting {
    /// The requests that an idle replica may begin with.
    pub(super) fn asks(&self, state: &State) -> Vec<Ask> {
        let mut asks = Vec::new();
        if state.tasks.len() == 1 {
            asks.push(Ask::CreateSecond);
        }
        for worker in WORKERS {
            let some_open = state.db.tasks.values().any(|task| task.is_open_to(worker));
            if some_open && state.db.used(worker) == 0 {
                asks.push(Ask::Claim(worker));
            }
            if state.leases.iter().any(|given| {
                given.worker == worker
                    && !given.known
                    && state.db.tasks[&given.task].lease.as_ref().is_some_and(|lease| lease.id == given.id)
            }) {
                asks.push(Ask::ClaimAnew(worker));
            }
        }
        if self.calls {
            for task in state.db.tasks.values().filter(|task| task.status == Status::Queued && task.lease_count < 2) {
                asks.extend(WORKERS.map(|worker| Ask::Lease(task.id, worker)));
            }
        }
        // There is only one leader, so there is only one push at a time.
        if self.pushes && !state.replicas.iter().flatten().any(|begun| matches!(begun.op, Op::Push(_))) {
            // As with lease calls, further leases of a task add states but no new situations.
            let first = |worker: &str| state.db.ready_for(&state.db.workers[worker]).first().copied();
            let is_new = |task: TaskId| state.db.tasks[&task].lease_count < 2;
            let free = WORKERS.into_iter().filter(|worker| state.db.used(worker) == 0);
            asks.extend(free.filter(|worker| first(worker).is_some_and(is_new)).map(Ask::Push));
        }
        if self.requeues && !state.requeued {
            let failed = state.db.tasks.values().filter(|task| task.status.is_final() && task.status != Status::Completed);
            asks.extend(failed.map(|task| Ask::Requeue(task.id)));
        }
        if self.suspends {
            let suspended = state.db.tasks.values().filter(|task| task.suspend && !task.status.is_final());
            asks.extend(suspended.map(|task| Ask::Resume(task.id)));
        }
        if !state.db.wakeups.is_empty() {
            asks.push(Ask::Wake);
        }
        asks
    }

    /// All other possible steps.
    pub(super) fn acts(&self, state: &State) -> Vec<Act> {
        let mut acts = Vec::new();
        for (i, given) in state.leases.iter().enumerate() {
            let newer = state.leases[i + 1..].iter().any(|newer| newer.task == given.task);
            if given.sending && !given.known {
                acts.extend([Act::Arrive(i), Act::Refuse(i)]);
            }
            acts.extend(given.sending.then_some(Act::Lose(i)));
            if given.known || newer {
                acts.extend([Act::Beat(i), Act::Succeed(i)]);
                acts.extend(self.failures.then_some(Act::FailRetryably(i)));
            }
        }
        for task in state.db.tasks.values() {
            // An attempt whose lease was never delivered is given back, and a worker that claims again gets its lease delivered again, so
            // one such expiry is enough. Leases by call or push are not delivered again.
            let called = |task: &TaskState| task.lease.as_ref().is_some_and(|lease| lease.origin != Origin::Claim);
            if task.status == Status::Running || (task.status == Status::Leased && (task.lease_count < 2 || called(task))) {
                acts.push(Act::Expire(task.id));
            }
            if task.wake_at.is_some() {
                acts.push(Act::Due(task.id));
            }
            if self.cancels && !state.cancelled && !task.status.is_final() {
                acts.push(Act::Cancel(task.id));
            }
            if self.edits && !state.edited && task.status == Status::Queued {
                acts.push(Act::Postpone(task.id));
            }
            if self.suspends && !state.suspended && !task.status.is_final() {
                acts.push(Act::Suspend(task.id));
            }
        }
        acts
    }
}
