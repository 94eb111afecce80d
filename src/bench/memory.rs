//! The memory of the server after many lifecycles, and its start time on the database that contains them.

use std::sync::Arc;
use std::time::Duration;

use super::calls::QUEUE_AGENT;
use super::latency::Latency;
use super::report::Row;
use super::server::Server;
use super::{Bench, BenchError, lifecycle};

const STARTS: usize = 5;
/// The pause before memory is measured, in which timers, channels and the feed settle.
const SETTLE: Duration = Duration::from_secs(2);

/// Measures memory after batched lifecycles, with the tasks that other scenarios left in the queue.
pub(crate) async fn after_work(bench: &Arc<Bench>) -> Result<Vec<Row>, BenchError> {
    let case = format!("after {} lifecycles", bench.lifecycles);
    let tally = lifecycle::many(bench, QUEUE_AGENT, bench.lifecycles).await?;
    tokio::time::sleep(SETTLE).await;
    let mut rows = tally.rows("memory", &case, "tasks");
    rows.extend(bench.memory_row("memory", &case));
    Ok(rows)
}

/// Measures the time from start to ready on the database that the other scenarios left.
pub(crate) async fn restarts(server: &mut Server) -> Result<Vec<Row>, BenchError> {
    let mut latency = Latency::default();
    for _ in 0..STARTS {
        server.stop().await?;
        latency.record(server.start().await?.1);
    }
    tokio::time::sleep(SETTLE).await;
    let mut rows = vec![Row::of_calls("memory", "existing database", "start to ready", &latency)];
    rows.extend(server.resident_mb().map(|mb| Row::of_memory("memory", "after a restart", mb)));
    Ok(rows)
}
