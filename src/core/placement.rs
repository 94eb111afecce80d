//! The choice of a worker for a task.

use super::Ms;
use super::requirement::Requirement;
use super::worker::Worker;

/// How long after a completed lease its worker is preferred for tasks of the same context.
pub const STICKY_FOR_MS: Ms = 24 * 60 * 60 * 1000;

/// A worker that [`best`] may choose.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The worker's row, as loaded or cached.
    pub worker: &'a Worker,
    /// The number of free slots.
    pub free: i64,
}

/// Whether the server may choose this worker for a task with this requirement. Claims have a separate rule.
pub fn may_pick(worker: &Worker, required: Requirement<'_>) -> bool {
    is_open(worker) && worker.serves(required)
}

/// Like [`may_pick`], for any task.
pub fn is_open(worker: &Worker) -> bool {
    worker.is_online() && worker.capabilities.claude_cli && !worker.cordoned && !worker.draining
}

/// Whether a task with this requirement is kept for the worker for a while, because the worker names the task's agent and takes tasks. A
/// worker whose accounts for this agent are paused does not qualify, because it no longer names the agent, or is not online.
pub fn is_kept_for(worker: &Worker, required: Requirement<'_>) -> bool {
    worker.capabilities.names_agent(required.agent_slug) && worker.is_worth_waiting_for(required)
}

/// How far the clocks of replicas may differ from the database's clock.
const CLOCK_SLACK_MS: Ms = 500;

/// Until when a task that has been ready since `ready_at` is kept for workers that name its agent; `None` if that time is over. It is also
/// `None` if `ready_at` is in the future because the clock was set back; otherwise the task would be kept for that much longer.
pub fn kept_until(ready_at: Ms, wait: Ms, now: Ms) -> Option<Ms> {
    let until = ready_at.saturating_add(wait);
    (wait > 0 && ready_at <= now.saturating_add(CLOCK_SLACK_MS) && now < until).then_some(until)
}

/// The best worker with free slots: the sticky one, then one that names the agent, then the one with the most free slots, then the one seen
/// most recently. Ties are broken by name, so that the choice is deterministic.
pub fn best<'a>(candidates: impl Iterator<Item = Candidate<'a>>, agent_slug: &str, sticky: Option<&str>) -> Option<&'a Worker> {
    candidates
        .filter(|candidate| candidate.free > 0)
        .max_by(|a, b| {
            let names = |worker: &Worker| worker.capabilities.names_agent(agent_slug);
            let rank = |c: &Candidate<'a>| (sticky == Some(c.worker.id.as_str()), names(c.worker), c.free, c.worker.last_seen);
            rank(a).cmp(&rank(b)).then_with(|| b.worker.id.cmp(&a.worker.id))
        })
        .map(|candidate| candidate.worker)
}
