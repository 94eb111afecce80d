//! The whole lifecycle of tasks, with one task or up to 32 tasks per call.

use std::sync::Arc;
use std::time::Instant;

use super::calls::{BATCHED_AGENT, LIFECYCLE_AGENT, SLOTS, Session};
use super::load::{self, Tally, Window};
use super::report::Row;
use super::{Bench, BenchError};

/// The number of tasks that one batch call creates.
const BATCH: usize = 96;
/// The number of clients of the batched scenario, each a worker.
const BATCHED_CLIENTS: usize = 8;
/// How many claims in a row may return nothing, each after a second, before the scenario fails.
const EMPTY_CLAIMS: u32 = 30;

/// Create, lease, heartbeat, complete: one call each. Measured with a worker that the client names and with one that the server picks.
pub(crate) async fn single(bench: &Arc<Bench>) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for &clients in &bench.clients {
        for picked in [false, true] {
            let sessions = load::workers(bench, LIFECYCLE_AGENT, clients).await?;
            let window = Window::lasting(bench.time);
            let tally = load::run(sessions, &window, |session, window| one_by_one(session, window, picked)).await?;
            let case = format!("{clients} clients, worker {}", if picked { "picked" } else { "named" });
            rows.extend(tally.rows("lifecycle", &case, "lifecycles"));
            rows.extend(bench.memory_row("lifecycle", &case));
        }
    }
    Ok(rows)
}

async fn one_by_one(mut session: Session, window: Window, picked: bool) -> Result<(Session, u64), BenchError> {
    let mut done = 0;
    while window.take(1) {
        let began = Instant::now();
        let task = session.create().await?;
        let held = session.lease(task, picked).await?;
        session.heartbeat(&held).await?;
        session.complete(&held).await?;
        session.record("all four", began);
        done += u64::from(window.counts(began));
    }
    Ok((session, done))
}

/// Creates 96 tasks per call, claims up to 32, and renews and completes these in one call each.
pub(crate) async fn batched(bench: &Arc<Bench>) -> Result<Vec<Row>, BenchError> {
    let sessions = load::workers(bench, BATCHED_AGENT, BATCHED_CLIENTS).await?;
    let tally = load::run(sessions, &Window::lasting(bench.time), in_batches).await?;
    let case = format!("{BATCHED_CLIENTS} clients");
    let mut rows = tally.rows("batched", &case, "tasks");
    rows.extend(bench.memory_row("batched", &case));
    Ok(rows)
}

/// Runs `count` batched lifecycles of tasks of this agent slug.
pub(crate) async fn many(bench: &Arc<Bench>, agent: &'static str, count: u64) -> Result<Tally, BenchError> {
    let sessions = load::workers(bench, agent, BATCHED_CLIENTS).await?;
    load::run(sessions, &Window::of_items(count), in_batches).await
}

/// Every client claims as many tasks as it creates, so that the length of the queue stays the same.
async fn in_batches(mut session: Session, window: Window) -> Result<(Session, u64), BenchError> {
    let mut done = 0;
    while window.take(BATCH) {
        session.create_many(BATCH).await?;
        let mut left = BATCH;
        let mut empty = 0;
        while left > 0 {
            let began = Instant::now();
            let held = session.claim(left.min(SLOTS), 1).await?;
            if held.is_empty() {
                empty += 1;
                if empty > EMPTY_CLAIMS {
                    return Err("tasks are queued, but claims come back empty; does another worker take this benchmark's tasks?".into());
                }
                continue;
            }
            session.heartbeat_all(&held).await?;
            session.complete_all(&held).await?;
            left = left.saturating_sub(held.len());
            if window.counts(began) {
                done += held.len() as u64;
            }
        }
    }
    Ok((session, done))
}
