//! Engines on a database whose errors and delays the tests control. Time is virtual: it passes only while all tasks wait.

mod batches;
mod commits_in_doubt;
mod namespaces;
mod queues;
mod replica_cache;

use std::sync::Arc;
use std::time::Duration;

use bloom_core::command::{Command, Requester};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::{Session, TaskSpec};
use bloom_telemetry::Metrics;
use bloom_test_database::scripted::ScriptedDatabase;
use bloom_test_world::world::{registration, spec};
use tokio::sync::broadcast;
use tokio::time::timeout;

use super::{Changes, ClaimRequest, Engine, EngineOptions, Error};

/// A replica. Each replica of a test needs its own seed, so that their ids differ.
async fn engine(database: &ScriptedDatabase, seed: u64) -> Engine {
    let options = EngineOptions {
        session_wait_ms: 0,
        named_agent_wait_ms: 0,
        worker_offline_after_ms: 60_000,
        traces: Default::default(),
        manual_clock: None,
        seed: Some(seed),
    };
    Engine::start(Arc::new(database.clone()), Metrics::new().unwrap(), options).await.unwrap()
}

/// A command that creates one task, in its own context.
fn create(prompt: &str) -> Command<op::Create> {
    op::Create { tasks: vec![TaskSpec { prompt: prompt.into(), ..spec(prompt) }] }.into()
}

fn claim(worker: &str, wait_ms: i64) -> ClaimRequest {
    ClaimRequest { worker: worker.into(), max: 1, wait_ms, held: None, instance: None, ttl_ms: 60_000, by: Requester::default() }
}

/// Makes a claim that finds nothing, so that the replica's window reaches the end of the queue.
async fn read_queue(engine: &Engine) {
    register(engine, "reader").await;
    assert_eq!(engine.claims.claim(claim("reader", 0)).await.unwrap(), []);
}

async fn created(engine: &Engine) -> TaskId {
    engine.writers.submit(op::Create { tasks: vec![TaskSpec { session: Session::None, ..spec("c") }] }).await.unwrap()[0].state.id
}

async fn register(engine: &Engine, worker: &str) {
    engine.writers.submit(registration(worker, 2)).await.unwrap();
}

fn tasks_in(database: &ScriptedDatabase) -> usize {
    database.tables().memory.tasks.len()
}

/// Waits for the next change that satisfies this predicate.
async fn heard(changes: &mut broadcast::Receiver<Arc<Changes>>, mut is_it: impl FnMut(&Changes) -> bool) -> Arc<Changes> {
    loop {
        let change = timeout(Duration::from_secs(60), changes.recv()).await.expect("a change is announced in time").unwrap();
        if is_it(&change) {
            return change;
        }
    }
}

/// Compares the replica cache with the database. The cache shows only tasks that it has read; after [`read_queue`], all that are ready
/// or leased.
fn assert_cache_is_true(engine: &Engine, database: &ScriptedDatabase) {
    let mut counts = engine.replica.counts();
    counts.retain(|_, n| *n != 0);
    let tables = database.tables();
    assert_eq!(counts, tables.counted());
    for (id, revision) in engine.replica.shown_tasks() {
        assert_eq!(tables.memory.tasks.get(&id).map(|task| task.revision), Some(revision));
    }
    assert_eq!(engine.replica.stats().workers_total, tables.memory.workers.len() as i64);
}
