//! The agent's push server, called as a documented server does.

use super::*;
use crate::support::agent::AgentPlan;
use crate::support::{Database, Server};

pub(super) const KEY: (&str, &str) = ("x-membridge-agent", "agent-key");

pub(super) fn with(more: &[&str], body: impl AsyncFnOnce(&Server, &Api, &agent::Agent)) {
    with_agent(|agent| agent.arg(more), body);
}

/// An agent that listens for pushes, set up further by the test.
pub(super) fn with_agent(set_up: impl FnOnce(AgentPlan) -> AgentPlan, body: impl AsyncFnOnce(&Server, &Api, &agent::Agent)) {
    run(async {
        let server = Server::on(Database::Sqlite).env("MEMBRIDGE_AGENT_KEY", KEY.1).start();
        let agent = server.agent("box").slots(2).shell().env("MEMBRIDGE_AGENT_KEY", KEY.1);
        let agent = set_up(agent.arg(&["--listen", "127.0.0.1:0", "--push-only"])).start();
        let worker = eventually("the agent is registered", || async {
            let answer = server.get("workers/box").await;
            (answer.status == 200).then(|| answer.ok())
        })
        .await;
        // From here on, the test acts as the server.
        server.post("workers", json!({"name": "box", "dispatch": "manual"})).await.ok();
        body(&server, &Api::agent(worker["url"].as_str().unwrap()), &agent).await;
    });
}

/// The body that a documented server pushes for a task that it has leased.
async fn pushed(task: &Task<'_>) -> Value {
    let shown = task.now().await;
    json!({
        "task_id": task.id, "prompt": shown["prompt"], "context_id": shown["context_id"], "agent_slug": shown["agent_slug"],
        "desired_format": shown["desired_format"], "context_hints": [], "policy": shown["policy"], "runtime_url": "http://127.0.0.1:9",
    })
}

#[test]
fn a_pushed_task_runs_once() {
    with(&[], async |server, push_server, _| {
        let health = push_server.get("/health").await.ok();
        assert_eq!((&health["service"], &health["node_id"]), (&json!("membridge-agent"), &json!("box")));
        assert_eq!(health["capabilities"]["max_concurrency"], json!(2));
        let (tally, latch) = (Tally::new(), Latch::new());
        let task = server.crew().task().prompt(&format!("{}; {}; echo done", tally.mark(), latch.wait())).create().await;
        let body = pushed(&task).await;
        assert_eq!(push_server.post("/execute-task", body.clone()).await.status, 401, "the key is required");
        let push_server = push_server.with_header(KEY.0, KEY.1);
        let refused = push_server.post("/execute-task", body.clone()).await;
        assert_eq!(refused.status, 409, "the task is not leased to this worker: {}", refused.text);
        task.lease(json!({"worker_id": "box"})).await.created();
        for _ in 0..2 {
            let answer = push_server.post("/execute-task", body.clone()).await;
            assert_eq!(answer.status, 202, "{}", answer.text);
        }
        tally.reaches(1).await;
        latch.open();
        task.reaches("completed").await;
        assert_eq!((tally.count(), result(&task).await["output"].clone()), (1, json!("done\n")));
    });
}

#[test]
fn a_pushed_task_waits_for_the_running_one_of_its_context() {
    with_agent(
        |agent| agent.slots(3),
        async |server, push_server, _| {
            let push_server = push_server.with_header(KEY.0, KEY.1);
            let push = async |task: &Task<'_>| {
                task.lease(json!({"worker_id": "box"})).await.created();
                assert_eq!(push_server.post("/execute-task", pushed(task).await).await.status, 202);
            };
            let (tally, latch, crew) = (Tally::new(), Latch::new(), server.crew());
            let first = crew.task().prompt(&format!("{}; {}", tally.mark(), latch.wait())).create().await;
            push(&first).await;
            tally.reaches(1).await;
            let context = first.now().await["context_id"].as_str().unwrap().to_owned();
            let next = crew.task().context(&context).prompt(&tally.mark()).create().await;
            push(&next).await;
            let other = crew.task().prompt("echo other").create().await;
            push(&other).await;
            other.reaches("completed").await;
            assert_eq!(tally.count(), 1, "two runs would work in one directory");
            latch.open();
            next.reaches("completed").await;
            assert_eq!(tally.count(), 2);
        },
    );
}

