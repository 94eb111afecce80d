//! All reconcilers on a database whose errors and delays the tests control. Time is virtual: it passes only while all loops wait.

mod counts;
mod expire;
mod leader;
mod liveness;
mod maintenance;
mod service;
mod timers;
mod wakeups;

use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_core::command::Requester;
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::{Session, TaskSpec, TaskState};
use bloom_core::worker::Worker;
use bloom_engine::{Engine, EngineOptions};
use bloom_telemetry::Metrics;
use bloom_test_database::scripted::ScriptedDatabase;
use bloom_test_world::world::{registration, spec};

use super::{ReconcileContext, ReconcileOptions, start};

const OFFLINE_AFTER_MS: Ms = 60_000;

/// A replica with all its reconcilers.
struct Replica {
    database: ScriptedDatabase,
    engine: Engine,
    context: ReconcileContext,
}

/// A replica that leads and never removes tasks or audit entries.
async fn replica() -> Replica {
    Replica::start(ScriptedDatabase::default(), 1, 0, 0).await
}

impl Replica {
    /// Each replica of a test needs its own `seed`, so that their ids differ.
    async fn start(database: ScriptedDatabase, seed: u64, task_retention_days: u32, audit_retention_days: u32) -> Self {
        let options = EngineOptions {
            session_wait_ms: 0,
            named_agent_wait_ms: 0,
            worker_offline_after_ms: OFFLINE_AFTER_MS,
            traces: Default::default(),
            manual_clock: None,
            seed: Some(seed),
        };
        let engine = Engine::start(Arc::new(database.clone()), Metrics::new().unwrap(), options).await.unwrap();
        let options = ReconcileOptions {
            worker_offline_after_ms: OFFLINE_AFTER_MS,
            worker_sync_ms: 10_000,
            lease_ttl_ms: 60_000,
            task_retention_days,
            audit_retention_days,
            audit_is_flushed: false,
        };
        let context = start(&engine, options);
        // From now on all loops wait.
        pass(50).await;
        Self { database, engine, context }
    }

    /// Another replica on the same database, which leads only if this one does not.
    async fn beside(&self) -> Self {
        Self::start(self.database.beside(), 2, 0, 0).await
    }

    fn epoch(&self) -> Option<i64> {
        self.context.leadership.epoch()
    }

    async fn register(&self, worker: &str) {
        self.engine.writers.submit(registration(worker, 10)).await.unwrap();
    }

    async fn create(&self, change: impl FnOnce(&mut TaskSpec)) -> TaskId {
        let mut task = TaskSpec { session: Session::None, ..spec("c") };
        change(&mut task);
        self.engine.writers.submit(op::Create { tasks: vec![task] }).await.unwrap()[0].state.id
    }

    /// A task that the worker holds, with a lease of this TTL.
    async fn leased(&self, worker: &str, ttl_ms: Ms) -> TaskId {
        let task = self.create(|_| {}).await;
        self.engine.lease(task, Some(worker.into()), ttl_ms, Requester::default()).await.unwrap();
        task
    }

    async fn heartbeat(&self, task: TaskId) {
        self.engine.writers.submit(op::Heartbeat { task, holder: bloom_core::command::Holder::default() }).await.unwrap();
    }

    async fn cancel(&self, task: TaskId) {
        self.engine.writers.submit(op::Cancel { task }).await.unwrap();
    }

    fn task(&self, id: TaskId) -> TaskState {
        self.database.tables().memory.tasks[&id].clone()
    }

    fn is_held(&self, task: TaskId) -> bool {
        self.task(task).lease.is_some()
    }

    fn worker(&self, id: &str) -> Worker {
        self.database.tables().memory.workers[id].clone()
    }

    /// Waits until this predicate holds. Returns how long that took.
    async fn until(&self, holds: impl Fn(&Self) -> bool) -> Ms {
        let started = tokio::time::Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < Duration::from_secs(150), "the condition does not hold in time");
            pass(1).await;
        }
        started.elapsed().as_millis() as Ms
    }
}

/// Lets virtual time pass.
async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
