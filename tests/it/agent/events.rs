//! How an agent sends the events of its runs.

use super::*;
use crate::on_both;
use crate::support::agent::AgentPlan;
use crate::support::proxy::Proxy;

const RUNS: usize = 10;

/// How many calls with events the server has answered.
async fn calls_with_events(server: &Server) -> u64 {
    let metrics = server.get("/metrics").await.expect(200).text;
    let of_events =
        metrics.lines().filter(|line| line.starts_with("bloom_http_requests_total{method=\"POST\"") && line.contains("/events\""));
    of_events.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

on_both! { alone:
    async fn runs_share_the_calls_that_send_their_events(database) {
        let server = Server::on(database).start();
        let line = Proxy::start(server.base()).await;
        let agent = AgentPlan::at(&line.url, "box").shell().slots(RUNS as u32).start();
        let (begun, ended, latch) = (Tally::new(), Tally::new(), Latch::new());
        let prompt = format!("{}; {}; echo told; {}", begun.mark(), latch.wait(), ended.mark());
        let crew = server.crew();
        let mut tasks = Vec::new();
        for _ in 0..RUNS {
            tasks.push(crew.task().prompt(&prompt).create().await);
        }
        begun.reaches(RUNS).await;
        line.hold();
        let before = calls_with_events(&server).await;
        latch.open();
        ended.reaches(RUNS).await;
        agent.has_no_processes().await;
        line.release();
        for task in &tasks {
            task.reaches("completed").await;
            eventually("its events are there", || async { told(task, "text").await.contains(&json!({ "text": "told\n" })).then_some(()) }).await;
        }
        let calls = calls_with_events(&server).await - before;
        assert!(calls < RUNS as u64, "{calls} calls with events for {RUNS} runs");
    }
}
