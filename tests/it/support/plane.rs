//! A control plane inside the test's process, on a clock that the test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bloom_core::audit::Actor;
use bloom_core::command::{Op, Reply, WorkerChange};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::{TaskSpec, TaskState};
use bloom_dispatch::{self as dispatch, Agents};
use bloom_engine::{self as engine, Engine};
use bloom_reconcile as reconcile;
use bloom_store::{Clock, Store, StoreOptions};
use bloom_telemetry::Metrics;
use sqlx::Connection;

use super::{eventually, postgres, unique};

pub const START: i64 = 1_800_000_000_000;
pub const DAY: i64 = 86_400_000;

/// A control plane without the HTTP server, on a clock that the test sets.
pub struct Plane {
    pub engine: Engine,
    pub store: Store,
    pub url: String,
    pub context: reconcile::ReconcileContext,
    clock: Arc<AtomicI64>,
    _directory: tempfile::TempDir,
}

impl Plane {
    pub async fn start(on_postgres: bool) -> Self {
        Self::keeping(on_postgres, 0, 0).await
    }

    /// Keeps finished tasks and audit entries for this many days; 0 = forever.
    pub async fn keeping(on_postgres: bool, task_retention_days: u32, audit_retention_days: u32) -> Self {
        Self::with(on_postgres, task_retention_days, audit_retention_days, false).await
    }

    /// Keeps audit entries for this many days, and until they are in the object store.
    pub async fn keeping_until_flushed(on_postgres: bool, audit_retention_days: u32) -> Self {
        Self::with(on_postgres, 0, audit_retention_days, true).await
    }

    async fn with(on_postgres: bool, task_retention_days: u32, audit_retention_days: u32, audit_is_flushed: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = if on_postgres { postgres::database() } else { format!("sqlite:{}", directory.path().join("bloom.db").display()) };
        let clock = Arc::new(AtomicI64::new(START));
        let store = Store::with_clock(&StoreOptions { url: url.clone(), max_connections: 4 }, Clock::Manual(clock.clone())).await.unwrap();
        store.migrate().await.unwrap();
        let engine = engine(store.clone(), &clock).await;
        let options = reconcile::ReconcileOptions {
            worker_offline_after_ms: 60_000,
            worker_sync_ms: 10_000,
            lease_ttl_ms: 300_000,
            task_retention_days,
            audit_retention_days,
            audit_is_flushed,
        };
        let agents = Agents::new(engine.clone(), dispatch::DispatchOptions::default());
        let context = reconcile::start(&engine, options);
        engine.background.spawn(dispatch::reconcile::run(context.clone(), agents));
        Self { engine, store, url, context, clock, _directory: directory }
    }

    /// The engine of another replica on the same database. It never leads.
    pub async fn replica(&self) -> Engine {
        let options = StoreOptions { url: self.url.clone(), max_connections: 4 };
        engine(Store::with_clock(&options, Clock::Manual(self.clock.clone())).await.unwrap(), &self.clock).await
    }

    pub fn pass(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
        self.wake_reconcilers();
    }

    /// As [`pass`](Self::pass), but the leadership, which expires by such a step, is renewed before the reconcilers run.
    pub async fn pass_leading(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
        if self.url.starts_with("postgres") {
            let now = self.engine.clock.now();
            eventually("the leadership is renewed", || async {
                let mut conn = sqlx::PgConnection::connect(&self.url).await.unwrap();
                let until: i64 = sqlx::query_scalar("SELECT expires_at FROM leader").fetch_one(&mut conn).await.unwrap();
                (until > now).then_some(())
            })
            .await;
        }
        self.wake_reconcilers();
    }

    /// They wait by the clock, which has no way to tell that it was set.
    fn wake_reconcilers(&self) {
        self.engine.clock.notify_moved();
        self.engine.alarms.ring_all();
    }

    pub async fn register(&self, name: &str) {
        let change = WorkerChange { id: name.into(), max_concurrency: Some(2), actor: Actor::Api, ..WorkerChange::default() };
        self.engine.writers.submit(Op::RegisterWorker(Box::new(change))).await.unwrap();
    }

    pub async fn create(&self, change: impl FnOnce(&mut TaskSpec)) -> TaskId {
        self.create_many(1, change).await[0]
    }

    /// Creates this many tasks, which differ only in their ids.
    pub async fn create_many(&self, number: usize, change: impl FnOnce(&mut TaskSpec)) -> Vec<TaskId> {
        let mut spec = TaskSpec { max_attempts: 2, ..bloom_test_world::world::spec(&unique("context")) };
        change(&mut spec);
        let mut ids = Vec::new();
        // As many at a time as a call of the API may create.
        for tasks in vec![spec; number].chunks(500) {
            match self.engine.writers.submit(Op::Create(op::Create { tasks: tasks.to_vec() })).await.unwrap() {
                Reply::Created(created) => ids.extend(created.iter().map(|task| task.state.id)),
                other => panic!("{other:?}"),
            }
        }
        ids
    }

    pub async fn task(&self, id: TaskId) -> TaskState {
        self.store.task(id).await.unwrap().unwrap().state
    }

    pub async fn reaches(&self, id: TaskId, what: &str, holds: impl Fn(&TaskState) -> bool) -> TaskState {
        eventually(what, || async {
            let task = self.task(id).await;
            holds(&task).then_some(task)
        })
        .await
    }

    /// How often this loop has run.
    fn runs(&self, name: &str) -> u64 {
        let series = format!("bloom_reconcile_runs_total{{loop=\"{name}\"}} ");
        let text = self.engine.metrics.render();
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
    }

    /// Waits until this loop has run on the current state.
    pub async fn has_run(&self, name: &str) {
        // A run that is in progress may have begun before.
        let wanted = self.runs(name) + 2;
        eventually("the loop runs", || async {
            self.wake_reconcilers();
            (self.runs(name) >= wanted).then_some(())
        })
        .await;
    }

    pub async fn shows(&self, worker: &str, online: bool) {
        eventually("the worker's status", || async {
            let worker = self.store.worker(worker).await.unwrap().unwrap();
            (worker.is_online() == online).then_some(())
        })
        .await;
    }
}

async fn engine(store: Store, clock: &Arc<AtomicI64>) -> Engine {
    let options = engine::EngineOptions {
        session_wait_ms: 30_000,
        named_agent_wait_ms: 30_000,
        worker_offline_after_ms: 60_000,
        traces: Default::default(),
        manual_clock: Some(clock.clone()),
        seed: None,
    };
    Engine::start(Arc::new(store), Metrics::new().unwrap(), options).await.unwrap()
}

#[macro_export]
macro_rules! on_both_clocks {
    ($($test:ident),+ $(,)?) => {
        mod sqlite { $(#[test] fn $test() { $crate::support::run(super::$test(false)); })+ }
        mod postgresql { $(#[test] fn $test() { $crate::support::run(super::$test(true)); })+ }
    };
}
