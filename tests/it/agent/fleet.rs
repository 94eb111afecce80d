//! Many tasks on many agents.

use std::collections::HashMap;

use super::*;
use crate::on_both;
use crate::support::Server;

on_both! { alone:
    async fn two_hundred_tasks_over_four_agents(database) {
        const TASKS: usize = 200;
        let server = Server::on(database).start();
        let crew = server.crew();
        let tasks: Vec<Value> = (0..TASKS).map(|n| crew.task().with("priority", json!(n * 7 % 10)).prompt(&format!("task {n}")).json()).collect();
        let made = server.post("llm-tasks:batch", json!({"tasks": tasks})).await.created()["tasks"].as_array().unwrap().clone();
        let agents: Vec<_> = (0..4).map(|n| server.agent(&format!("box-{n}")).slots(8).echo().start()).collect();
        eventually("all tasks are completed", || async {
            for worker in server.get("workers").await.ok().as_array().unwrap() {
                assert!(worker["active_leases"].as_i64().unwrap() <= 8, "{worker}");
            }
            (server.get("stats").await.ok()["tasks"]["by_status"]["completed"] == json!(TASKS)).then_some(())
        }).await;
        let leases = server.get("leases?limit=1000").await.ok().as_array().unwrap().clone();
        assert_eq!(leases.len(), TASKS, "each task ran once");
        // The most urgent tasks start first, then the oldest. Slots become free in any order, so the order is only approximate.
        let mut wanted: Vec<&Value> = made.iter().collect();
        wanted.sort_by_key(|task| (-task["priority"].as_i64().unwrap(), task["created_at"].as_i64().unwrap(), task["id"].as_str().unwrap().to_owned()));
        let place: HashMap<&str, usize> = wanted.iter().enumerate().map(|(n, task)| (task["id"].as_str().unwrap(), n)).collect();
        let mut started: Vec<&Value> = leases.iter().collect();
        started.sort_by_key(|lease| lease["started_at"].as_i64());
        for (n, lease) in started.iter().enumerate() {
            let due = place[lease["task_id"].as_str().unwrap()];
            assert!(n.abs_diff(due) <= 32, "task {due} of the order was started as number {n}");
        }
        let mut used: Vec<&str> = leases.iter().map(|lease| lease["worker_id"].as_str().unwrap()).collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), 4, "all agents ran tasks");
        for agent in &agents {
            agent.has_no_processes().await;
            assert!(agent.stop().success());
        }
    }

    async fn an_agent_that_is_said_to_be_offline_comes_back(database) {
        let server = Server::on(database).start();
        let agent = server.agent("box").echo().start();
        eventually("the agent has registered", || async { (server.get("workers/box").await.status == 200).then_some(()) }).await;
        // Another agent of the same name that stops does this, or a user.
        server.post("workers", json!({ "name": "box", "status": "offline" })).await.ok();
        let task = server.crew().task().create().await;
        task.reaches("completed").await;
        assert!(agent.stop().success());
        assert_eq!(server.get("workers/box").await.ok()["status"], json!("offline"), "the agent sets itself offline when it stops");
    }
}
