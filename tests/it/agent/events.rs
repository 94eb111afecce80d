//! How an agent sends the events of its runs.

use sqlx::{Connection, PgConnection};

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

/// Another program, such as psql with an open transaction, keeps the row of a task locked.
#[test]
fn a_run_whose_events_can_not_be_stored_does_not_hold_up_those_of_others() {
    run(async {
        let server = Server::on(Database::Postgres).start();
        let _agent = AgentPlan::at(server.base(), "box").shell().slots(2).start();
        let crew = server.crew();
        let (stop, begin) = (Latch::new(), Latch::new());
        let talks = format!(
            "echo first; i=0; while [ $i -lt 1200 ] && [ ! -e {} ]; do i=$((i+1)); echo more; sleep 0.05; done; echo last",
            stop.0.display()
        );
        let talker = crew.task().prompt(&talks).create().await;
        let other = crew.task().prompt(&format!("echo first; {}; echo told", begin.wait())).create().await;
        for task in [&talker, &other] {
            has_begun(task).await;
        }
        let mut outsider = PgConnection::connect(&server.database_url()).await.unwrap();
        sqlx::raw_sql("BEGIN").execute(&mut outsider).await.unwrap();
        let id: uuid::Uuid = talker.id.parse().unwrap();
        sqlx::query("SELECT 1 FROM task_state WHERE id = $1 FOR UPDATE").bind(id).execute(&mut outsider).await.unwrap();
        begin.open();
        eventually("the other run's event is there", || async {
            told(&other, "text").await.contains(&json!({ "text": "told\n" })).then_some(())
        })
        .await;
        other.reaches("completed").await;
        outsider.close().await.unwrap();
        stop.open();
        talker.reaches("completed").await;
        let lines = told(&talker, "text").await.iter().map(|data| data["text"].as_str().unwrap().to_owned()).collect::<String>();
        assert!(lines.starts_with("first\nmore\n") && lines.ends_with("last\n"), "{lines}");
    });
}
