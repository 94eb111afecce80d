//! The workers and what they hold, as one replica last heard of it.
//!
//! It follows commits, its own at once and others' through the change feed, so it may be a moment old. What is decided on it is a
//! hint: [`decide`](super::decide) and the database check again.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Ms;
use super::ids::{LeaseId, TaskId, WorkerId};
use super::placement::{self, Candidate};
use super::task::{Origin, TaskState};
use super::worker::{MAX_CONCURRENCY, Worker, WorkerStatus};

#[derive(Clone, Debug)]
pub struct Held {
    pub task: TaskId,
    pub lease: LeaseId,
    pub origin: Origin,
    pub context_id: String,
    pub expires_at: Ms,
    pub cancel_requested: bool,
}

#[derive(Clone, Debug)]
struct Seat {
    worker: Worker,
    held: BTreeMap<i64, Held>,
}

#[derive(Debug, Default)]
pub struct Fleet {
    seats: BTreeMap<WorkerId, Seat>,
    /// Where each held task is.
    places: HashMap<TaskId, (WorkerId, i64)>,
    /// The workers that are pushed to.
    pushed_to: BTreeSet<WorkerId>,
}

/// Why a ready task of some agent is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    NoWorker,
    Cordoned,
    NoCapacity,
}

impl Fleet {
    pub fn put_worker(&mut self, worker: Worker) {
        if !worker.is_pushed_to() {
            self.pushed_to.remove(&worker.id);
        } else if !self.pushed_to.contains(&worker.id) {
            self.pushed_to.insert(worker.id.clone());
        }
        match self.seats.get_mut(&worker.id) {
            Some(seat) => seat.worker = worker,
            None => {
                self.seats.insert(worker.id.clone(), Seat { worker, held: BTreeMap::new() });
            }
        }
    }

    pub fn remove_worker(&mut self, id: &str) {
        self.pushed_to.remove(id);
        if let Some(seat) = self.seats.remove(id) {
            for held in seat.held.values() {
                self.places.remove(&held.task);
            }
        }
    }

    pub fn seen(&mut self, id: &str, at: Ms) {
        if let Some(seat) = self.seats.get_mut(id) {
            seat.worker.last_seen = seat.worker.last_seen.max(at);
        }
    }

    /// Takes over what a task's state tells of its lease; returns the worker that got a place back.
    pub fn put_task(&mut self, task: &TaskState) -> Option<WorkerId> {
        let freed = match (&task.lease, self.places.get(&task.id)) {
            (Some(lease), Some((worker, slot))) if *worker == lease.worker_id && *slot == lease.slot => None,
            _ => self.remove_task(task.id),
        };
        if let Some(lease) = &task.lease
            && let Some(seat) = self.seats.get_mut(&lease.worker_id)
        {
            seat.held.insert(
                lease.slot,
                Held {
                    task: task.id,
                    lease: lease.id,
                    origin: lease.origin,
                    context_id: task.context_id.clone(),
                    expires_at: lease.expires_at,
                    cancel_requested: task.cancel_requested,
                },
            );
            self.places.insert(task.id, (lease.worker_id.clone(), lease.slot));
        }
        freed
    }

    pub fn remove_task(&mut self, id: TaskId) -> Option<WorkerId> {
        let (worker, slot) = self.places.remove(&id)?;
        let seat = self.seats.get_mut(&worker)?;
        if seat.held.get(&slot).is_some_and(|held| held.task == id) {
            seat.held.remove(&slot);
        }
        Some(worker)
    }

    pub fn worker(&self, id: &str) -> Option<&Worker> {
        self.seats.get(id).map(|seat| &seat.worker)
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.seats.values().map(|seat| &seat.worker)
    }

    pub fn pushed_to(&self) -> impl Iterator<Item = &Worker> {
        self.pushed_to.iter().filter_map(|id| self.worker(id))
    }

    pub fn is_anybody_pushed_to(&self) -> bool {
        !self.pushed_to.is_empty()
    }

    /// Whether this lease holds the task.
    pub fn holds(&self, task: TaskId, lease: LeaseId) -> bool {
        let place = self.places.get(&task).and_then(|(worker, slot)| self.seats.get(worker)?.held.get(slot));
        place.is_some_and(|held| held.task == task && held.lease == lease)
    }

