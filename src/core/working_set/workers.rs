//! The workers of a working set, and their slots.

use super::{Halt, Slots, WorkingSet, need};
use crate::rejection::Rejection;
use crate::worker::Worker;

impl WorkingSet {
    /// The worker, or `None` if it does not exist.
    ///
    /// # Errors
    /// It is not loaded, or is locked.
    pub fn find_worker(&self, id: &str) -> Result<Option<&Worker>, Halt> {
        match self.loaded.workers.get(id) {
            Some(worker) => Ok(worker.as_ref()),
            None if self.loaded.locked_workers.contains(id) => Err(Halt::Locked),
            None => Err(need(|keys| keys.workers.insert(id.to_owned()))),
        }
    }

    /// The worker, which must exist.
    ///
    /// # Errors
    /// It does not exist, is not loaded, or is locked.
    pub fn worker(&self, id: &str) -> Result<&Worker, Halt> {
        self.find_worker(id)?.ok_or(Halt::Rejected(Rejection::WorkerNotFound))
    }

    /// The worker, possibly as it was a moment ago. Use this for decisions that need only a hint.
    pub fn observed_worker(&self, id: &str) -> Result<Option<&Worker>, Halt> {
        match self.loaded.workers.get(id).or_else(|| self.loaded.observed_workers.get(id)) {
            Some(worker) => Ok(worker.as_ref()),
            None if self.loaded.locked_workers.contains(id) => Err(Halt::Locked),
            None => Err(need(|keys| keys.observed_workers.insert(id.to_owned()))),
        }
    }

    /// The worker's used slots. If they were not loaded, the answer is an inexact empty set.
    pub fn slots(&self, worker: &str) -> Slots {
        self.loaded.slots.get(worker).copied().unwrap_or(Slots { used: 0, exact: false })
    }

    /// Writes a worker with the next revision. Returns the worker as it is written.
    pub fn put_worker(&mut self, mut worker: Worker) -> Worker {
        worker.revision = self.next_worker_revision(&worker.id);
        worker.updated_at = self.stamp();
        self.dirty.removed_workers.remove(&worker.id);
        self.dirty.workers.insert(worker.id.clone());
        self.dirty.seen.insert(worker.id.clone());
        self.loaded.workers.insert(worker.id.clone(), Some(worker.clone()));
        worker
    }

    /// Removes a worker. Its row stays as a tombstone for a while, so that the revision keeps rising.
    pub fn remove_worker(&mut self, id: &str) {
        self.next_worker_revision(id);
        self.dirty.workers.remove(id);
        self.dirty.seen.remove(id);
        self.dirty.removed_workers.insert(id.to_owned());
        self.loaded.workers.insert(id.to_owned(), None);
    }

    fn next_worker_revision(&mut self, id: &str) -> i64 {
        let revision = self.loaded.worker_revisions.entry(id.to_owned()).or_default();
        *revision += 1;
        *revision
    }
}
