//! Deadlines, without waiting for them: the test sets the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bloom_runtime::core::command::{Claim, Completion, Holder, Op, Reply, WorkerChange};
use bloom_runtime::core::ids::TaskId;
use bloom_runtime::core::task::{Format, Outcome, Parked, Reason, Session, Status, TaskSpec, TaskState};
use bloom_runtime::engine::{self, Engine};
use bloom_runtime::membridge::Membridge;
use bloom_runtime::reconcile;
use bloom_runtime::store::{Clock, Options, Store};
use bloom_runtime::telemetry::Metrics;
use uuid::Uuid;

use crate::support::{self, postgres};

const START: i64 = 1_800_000_000_000;

/// A control plane without its door, on a clock of the test's own.
struct Plane {
    engine: Engine,
    clock: Arc<AtomicI64>,
    _directory: tempfile::TempDir,
}

impl Plane {
    async fn start(on_postgres: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = if on_postgres { postgres::database() } else { format!("sqlite:{}", directory.path().join("bloom.db").display()) };
        let clock = Arc::new(AtomicI64::new(START));
        let store = Store::with_clock(&Options { url, max_connections: 4 }, Clock::Manual(clock.clone())).await.unwrap();
        store.migrate().await.unwrap();
        let options = engine::Options { session_wait_ms: 30_000, worker_offline_after_ms: 60_000, manual_clock: Some(clock.clone()) };
        let engine = Engine::start(store, Metrics::new().unwrap(), options).await.unwrap();
        let options =
            reconcile::Options { worker_offline_after_ms: 60_000, worker_sync_ms: 10_000, task_retention_days: 0, audit_retention_days: 0 };
        reconcile::start(&engine, &Membridge::new(None, None), options);
        Self { engine, clock, _directory: directory }
    }

    fn pass(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
        self.engine.alarms().ring_all();
    }

    async fn register(&self, name: &str) {
        let change = WorkerChange { id: name.into(), max_concurrency: Some(2), actor: "api", ..WorkerChange::default() };
        self.engine.submit(Op::RegisterWorker(Box::new(change))).await.unwrap();
    }

    async fn create(&self, change: impl FnOnce(&mut TaskSpec)) -> TaskId {
        let mut spec = TaskSpec {
            id: Uuid::nil(),
            context_id: support::unique("context"),
            agent_slug: "coder".into(),
            prompt: "do it".into(),
            context_hints: Vec::new(),
            timeout_sec: 120,
            budget: 0.0,
            desired_format: Format::Text,
            max_attempts: 2,
            priority: 5,
            not_before: None,
            depends_on: Vec::new(),
            exclusive_key: None,
            idempotency_key: None,
            labels: Default::default(),
            session: Session::Context,
            model: None,
            ttl_after_finished_sec: None,
        };
        change(&mut spec);
        match self.engine.submit(Op::Create { tasks: vec![spec] }).await.unwrap() {
            Reply::Created(created) => created[0].state.id,
            other => panic!("{other:?}"),
        }
    }

    async fn task(&self, id: TaskId) -> TaskState {
        self.engine.store().task(id).await.unwrap().unwrap().state
    }

    async fn reaches(&self, id: TaskId, what: &str, holds: impl Fn(&TaskState) -> bool) -> TaskState {
        support::eventually(what, || async {
            let task = self.task(id).await;
            holds(&task).then_some(task)
        })
        .await
    }

    async fn shows(&self, worker: &str, online: bool) {
        support::eventually("the worker's status", || async {
            let worker = self.engine.store().worker(worker).await.unwrap().unwrap();
            (worker.is_online() == online).then_some(())
        })
        .await;
    }
}

