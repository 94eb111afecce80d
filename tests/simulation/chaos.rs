//! Faults: replicas freeze, die and restart, the database becomes unreachable, its clock steps, rows stay locked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bloom_engine::{Engine, EngineOptions};
use bloom_telemetry::Metrics;

use crate::actors::{Cluster, Replica};
use crate::database::{Condition, SimDatabase};
use crate::plan::Plan;
use crate::shared::OUTSIDER;
use crate::watcher;

pub const OFFLINE_AFTER_MS: i64 = 5_000;

/// Starts a process, and tries again until it has started.
pub async fn start(cluster: &Cluster, plan: &Plan) -> Replica {
    loop {
        let condition = Arc::new(Condition::default());
        let database = SimDatabase { shared: cluster.shared.clone(), condition: condition.clone() };
        let options = EngineOptions {
            session_wait_ms: plan.session_wait_ms,
            named_agent_wait_ms: plan.named_agent_wait_ms,
            worker_offline_after_ms: OFFLINE_AFTER_MS,
            traces: Default::default(),
            manual_clock: None,
            seed: Some(cluster.below(u64::MAX)),
        };
        let Ok(engine) = Engine::start(Arc::new(database), Metrics::new().expect("metrics"), options).await else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        let options = bloom_reconcile::ReconcileOptions {
            worker_offline_after_ms: OFFLINE_AFTER_MS,
            worker_sync_ms: 10_000,
            lease_ttl_ms: 3_000,
            task_retention_days: 0,
            audit_retention_days: 0,
            audit_is_flushed: false,
        };
        let told = Arc::default();
        tokio::spawn(watcher::watch(cluster.shared.clone(), engine.replica.subscribe(), condition.clone(), Arc::clone(&told)));
        bloom_reconcile::start(&engine, options);
        return Replica { engine, condition, told };
    }
}

fn any(cluster: &Cluster) -> (usize, Replica) {
    let replicas = cluster.replicas.lock().expect("replicas");
    let at = cluster.below(replicas.len() as u64) as usize;
    (at, replicas[at].clone())
}

pub async fn freezes(cluster: Cluster, every_sec: u64) {
    while !cluster.is_quiet_phase() {
        cluster.pause(every_sec * 2_000).await;
        let (_, replica) = any(&cluster);
        replica.condition.is_frozen.store(true, Ordering::Relaxed);
        cluster.pause(8_000).await;
        replica.condition.is_frozen.store(false, Ordering::Relaxed);
        replica.condition.thawed.notify_waiters();
    }
}

pub async fn kills(cluster: Cluster, plan: Plan, every_sec: u64) {
    while !cluster.is_quiet_phase() {
        cluster.pause(every_sec * 2_000).await;
        let (at, replica) = any(&cluster);
        replica.condition.is_dead.store(true, Ordering::Relaxed);
        cluster.pause(4_000).await;
        let next = start(&cluster, &plan).await;
        cluster.replicas.lock().expect("replicas")[at] = next;
    }
}

pub async fn outages(cluster: Cluster, every_sec: u64) {
    while !cluster.is_quiet_phase() {
        cluster.pause(every_sec * 2_000).await;
        {
            let mut state = cluster.shared.lock();
            state.is_unavailable = true;
            state.end_transactions(|_| true);
        }
        cluster.pause(9_000).await;
        cluster.shared.lock().is_unavailable = false;
    }
}

/// Another program keeps rows locked for some seconds.
pub async fn row_locks(cluster: Cluster, every_sec: u64) {
    while !cluster.is_quiet_phase() {
        cluster.pause(every_sec * 2_000).await;
        {
            let mut state = cluster.shared.lock();
            let tasks: Vec<_> = state.tables.memory.tasks.values().filter(|task| !task.status.is_final()).map(|task| task.id).collect();
            let workers: Vec<_> = state.tables.memory.workers.keys().cloned().collect();
            let (tasks, workers) = (&tasks[state.dice.some(tasks.len())], &workers[state.dice.some(workers.len())]);
            state.lock_from_outside(tasks, workers);
        }
        cluster.pause(12_000).await;
        cluster.shared.lock().end_transactions(|transaction| transaction.writer == OUTSIDER);
        cluster.shared.unlocked.notify_waiters();
    }
}

pub async fn clock_steps(cluster: Cluster, every_sec: u64) {
    while !cluster.is_quiet_phase() {
        cluster.pause(every_sec * 2_000).await;
        step_clock(&cluster).await;
    }
}

/// The clock steps and stays there, or steps forward for a moment only.
pub async fn step_clock(cluster: &Cluster) {
    let size = *[3_000_i64, 60_000, 3_600_000].get(cluster.below(3) as usize).expect("three");
    match cluster.below(4) {
        0 => cluster.shared.lock().step_clock(-size),
        1 => cluster.shared.lock().step_clock(size),
        _ => {
            {
                let mut state = cluster.shared.lock();
                state.step_clock(size);
                // A replica that reads the clock only in that moment does not notice the step, so a lease may end early.
                state.checker.has_clock_blips = true;
            }
            tokio::time::sleep(Duration::from_millis(cluster.below(1_500))).await;
            cluster.shared.lock().step_clock(-size);
        }
    }
}
