//! Sets the gauges: from the replica cache at each scrape, and from the heads of the queue every few seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use bloom_core::pause::PauseCause;
use bloom_core::task::Status;
use bloom_core::worker::WorkerStatus;
use bloom_engine::Engine;
use bloom_membridge::Membridge;
use bloom_store::{self as store, OutageReason, Store};
use bloom_telemetry::{MAX_AGENTS, Metrics, QueueDepth, Scraped};
use bloom_tls::Tls;

/// The heads cost a query per agent slug and priority, so they are not read at each scrape.
const QUEUE_EVERY: Duration = Duration::from_secs(5);

pub fn start(engine: &Engine, store: &Store, membridge: &Membridge, tls: Option<Tls>, metrics: &Metrics) {
    let (watched, read, membridge) = (engine.clone(), store.clone(), membridge.clone());
    metrics.before_render(move |scraped| set(scraped, &watched, &read, &membridge));
    if let Some(tls) = tls {
        metrics.before_render(move |scraped| scraped.certificate_expiry(tls.certificate().not_after.as_second()));
    }
    engine.background.spawn(follow_queue(engine.clone(), store.clone(), metrics.clone()));
}

fn set(scraped: &Scraped, engine: &Engine, store: &Store, membridge: &Membridge) {
    let stats = engine.replica.stats();
    scraped.tasks(stats.tasks_by_status);
    scraped.active_leases(stats.leases_active);
    scraped.asking(engine.replica.asking().len());
    scraped.restricted_queues(&engine.replica.queues());
    let mut workers: BTreeMap<WorkerStatus, i64> = BTreeMap::new();
    let mut pauses: BTreeMap<PauseCause, i64> = BTreeMap::new();
    let mut free_slots = 0;
    for (worker, free) in engine.replica.workers_with_free_slots() {
        *workers.entry(worker.shown_status()).or_default() += 1;
        if worker.is_online() && !worker.cordoned {
            free_slots += free;
        }
        if worker.shown_status() != WorkerStatus::Offline {
            worker.pauses.iter().for_each(|pause| *pauses.entry(pause.cause).or_default() += 1);
        }
    }
    scraped.workers(workers, free_slots);
    scraped.worker_pauses(&pauses);
    if membridge.is_configured() {
        let state = membridge.state();
        scraped.membridge(state.connected, state.consecutive_failures, state.last_success);
    }
    let outage = store.outage().map(|outage| outage.reason.as_str());
    scraped.outage(OutageReason::ALL.map(OutageReason::as_str), outage);
    let pool = store.pool_figures();
    scraped.connections(pool.size as usize, pool.idle as usize);
}

async fn follow_queue(engine: Engine, store: Store, metrics: Metrics) {
    let mut ticks = tokio::time::interval(QUEUE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = engine.background.stopped() => return,
        }
        if let Err(error) = update_queue(&engine, &store, &metrics).await {
            tracing::debug!(%error, "the head of the queue could not be read");
        }
    }
}

async fn update_queue(engine: &Engine, store: &Store, metrics: &Metrics) -> Result<(), store::Error> {
    let counts = engine.replica.counts();
    let queued: Vec<(&str, i64, i64)> = counts
        .iter()
        .filter(|((_, _, status), tasks)| *status == Status::Queued && **tasks > 0)
        .map(|((agent, priority, _), tasks)| (agent.as_str(), *priority, *tasks))
        .collect();
    let mut totals: BTreeMap<&str, i64> = BTreeMap::new();
    queued.iter().for_each(|(agent, _, tasks)| *totals.entry(agent).or_default() += tasks);
    let mut fullest: Vec<(&str, i64)> = totals.into_iter().collect();
    fullest.sort_by_key(|(_, tasks)| std::cmp::Reverse(*tasks));
    fullest.truncate(MAX_AGENTS);

    let mut depths = Vec::with_capacity(queued.len());
    for (agent, priority, tasks) in queued {
        let oldest_age_seconds =
            if fullest.iter().any(|(name, _)| *name == agent) { head_age(engine, store, agent, priority).await? } else { None };
        depths.push(QueueDepth { agent, priority, tasks, oldest_age_seconds });
    }
    metrics.scraped().queue(&depths);
    Ok(())
}

/// How long the first task of this agent and priority has been ready, in seconds.
async fn head_age(engine: &Engine, store: &Store, agent: &str, priority: i64) -> Result<Option<f64>, store::Error> {
    let ready_at = store.oldest_ready_at(agent, priority).await?;
    Ok(ready_at.map(|at| (engine.clock.now() - at).max(0) as f64 / 1000.0))
}