async fn a_lease_ends_with_its_time(on_postgres: bool) {
    let plane = Plane::start(on_postgres).await;
    plane.register("w").await;
    let id = plane.create(|_| {}).await;
    let Reply::Leased { task, .. } = plane.engine.lease(id, Some("w".into()), 300_000, None).await.unwrap() else { panic!() };
    let lease = task.lease.unwrap();
    assert_eq!(lease.expires_at, START + 300_000);

    plane.pass(299_999);
    plane.engine.submit(Op::Heartbeat { task: id, holder: Holder::default() }).await.unwrap();
    // Had it not been renewed, it would be over now.
    plane.pass(299_999);
    let due = plane.engine.submit(Op::ExpireLease { task: id, lease: lease.id }).await.unwrap();
    assert!(matches!(due, Reply::NotDue(at) if at == START + 299_999 + 300_000), "{due:?}");
    assert_eq!(plane.task(id).await.status, Status::Running);

    plane.pass(1);
    let task = plane.reaches(id, "the lease's end", |task| task.status == Status::Queued).await;
    assert_eq!((task.attempts, task.lease.is_none()), (1, true));

    // The second attempt is the last. The worker had been silent for long.
    plane.register("w").await;
    plane.engine.lease(id, Some("w".into()), 1_000, None).await.unwrap();
    plane.pass(1_000);
    let task = plane.reaches(id, "the last lease's end", |task| task.status.is_final()).await;
    assert_eq!((task.status, task.failure.unwrap().reason), (Status::Dead, Reason::WorkerLost));
    plane.engine.stop().await;
}

async fn a_silent_worker_turns_offline(on_postgres: bool) {
    let plane = Plane::start(on_postgres).await;
    plane.register("w").await;
    plane.pass(60_000);
    let early = plane.engine.submit(Op::LoseWorker { worker: "w".into(), silent_for_ms: 60_000 }).await.unwrap();
    assert!(matches!(early, Reply::NotDue(at) if at == START + 60_001), "{early:?}");
    plane.shows("w", true).await;
    plane.pass(1);
    plane.shows("w", false).await;
    plane.engine.sighted("w");
    plane.shows("w", true).await;
    plane.engine.stop().await;
}

async fn a_task_waits_for_its_time(on_postgres: bool) {
    let plane = Plane::start(on_postgres).await;
    plane.register("w").await;
    let id = plane.create(|spec| spec.not_before = Some(START + 3_600_000)).await;
    assert_eq!(plane.task(id).await.parked, Some(Parked::NotBefore));
    plane.pass(3_599_999);
    plane.engine.submit(Op::Reconsider { tasks: vec![id] }).await.unwrap();
    assert_eq!(plane.task(id).await.parked, Some(Parked::NotBefore));
    plane.pass(1);
    plane.reaches(id, "its time", TaskState::is_ready).await;
    plane.engine.stop().await;
}

async fn a_claimed_run_ends_at_its_limit_whatever_it_says(on_postgres: bool) {
    let plane = Plane::start(on_postgres).await;
    plane.register("w").await;
    let id = plane.create(|_| {}).await;
    let claim = Claim { worker: "w".into(), candidates: vec![id], held: None, ttl_ms: 300_000 };
    let Reply::Claimed { leased, .. } = plane.engine.submit(Op::Claim(claim)).await.unwrap() else { panic!() };
    // 120 s for the run and a minute's slack.
    assert_eq!(leased[0].lease.as_ref().unwrap().expires_at, START + 180_000);
    plane.pass(170_000);
    plane.engine.submit(Op::Heartbeat { task: id, holder: Holder::default() }).await.unwrap();
    plane.pass(10_000);
    plane.reaches(id, "the limit", |task| task.status == Status::Queued).await;

    // The work that was paid for is not thrown away.
    let lease = leased[0].lease.as_ref().unwrap().id;
    let completion = Completion {
        task: id,
        holder: Holder { lease: Some(lease), worker: None },
        status: Outcome::Success,
        output: Some("late".into()),
        error_message: None,
        duration_ms: 1,
        tokens_used: None,
        artifact_type: "LLM_RESULT".into(),
        artifact_tags: Vec::new(),
        reason: None,
        retryable: false,
        retry_at: None,
        keep_attempt: false,
        usage: None,
        session_id: None,
        model: None,
    };
    plane.engine.submit(Op::Complete(Box::new(completion))).await.unwrap();
    assert_eq!(plane.task(id).await.status, Status::Completed);
    plane.engine.stop().await;
}

macro_rules! on_both_clocks {
    ($($test:ident),+ $(,)?) => {
        mod sqlite { $(#[test] fn $test() { crate::support::run(super::$test(false)); })+ }
        mod postgresql { $(#[test] fn $test() { crate::support::run(super::$test(true)); })+ }
    };
}

on_both_clocks!(
    a_lease_ends_with_its_time,
    a_silent_worker_turns_offline,
    a_task_waits_for_its_time,
    a_claimed_run_ends_at_its_limit_whatever_it_says,
);
