//! Which worker a task goes to.

use super::Ms;
use super::worker::Worker;

/// For so long after a completed lease its worker is preferred for the same context.
pub const STICKY_FOR_MS: Ms = 24 * 60 * 60 * 1000;

#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub worker: &'a Worker,
    /// Places left.
    pub free: i64,
}

/// Whether somebody other than the worker itself may give it a task of this agent.
pub fn may_pick(worker: &Worker, agent_slug: &str) -> bool {
    is_open(worker) && worker.capabilities.serves(agent_slug)
}

/// The same, of whatever agent it serves.
pub fn is_open(worker: &Worker) -> bool {
    worker.is_online() && worker.capabilities.claude_cli && !worker.cordoned && !worker.draining
}

/// Of those with room: the sticky one, else the one with most room, else the one seen last; then by name, so that the answer is one.
pub fn best<'a>(candidates: impl Iterator<Item = Candidate<'a>>, sticky: Option<&str>) -> Option<&'a Worker> {
    candidates
        .filter(|candidate| candidate.free > 0)
        .max_by(|a, b| {
            let rank = |c: &Candidate<'a>| (sticky == Some(c.worker.id.as_str()), c.free, c.worker.last_seen);
            rank(a).cmp(&rank(b)).then_with(|| b.worker.id.cmp(&a.worker.id))
        })
        .map(|candidate| candidate.worker)
}
