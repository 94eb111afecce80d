//! A server with one agent, which is killed, comes back, and is busy.

use super::prometheus::Prometheus;
use crate::support::{Database, Server, direct, eventually, janitor};

pub async fn no_worker_and_no_room(prometheus: &Prometheus) {
    const JOB: &str = "workers";
    let server = Server::on(Database::Sqlite).env("WORKER_OFFLINE_AFTER_SECONDS", 2).start();
    prometheus.scrapes(JOB, &[&server]);
    let agent = server.agent("box").shell().slots(1).start();
    let crew = server.crew();
    crew.task().prompt("true").create().await.reaches("completed").await;
    agent.kill9();
    let waiting = crew.task().prompt("true").create().await;
    // It waits for two hours.
    direct::execute(&server.database_url(), "UPDATE task_state SET ready_at = ready_at - 7200000 WHERE status = 'queued'").await;
    tokio::join!(
        prometheus.fires(JOB, "BloomNoWorker"),
        prometheus.fires(JOB, "BloomWorkerOffline"),
        prometheus.fires(JOB, "BloomQueueOld")
    );
    agent.start_again();
    waiting.reaches("completed").await;
    prometheus.resolves(JOB, "BloomNoWorker").await;
    prometheus.resolves(JOB, "BloomWorkerOffline").await;
    prometheus.resolves(JOB, "BloomQueueOld").await;

    let gate = janitor::new_path("gate");
    let long = crew.task().prompt(&format!("until [ -e {} ]; do sleep 0.1; done", gate.display())).create().await;
    long.reaches("running").await;
    let next = crew.task().prompt("true").create().await;
    prometheus.fires(JOB, "BloomNoRoom").await;
    std::fs::write(&gate, "").unwrap();
    next.reaches("completed").await;
    prometheus.resolves(JOB, "BloomNoRoom").await;
    eventually("the agent has ended its runs", || async { (agent.kept_runs() == 0).then_some(()) }).await;
}