#[test]
fn bad_pushes_are_refused() {
    with(&[], async |_, push_server, _| {
        let push_server = push_server.with_header(KEY.0, KEY.1);
        for (body, status) in
            [("{", 400), ("{}", 422), ("{\"task_id\": 5}", 422), ("{\"task_id\": \"0190a0a0-0000-7000-8000-000000000000\"}", 409)]
        {
            let answer = push_server.post_bytes("/execute-task", body).await;
            assert_eq!(answer.status, status, "{body}: {}", answer.text);
        }
        for body in [
            json!({"repo_url": "file://etc", "project_name": "p"}),
            json!({"repo_url": "https://h/r", "project_name": "../p"}),
            json!({"repo_url": "https://h/r", "project_name": "p", "target_path": "/tmp/../p"}),
        ] {
            assert_eq!(push_server.post("/clone", body.clone()).await.status, 400, "{body}");
        }
        let own = push_server.post("/clone", json!({"repo_url": "file:///etc", "project_name": "p"})).await;
        assert!(own.status == 502 && own.text.contains("transport 'file' not allowed"), "{}", own.text);
        assert_eq!(push_server.poke("/self-update").await.status, 501);
    });
}

/// What runs is what the server has, whatever the caller says.
#[test]
fn a_push_is_only_a_hint() {
    with(&[], async |server, push_server, agent| {
        let push_server = push_server.with_header(KEY.0, KEY.1);
        let tally = Tally::new();
        let task = server.crew().task().prompt("echo \"the server's prompt\"").create().await;
        let lease = task.lease(json!({"worker_id": "box"})).await.created();
        let mut body = pushed(&task).await;
        body["prompt"] = json!(tally.mark());
        body["lease_id"] = json!("0190a0a0-0000-7000-8000-000000000000");
        let refused = push_server.post("/execute-task", body.clone()).await;
        assert_eq!(refused.status, 409, "the server does not confirm this lease: {}", refused.text);
        assert_eq!(agent.kept_runs(), 0);
        body["lease_id"] = lease["lease"]["id"].clone();
        for timeout in [json!(i64::MAX), json!(i64::MIN), json!(u64::MAX)] {
            body["policy"] = json!({"timeout_sec": timeout});
            let answer = push_server.post("/execute-task", body.clone()).await;
            assert_eq!(answer.status, 202, "{}", answer.text);
        }
        task.reaches("completed").await;
        assert_eq!((tally.count(), result(&task).await["output"].clone()), (0, json!("the server's prompt\n")));
    });
}

#[test]
fn a_restart_does_not_disturb_runs() {
    with(&["--update-command", "echo new"], async |server, push_server, agent| {
        let push_server = push_server.with_header(KEY.0, KEY.1);
        let (tally, latch) = (Tally::new(), Latch::new());
        let task = server.crew().task().prompt(&format!("{}; {}; echo done", tally.mark(), latch.wait())).create().await;
        task.lease(json!({"worker_id": "box"})).await.created();
        push_server.post("/execute-task", pushed(&task).await).await;
        tally.reaches(1).await;
        let pid = agent.pid();
        assert_eq!(push_server.poke("/self-update").await.ok()["output"], json!("new"));
        eventually("the agent continues the run", || async { agent.log().contains("continuing an earlier run").then_some(()) }).await;
        assert_eq!(agent.pid(), pid);
        latch.open();
        task.reaches("completed").await;
        assert_eq!(tally.count(), 1);
    });
}

#[test]
fn uninstall_hands_back_and_ends() {
    with(&["--grace-seconds", "0"], async |server, push_server, agent| {
        let push_server = push_server.with_header(KEY.0, KEY.1);
        let tally = Tally::new();
        let task = server.crew().task().prompt(&format!("{}; sleep 150", tally.mark())).create().await;
        task.lease(json!({"worker_id": "box"})).await.created();
        push_server.post("/execute-task", pushed(&task).await).await;
        tally.reaches(1).await;
        assert_eq!(push_server.poke("/uninstall").await.ok()["status"], json!("uninstalling"));
        assert!(agent.wait_for_end().success());
        task.reaches("queued").await;
        agent.has_no_processes().await;
        agent.start_again();
        assert!(agent.wait_for_end().success(), "a supervisor that starts it again gets a clean exit");
    });
}
