//! The choice of a worker for a task.

use super::Ms;
use super::requirement::Requirement;
use super::worker::Worker;

/// For this long after a completed lease, its worker is preferred for tasks of the same context.
pub const STICKY_FOR_MS: Ms = 24 * 60 * 60 * 1000;

#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub worker: &'a Worker,
    /// Free slots.
    pub free: i64,
}

/// Whether the server may choose this worker for a task that requires this. Claims have their own rule.
pub fn may_pick(worker: &Worker, required: Requirement<'_>) -> bool {
    is_open(worker) && worker.capabilities.serves(required)
}

/// As [`may_pick`], for any task.
pub fn is_open(worker: &Worker) -> bool {
    worker.is_online() && worker.capabilities.claude_cli && !worker.cordoned && !worker.draining
}

/// Among workers with free slots: the sticky one, else the one with the most free slots, else the one seen last. Ties are broken by name,
/// so that the choice is deterministic.
pub fn best<'a>(candidates: impl Iterator<Item = Candidate<'a>>, sticky: Option<&str>) -> Option<&'a Worker> {
    candidates
        .filter(|candidate| candidate.free > 0)
        .max_by(|a, b| {
            let rank = |c: &Candidate<'a>| (sticky == Some(c.worker.id.as_str()), c.free, c.worker.last_seen);
            rank(a).cmp(&rank(b)).then_with(|| b.worker.id.cmp(&a.worker.id))
        })
        .map(|candidate| candidate.worker)
}
