//! The choice of a worker for a task.

use super::Ms;
use super::requirement::Requirement;
use super::worker::Worker;

/// For this long after a completed lease, its worker is preferred for tasks of the same context.
pub const STICKY_FOR_MS: Ms = 24 * 60 * 60 * 1000;

/// A worker among which [`best`] chooses.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The worker as it is known.
    pub worker: &'a Worker,
    /// Free slots.
    pub free: i64,
}

/// Whether the server may choose this worker for a task that requires this. Claims have their own rule.
pub fn may_pick(worker: &Worker, required: Requirement<'_>) -> bool {
    is_open(worker) && worker.serves(required)
}

/// As [`may_pick`], for any task.
pub fn is_open(worker: &Worker) -> bool {
    worker.is_online() && worker.capabilities.claude_cli && !worker.cordoned && !worker.draining
}

/// Whether a task that requires this is kept for the worker for a while: it names the task's agent and takes tasks. A worker whose accounts
/// for this agent are paused does not: it no longer names the agent, or is not online.
pub fn is_kept_for(worker: &Worker, required: Requirement<'_>) -> bool {
    worker.capabilities.names_agent(required.agent_slug) && worker.is_worth_waiting_for(required)
}

/// The clocks of replicas may differ by as much as this from that of the database.
const CLOCK_SLACK_MS: Ms = 500;

/// Until when a task that could run since then is kept for workers that name its agent; `None` if that is over. So it is when the clock was set
/// back: else the task would be kept for as long as that.
pub fn kept_until(ready_at: Ms, wait: Ms, now: Ms) -> Option<Ms> {
    let until = ready_at.saturating_add(wait);
    (wait > 0 && ready_at <= now.saturating_add(CLOCK_SLACK_MS) && now < until).then_some(until)
}

/// Among workers with free slots: the sticky one, else one that names the agent, else the one with the most free slots, else the one seen
/// last. Ties are broken by name, so that the choice is deterministic.
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
