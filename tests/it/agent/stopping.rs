//! The agent stops, or must take no new tasks: its runs finish in time, or are given back without costing an attempt.

use super::*;
use crate::support::{Database, Server};

fn with(plan: impl FnOnce(agent::AgentPlan) -> agent::AgentPlan, body: impl AsyncFnOnce(&Server, &agent::Agent)) {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = plan(server.agent("box").slots(2).shell()).start();
        body(&server, &agent).await;
    });
}

async fn worker_is(server: &Server, status: &str) {
    eventually(&format!("the worker is {status}"), || async {
        let worker = server.get("workers/box").await;
        (worker.status == 200 && worker.ok()["status"] == json!(status)).then_some(())
    })
    .await;
}

#[test]
fn runs_finish_before_the_agent_does() {
    with(
        |plan| plan,
        async |server, agent| {
            let (tally, latch) = (Tally::new(), Latch::new());
            let crew = server.crew();
            let task = crew.task().prompt(&format!("{}; {}; echo done", tally.mark(), latch.wait())).create().await;
            tally.reaches(1).await;
            agent.signal("TERM");
            worker_is(server, "syncing").await;
            let later = crew.task().prompt("echo later").create().await;
            latch.open();
            assert!(agent.wait_for_end().success());
            task.reaches("completed").await;
            assert_eq!(server.get("workers/box").await.ok()["status"], json!("offline"));
            assert_eq!(later.status().await, "queued", "a stopping agent takes no new task");
            agent.start_again();
            later.reaches("completed").await;
            assert_eq!(tally.count(), 1);
        },
    );
}

#[test]
fn what_does_not_finish_goes_back_unharmed() {
    with(
        |plan| plan.arg(&["--grace-seconds", "0"]),
        async |server, agent| {
            let tally = Tally::new();
            let task = server.crew().task().prompt(&format!("{}; sleep 150", tally.mark())).create().await;
            tally.reaches(1).await;
            assert!(agent.stop().success());
            let now = task.now().await;
            assert_eq!((&now["status"], &now["attempts"], &now["infra_retries"]), (&json!("queued"), &json!(0), &json!(1)));
            agent.has_no_processes().await;
            assert_eq!(agent.kept_runs(), 0);
        },
    );
}

#[test]
fn an_idle_agent_stops_at_once() {
    with(
        |plan| plan,
        async |server, agent| {
            worker_is(server, "online").await;
            assert!(agent.stop().success());
            assert_eq!(server.get("workers/box").await.ok()["status"], json!("offline"));
        },
    );
}

#[test]
fn a_drain_by_the_server_hands_back_and_ends_with_uncordon() {
    with(
        |plan| plan.arg(&["--grace-seconds", "0"]),
        async |server, agent| {
            let (tally, latch) = (Tally::new(), Latch::new());
            let task = server.crew().task().prompt(&format!("{}; {}; echo done", tally.mark(), latch.wait())).create().await;
            tally.reaches(1).await;
            server.poke("workers/box/drain").await.ok();
            task.reaches("queued").await;
            agent.has_no_processes().await;
            assert_eq!(task.waits_for().await, "cordoned");
            latch.open();
            server.poke("workers/box/uncordon").await.ok();
            task.reaches("completed").await;
            assert_eq!(tally.count(), 2);
        },
    );
}

#[test]
fn a_cordoned_worker_finishes_what_it_has() {
    with(
        |plan| plan,
        async |server, _agent| {
            let (tally, latch) = (Tally::new(), Latch::new());
            let crew = server.crew();
            let task = crew.task().prompt(&format!("{}; {}; echo done", tally.mark(), latch.wait())).create().await;
            tally.reaches(1).await;
            server.poke("workers/box/cordon").await.ok();
            let later = crew.task().prompt("echo later").create().await;
            latch.open();
            task.reaches("completed").await;
            assert_eq!(later.waits_for().await, "cordoned");
            server.poke("workers/box/uncordon").await.ok();
            later.reaches("completed").await;
        },
    );
}

#[test]
fn an_agent_stops_whether_its_server_lives_or_not() {
    with(
        |plan| plan.arg(&["--grace-seconds", "0"]),
        async |server, agent| {
            let tally = Tally::new();
            server.crew().task().prompt(&format!("{}; sleep 150", tally.mark())).create().await;
            tally.reaches(1).await;
            server.kill9();
            agent.signal("TERM");
            assert!(agent.wait_for_end().success());
            agent.has_no_processes().await;
            assert_eq!(agent.kept_runs(), 1, "the release is kept until the server is back");
            server.start_again();
            agent.start_again();
            tally.reaches(2).await;
            agent.stop();
        },
    );
}
