//! The latency of calls at several lengths of the queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::body::Bytes;

use super::calls::{QUEUE_AGENT, Session, decode};
use super::client::Client;
use super::load::{self, Tally, Window};
use super::report::{BY_QUEUE_LENGTH, Row};
use super::{Bench, BenchError};
use bloom_api::reports::Stats;
use bloom_core::task::Status;

/// The number of tasks per batch call that fills the queue: the maximum of the API.
const FILL_BATCH: usize = 1000;
const FILLERS: usize = 4;
/// How many times each list is read.
const READS: usize = 50;

/// The lists and filters to read: the newest page first, then the next pages by their links.
const PAGES: [(&str, &str); 11] = [
    ("tasks", "/api/runtime/llm-tasks"),
    ("tasks, queued", "/api/runtime/llm-tasks?status=queued"),
    ("tasks, completed", "/api/runtime/llm-tasks?status=completed"),
    ("tasks, failed (none)", "/api/runtime/llm-tasks?status=failed"),
    ("tasks, of an agent", "/api/runtime/llm-tasks?agent_slug=bench-queue"),
    ("tasks, of an agent, completed", "/api/runtime/llm-tasks?agent_slug=bench-queue&status=completed"),
    ("leases", "/api/runtime/leases"),
    ("leases, active", "/api/runtime/leases?status=active"),
    ("artifacts", "/api/runtime/artifacts"),
    ("audit", "/api/runtime/audit"),
    ("workers", "/api/runtime/workers"),
];

/// Measures claims, leases and lists at each length of the queue, from the shortest to the longest.
pub(crate) async fn at_each_length(bench: &Arc<Bench>) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for &length in &bench.queued {
        let case = format!("{length} queued");
        rows.extend(fill(bench, length).await?.map(|tally| tally.rows("fill", &case, "tasks")).unwrap_or_default());
        let sessions = load::workers(bench, QUEUE_AGENT, 1).await?;
        let window = Window::lasting(bench.time);
        let calls = load::run(sessions, &window, claim_and_lease).await?;
        rows.extend(calls.rows(BY_QUEUE_LENGTH, &case, "tasks, one client"));
        rows.extend(read_pages(bench, &case).await?);
        rows.extend(bench.memory_row(BY_QUEUE_LENGTH, &case));
    }
    Ok(rows)
}

/// Creates tasks until `length` are queued; `None` if they were already.
pub(crate) async fn fill(bench: &Arc<Bench>, length: u64) -> Result<Option<Tally>, BenchError> {
    let mut client = Client::connect(&bench.target).await?;
    let stats = client.expect(&Method::GET, "/api/runtime/stats", Bytes::new(), &[200]).await?;
    let queued = decode::<Stats>(&stats)?.tasks.by_status.get(Status::Queued.as_str()).copied();
    let there = queued.map_or(0, i64::unsigned_abs);
    if there >= length {
        return Ok(None);
    }
    let window = Window::of_items(length - there);
    let mut sessions = Vec::with_capacity(FILLERS);
    for index in 0..FILLERS {
        sessions.push(Session::connect(bench, QUEUE_AGENT, 1000 + index).await?);
    }
    let tally = load::run(sessions, &window, |mut session, window| async move {
        let mut done = 0;
        while window.take(FILL_BATCH) {
            session.create_many(FILL_BATCH).await?;
            done += FILL_BATCH as u64;
        }
        Ok((session, done))
    })
    .await?;
    Ok(Some(tally))
}

/// Runs as a single client, to measure latency and not throughput. Before it completes a task, it creates another one.
async fn claim_and_lease(mut session: Session, window: Window) -> Result<(Session, u64), BenchError> {
    let mut done = 0;
    while window.take(2) {
        let began = Instant::now();
        session.create().await?;
        let claimed = session.claim(1, 0).await?;
        let Some(held) = claimed.first() else {
            return Err("tasks are queued, but a claim came back empty; does another worker take this benchmark's tasks?".into());
        };
        session.complete(held).await?;
        let task = session.create().await?;
        let held = session.lease(task, false).await?;
        session.heartbeat(&held).await?;
        session.complete(&held).await?;
        if window.counts(began) {
            done += 2;
        }
    }
    Ok((session, done))
}

async fn read_pages(bench: &Arc<Bench>, case: &str) -> Result<Vec<Row>, BenchError> {
    let mut reader = Session::connect(bench, QUEUE_AGENT, 2000).await?;
    // Only reads are measured here, so the effects of the writes must have settled.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..READS {
        reader.get("stats", "/api/runtime/stats").await?;
    }
    for (name, first) in PAGES {
        let mut path = first.to_owned();
        for _ in 0..READS {
            let answer = reader.get(name, &path).await?;
            path = answer.next.unwrap_or_else(|| first.to_owned());
        }
    }
    Ok(reader.calls.iter().map(|(name, latency)| Row::of_calls(BY_QUEUE_LENGTH, case, name, latency)).collect())
}
