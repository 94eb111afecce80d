//! Workers that are pushed to: the leader pushes ready tasks to them, under the same rules as other leases.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::on_both;
use crate::replicas::{leader, replicas};
use crate::support::pushed::{Mute, nowhere};
use crate::support::stub::{Reply, Stub};
use crate::support::*;

/// An agent that accepts every task.
async fn willing() -> Stub {
    let stub = Stub::start().await;
    stub.always("/health", Reply::new(200, "{}"));
    stub.always("/execute-task", Reply::new(202, r#"{"accepted":true}"#));
    stub
}

fn ids(pushed: &[Value]) -> Vec<&str> {
    pushed.iter().map(|task| task["task_id"].as_str().unwrap()).collect()
}

/// Waits until the push loop must have run: it has pushed a task of another worker.
async fn the_push_loop_has_run(server: &Server) {
    let stub = willing().await;
    let crew = server.crew();
    crew.pushed_worker(&stub.url).register().await;
    crew.task().create().await;
    stub.has_got(1).await;
}

on_both! {
    async fn tasks_come_by_themselves_as_far_as_there_is_room(server) {
        let stub = willing().await;
        let crew = server.crew();
        let late = crew.task().with("priority", json!(1)).create().await;
        let plain = crew.task().create().await;
        let urgent = crew.task().with("priority", json!(9)).create().await;
        let worker = crew.pushed_worker(&stub.url).slots(2).register().await;
        let first = stub.has_got(2).await;
        assert_eq!(ids(&first).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([urgent.id.as_str(), plain.id.as_str()]));
        let held = urgent.now().await;
        assert_eq!((&held["status"], &held["worker_id"]), (&json!("leased"), &json!(worker.name)));
        assert_eq!(late.waits_for().await, "no_capacity");
        urgent.succeed("done").await;
        let all = stub.has_got(3).await;
        assert_eq!(all[2]["task_id"], late.id.as_str());
        assert_eq!(all[2]["lease_id"], late.now().await["lease_id"]);
        assert_eq!(all[2]["worker_id"], worker.name.as_str());
    }

    async fn a_suspended_task_is_not_pushed_until_it_is_resumed(server) {
        let stub = willing().await;
        let crew = server.crew();
        let task = crew.task().with("suspend", json!(true)).create().await;
        crew.pushed_worker(&stub.url).register().await;
        the_push_loop_has_run(server).await;
        assert_eq!(task.waits_for().await, "suspended");
        server.poke(&task.path("/resume")).await.ok();
        assert_eq!(ids(&stub.has_got(1).await), [task.id.as_str()]);
    }

    async fn only_open_workers_of_that_kind_are_pushed_to(server) {
        let stub = willing().await;
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).register().await;
        let first = crew.task().create().await;
        the_push_loop_has_run(server).await;
        assert_eq!(first.status().await, "queued", "a manual worker is not pushed to");
        worker.cordon().await;
        server.post("workers", json!({ "name": worker.name, "dispatch": "push" })).await.ok();
        the_push_loop_has_run(server).await;
        assert_eq!(first.status().await, "queued", "a cordoned worker is not pushed to");
        server.poke(&worker.path("/uncordon")).await.ok();
        stub.has_got(1).await;
        first.succeed("done").await;
        server.post("workers", json!({ "name": worker.name, "capabilities": { "claude_cli": false, "agents": [crew.slug] } })).await.ok();
        let second = crew.task().create().await;
        the_push_loop_has_run(server).await;
        assert_eq!(second.status().await, "queued", "a worker without Claude is not pushed to");
        // A worker that claims shows by that that it can run tasks.
        assert_eq!(lease_ids(&worker.claim(1).await).len(), 1);
    }

    async fn tasks_of_a_context_come_one_after_the_other_and_stay_together(server) {
        let (here, there) = (willing().await, willing().await);
        let crew = server.crew();
        let context = unique("context");
        let first = crew.task().context(&context).create().await;
        let second = crew.task().context(&context).create().await;
        crew.pushed_worker(&here.url).slots(2).register().await;
        here.has_got(1).await;
        // This worker has more free slots, but not the session.
        crew.pushed_worker(&there.url).slots(9).register().await;
        the_push_loop_has_run(server).await;
        assert_eq!(second.status().await, "queued", "one task of the context runs at a time");
        first.complete(json!({ "status": "success", "session_id": "s-1", "metrics": { "duration_ms": 1 } })).await.ok();
        let pushed = here.has_got(2).await;
        assert_eq!((&pushed[1]["task_id"], &pushed[1]["session_id"]), (&json!(second.id), &json!("s-1")));
        assert!(there.pushed().is_empty());
    }

    async fn the_task_fails_when_the_agent_refuses_it(server) {
        let stub = willing().await;
        stub.always("/execute-task", Reply::new(500, r#"{"error":"can't"}"#));
        let crew = server.crew();
        let task = crew.task().create().await;
        crew.pushed_worker(&stub.url).register().await;
        let failed = task.reaches("failed").await;
        assert_eq!((&failed["attempts"], &failed["failure"]["reason"]), (&json!(1), &json!("agent_error")));
    }

    async fn an_agent_that_turns_everybody_away_costs_no_task_its_life(server) {
        let stub = willing().await;
        stub.once("/execute-task", Reply::new(401, r#"{"error":"wrong key"}"#));
        stub.once("/execute-task", Reply::new(503, r#"{"error":"full"}"#));
        let crew = server.crew();
        let task = crew.task().create().await;
        crew.pushed_worker(&stub.url).register().await;
        let pushed = stub.has_got(3).await;
        let leases: BTreeSet<&str> = pushed.iter().map(|task| task["lease_id"].as_str().unwrap()).collect();
        assert_eq!(leases.len(), 3, "each push has its own lease");
        let now = task.now().await;
        assert_eq!((&now["status"], &now["attempts"], &now["infra_retries"]), (&json!("leased"), &json!(1), &json!(2)));
    }

    async fn a_dead_agent_is_left_alone_until_it_is_well(server) {
        let stub = Stub::start().await;
        stub.always("/execute-task", Reply::new(500, "Internal Server Error"));
        let crew = server.crew();
        let task = crew.task().create().await;
        let worker = crew.pushed_worker(&stub.url).register().await;
        // While its health is checked again and again, no task is pushed to it.
        eventually("two health checks", || async { (stub.seen("/health").len() >= 2).then_some(()) }).await;
        let now = task.now().await;
        assert_eq!((&now["status"], &now["attempts"], &now["infra_retries"]), (&json!("queued"), &json!(0), &json!(1)));
        assert_eq!(stub.pushed().len(), 1);
        assert_eq!(worker.status().await, "online");
        stub.always("/execute-task", Reply::new(202, "{}"));
        stub.always("/health", Reply::new(200, "{}"));
        stub.has_got(2).await;
        assert_eq!(task.status().await, "leased");
    }

    async fn others_do_not_wait_for_a_slow_agent(server) {
        let mute = Mute::start("").await;
        let stub = willing().await;
        let crew = server.crew();
        let slow = crew.task().create().await;
        crew.pushed_worker(&mute.url).register().await;
        mute.has_a_request().await;
        crew.pushed_worker(&stub.url).slots(3).register().await;
        for _ in 0..3 {
            crew.task().create().await;
        }
        stub.has_got(3).await;
        assert_eq!(slow.status().await, "leased");
    }

    async fn an_unreachable_worker_does_not_keep_tasks_from_others(server) {
        let stub = willing().await;
        let crew = server.crew();
        let task = crew.task().create().await;
        crew.pushed_worker(&nowhere()).slots(9).register().await;
        eventually("one failed push", || async { (task.now().await["infra_retries"] == 1).then_some(()) }).await;
        crew.pushed_worker(&stub.url).register().await;
        stub.has_got(1).await;
    }

    async fn an_agent_that_answers_when_its_run_is_done_is_no_different(server) {
        let stub = Stub::start().await;
        stub.always("/execute-task", Reply { after: Duration::from_millis(300), ..Reply::new(200, r#"{"done":true}"#) });
        let crew = server.crew();
        crew.pushed_worker(&stub.url).register().await;
        for n in 1..=3 {
            let task = crew.task().create().await;
            stub.has_got(n).await;
            task.heartbeat(json!({})).await.ok();
            task.succeed("done").await;
        }
    }
}

on_both! { alone:
    async fn our_own_agent_runs_what_it_is_brought(database) {
        let server = Server::on(database).env("MEMBRIDGE_AGENT_KEY", "agent-key").start();
        let agent = server.agent("box").slots(2).echo().env("MEMBRIDGE_AGENT_KEY", "agent-key");
        let agent = agent.arg(&["--listen", "127.0.0.1:0", "--push-only"]).start();
        let crew = server.crew();
        let mut tasks = Vec::new();
        for n in 0..6 {
            tasks.push(crew.task().prompt(&format!("number {n}")).create().await);
        }
        for task in &tasks {
            assert_eq!(task.reaches("completed").await["attempts"], 1);
        }
        let health = server.get("workers/box/agent-health").await.ok();
        assert_eq!((&health["reachable"], &health["node_id"]), (&json!(true), &json!("box")));
        server.post("workers", json!({ "name": "box", "dispatch": "manual" })).await.ok();
        let task = crew.task().create().await;
        let answer = task.dispatch(json!({})).await.ok();
        assert_eq!(answer["execution"]["lease_id"], answer["lease_id"]);
        task.reaches("completed").await;
        drop(agent);
        server.get("workers/box/agent-health").await.ok();
        assert_eq!(server.get("workers/box").await.ok()["status"], "offline");
    }

    async fn a_server_killed_in_between_sends_nothing_twice(database) {
        let server = Server::on(database).env("LEASE_TTL_SECONDS", 2).start();
        let stub = Stub::start().await;
        // The first push is never answered, so the server is killed before the answer. Later pushes are accepted.
        stub.once("/execute-task", Reply { after: Duration::from_secs(600), ..Reply::new(202, "{}") });
        stub.always("/execute-task", Reply::new(202, "{}"));
        let crew = server.crew();
        crew.pushed_worker(&stub.url).register().await;
        let task = crew.task().create().await;
        stub.has_got(1).await;
        server.kill9();
        server.start_again();
        let pushed = stub.has_got(2).await;
        assert_ne!(pushed[0]["lease_id"], pushed[1]["lease_id"], "the second push is of another lease");
        let tables = checker::read(&server.database_url()).await;
        tables.are_sound();
        task.succeed("done").await;
    }

    async fn what_pushes_come_to_is_counted(database) {
        let server = Server::on(database).start();
        let stub = willing().await;
        stub.once("/execute-task", Reply::new(500, "{}"));
        stub.once("/execute-task", Reply::new(500, "oops"));
        let crew = server.crew();
        let worker = crew.worker_at(&stub.url).slots(4).register().await;
        for status in [200, 502, 200] {
            crew.task().create().await.dispatch(json!({ "worker_id": worker.name })).await.expect(status);
        }
        let metrics = server.get("/metrics").await.expect(200).text;
        for outcome in ["refused", "failed", "accepted"] {
            let line = format!("bloom_push_total{{outcome=\"{outcome}\"}} 1");
            assert!(metrics.lines().any(|found| found == line), "{line}");
        }
    }
}

#[test]
fn a_new_leader_does_not_push_what_the_last_one_has_pushed() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let first = eventually("one replica leads", || leader(&servers)).await;
        let other = &servers[1 - first];
        let mute = Mute::start("").await;
        let crew = other.crew();
        crew.pushed_worker(&mute.url).register().await;
        let task = crew.task().create().await;
        mute.has_a_request().await;
        let lease = task.heartbeat(json!({})).await.ok()["lease"]["id"].clone();
        servers[first].kill9();
        eventually("the other replica leads", || async { (leader(&servers[1 - first..2 - first]).await == Some(0)).then_some(()) }).await;
        let next = willing().await;
        crew.pushed_worker(&next.url).register().await;
        crew.task().create().await;
        next.has_got(1).await;
        assert_eq!(mute.requests.load(std::sync::atomic::Ordering::SeqCst), 1);
        let now = task.now().await;
        assert_eq!((&now["status"], &now["lease_id"]), (&json!("running"), &lease), "the run continues");
        task.complete(json!({ "status": "success", "lease_id": lease, "metrics": { "duration_ms": 1 } })).await.ok();
    });
}
