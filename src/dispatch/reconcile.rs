//! Leases ready tasks to the workers that are pushed to. The pushes run in tasks of their own, so this loop does not wait for agents.

use super::Agents;
use bloom_core::Ms;
use bloom_core::command::Rejection;
use bloom_engine::Error;
use bloom_reconcile::{RECONCILE_EVERY_MS, ReconcileContext};

/// The maximum number of tasks leased in one round.
const AT_ONCE: usize = 64;
/// The pause while the maximum number of pushes is in progress.
const FULL_MS: Ms = 1_000;

/// Pushes ready tasks to agents while this replica leads. Ends with the engine.
pub async fn run(context: ReconcileContext, agents: Agents) {
    let engine = context.engine.clone();
    context.run("push", &engine.alarms.push_due, RECONCILE_EVERY_MS, |context| reconcile(context, agents.clone())).await;
}

async fn reconcile(context: ReconcileContext, agents: Agents) -> Result<Option<Ms>, Error> {
    let engine = &context.engine;
    let Some(epoch) = context.leadership.epoch() else { return Ok(None) };
    let check_at = agents.check_due();
    let max = agents.free_permits().min(AT_ONCE);
    if max == 0 {
        return Ok(Some(engine.clock.now() + FULL_MS));
    }
    let round = engine.pushes.push(epoch, max, context.options.lease_ttl_ms, |worker| agents.is_reachable(worker)).await;
    context.progress.add(round.leased.len() as u64);
    for (task, worker) in round.leased {
        agents.begin(task, worker);
    }
    match round.error {
        Some(Error::Rejected(Rejection::NotLeader)) => Ok(context.step_down()),
        Some(error) => Err(error),
        None => Ok([check_at, round.next_at].into_iter().flatten().min()),
    }
}
