//! The state that a task must be in for a call, independent of the content of the request.
//!
//! Commands check it in their commit. The HTTP server also checks it when the content of a request is invalid, because the contract gives
//! the errors below precedence over errors of content.

use super::arguments::Holder;
use super::ids::{LeaseId, WorkerId};
use super::rejection::Rejection;
use super::task::{ActiveLease, Parked, Status, TaskState};

impl TaskState {
    /// Checks that a lease call can take the task. The order of its context and reservations do not restrict such calls.
    pub fn check_leasable(&self) -> Result<(), Rejection> {
        self.check_queued()?;
        match self.parked {
            Some(_) if self.suspend => Err(Rejection::NotReady(Parked::Suspended)),
            Some(parked @ (Parked::DependsOn | Parked::Suspended | Parked::NotBefore | Parked::ExclusiveKey)) => {
                Err(Rejection::NotReady(parked))
            }
            Some(Parked::Session | Parked::Reserved) | None => Ok(()),
        }
    }

    /// Checks that the task waits in the queue, whether parked or not.
    ///
    /// # Errors
    /// The task is leased or running, or has ended.
    pub fn check_queued(&self) -> Result<(), Rejection> {
        if self.status == Status::Queued { Ok(()) } else { Err(Rejection::WrongStatus { status: self.status, expected: "'queued'" }) }
    }

    /// The active lease, unless another lease was named.
    pub fn active_lease(&self, named: Option<LeaseId>) -> Result<&ActiveLease, Rejection> {
        let lease = self.lease.as_ref().ok_or(Rejection::LeaseNotFound)?;
        match named.filter(|named| *named != lease.id) {
            Some(named) => Err(Rejection::NotTheActiveLease(named.to_string())),
            None => Ok(lease),
        }
    }

    /// The active lease, unless another lease or another worker was named.
    pub fn held_by(&self, holder: &Holder) -> Result<&ActiveLease, Rejection> {
        if self.lease.is_none() && self.lease_count == 0 {
            return Err(Rejection::TaskOrLeaseNotFound);
        }
        let lease = self.active_lease(holder.lease)?;
        holder.must_be(&lease.worker_id)?;
        Ok(lease)
    }

    /// Whether this lease was the task's last one and no lease is active now.
    pub fn ended_last(&self, lease: LeaseId) -> bool {
        self.lease.is_none() && self.last_lease.as_ref().is_some_and(|last| last.id == lease)
    }

    /// Checks that this sender may send events of a run. A run may do so while it holds the lease, and after that until the next lease
    /// begins.
    pub fn check_events(&self, sender: &Holder) -> Result<(), Rejection> {
        match self.last_lease.as_ref().filter(|last| self.lease.is_none() && sender.lease == Some(last.id)) {
            Some(last) => sender.must_be(&last.worker_id),
            None => sender.must_be(&self.active_lease(sender.lease)?.worker_id),
        }
    }

    /// Why a completion is refused if its lease is not the active one.
    pub fn not_completable(&self, not_held: Rejection) -> Rejection {
        match not_held {
            Rejection::NotTheActiveLease(_) => not_held,
            _ => Rejection::WrongStatus { status: self.status, expected: "'leased' or 'running'" },
        }
    }
}

impl Holder {
    /// Rejects a worker other than the one that has, or had, the lease.
    fn must_be(&self, worker: &WorkerId) -> Result<(), Rejection> {
        match self.worker.as_ref().filter(|named| *named != worker) {
            Some(named) => Err(Rejection::NotTheActiveLease(self.lease.map_or_else(|| named.clone(), |id| id.to_string()))),
            None => Ok(()),
        }
    }
}