    pub fn held(&self, worker: &str) -> impl Iterator<Item = &Held> {
        self.seats.get(worker).into_iter().flat_map(|seat| seat.held.values())
    }

    /// The places in use, a bit each.
    pub fn used(&self, worker: &str) -> u32 {
        self.seats.get(worker).map_or(0, |seat| seat.held.keys().fold(0, |used, slot| used | 1 << slot))
    }

    pub fn free(&self, worker: &str) -> i64 {
        self.seats.get(worker).map_or(0, Seat::free)
    }

    /// Whether the worker takes new tasks at all; one that is lost does, as it is back when it asks.
    pub fn takes_tasks(&self, worker: &str) -> bool {
        self.worker(worker).is_some_and(|w| w.status == WorkerStatus::Online && !w.cordoned && !w.draining)
    }

    /// A short list for a lease call (or a dispatch call, which needs an address): the few best with room, or where nobody has any, nobody.
    pub fn shortlist(&self, agent_slug: &str, context_id: &str, length: usize, needs_url: bool) -> Vec<WorkerId> {
        let mut best: Vec<Candidate<'_>> = Vec::with_capacity(length + 1);
        for seat in self.seats.values() {
            let candidate = Candidate { worker: &seat.worker, free: seat.free() };
            let is_fit = placement::may_pick(&seat.worker, agent_slug) && !(needs_url && seat.worker.url.is_empty());
            if candidate.free <= 0 || !is_fit {
                continue;
            }
            let rank = |c: &Candidate<'_>| (c.free, c.worker.last_seen);
            let at = best.iter().position(|other| rank(other) < rank(&candidate)).unwrap_or(best.len());
            if at < length {
                best.insert(at, candidate);
                best.truncate(length);
            }
        }
        let mut ids: Vec<WorkerId> = best.iter().map(|candidate| candidate.worker.id.clone()).collect();
        let runs_it = self.seats.values().find(|seat| seat.held.values().any(|held| held.context_id == context_id));
        ids.extend(runs_it.map(|seat| seat.worker.id.clone()).filter(|id| !best.iter().any(|c| c.worker.id == *id)));
        ids
    }

    /// Why nobody takes a ready task of this agent; `None` when somebody could.
    pub fn shortage(&self, agent_slug: &str) -> Option<Shortage> {
        let mut shortage = Shortage::NoWorker;
        for seat in self.seats.values().filter(|seat| seat.worker.is_online() && seat.worker.capabilities.serves(agent_slug)) {
            if seat.worker.cordoned || seat.worker.draining {
                if shortage == Shortage::NoWorker {
                    shortage = Shortage::Cordoned;
                }
            } else if seat.free() > 0 {
                return None;
            } else {
                shortage = Shortage::NoCapacity;
            }
        }
        Some(shortage)
    }

    /// Active leases that are due by now, and when the next one is.
    pub fn due_leases(&self, now: Ms, limit: usize) -> (Vec<(TaskId, LeaseId)>, Option<Ms>) {
        let mut due = Vec::new();
        let mut next: Option<Ms> = None;
        for held in self.seats.values().flat_map(|seat| seat.held.values()) {
            if held.expires_at <= now && due.len() < limit {
                due.push((held.task, held.lease));
            } else {
                next = Some(next.map_or(held.expires_at, |at| at.min(held.expires_at)));
            }
        }
        (due, next)
    }

    /// The lease is not due before this time, as the database said.
    pub fn defer(&mut self, task: TaskId, until: Ms) {
        if let Some((worker, slot)) = self.places.get(&task)
            && let Some(held) = self.seats.get_mut(worker).and_then(|seat| seat.held.get_mut(slot))
        {
            held.expires_at = until;
        }
    }

    /// Workers silent for longer than this, and when the next one may be.
    pub fn silent_workers(&self, now: Ms, silent_for_ms: i64) -> (Vec<WorkerId>, Option<Ms>) {
        let mut silent = Vec::new();
        let mut next: Option<Ms> = None;
        for worker in self.workers().filter(|worker| !worker.lost && worker.status != WorkerStatus::Offline) {
            let at = worker.last_seen + silent_for_ms + 1;
            if at <= now {
                silent.push(worker.id.clone());
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        (silent, next)
    }
}

impl Seat {
    fn free(&self) -> i64 {
        self.worker.capabilities.max_concurrency.min(MAX_CONCURRENCY) - self.held.len() as i64
    }
}
