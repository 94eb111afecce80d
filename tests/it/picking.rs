//! Which worker a lease call chooses.

use crate::on_both;
use crate::support::*;

/// The worker that a lease call chooses if it names none.
async fn picked(task: &Task<'_>) -> String {
    task.lease(json!({})).await.created()["worker"]["id"].as_str().unwrap().to_owned()
}

const NOBODY: &str = "No available worker with free capacity";

on_both! {
    async fn the_worker_with_most_room_is_picked(server) {
        let crew = server.crew();
        let small = crew.worker().slots(2).register().await;
        let large = crew.worker().slots(4).register().await;
        for _ in 0..2 {
            assert_eq!(picked(&crew.task().create().await).await, large.name);
        }
        crew.task().create().await.lease_to(&large).await;
        assert_eq!(picked(&crew.task().create().await).await, small.name, "it has two free slots, the other one has one");
    }

    async fn of_equals_the_one_heard_of_last_is_picked(server) {
        let crew = server.crew();
        let first = crew.worker().slots(2).register().await;
        let second = crew.worker().slots(2).register().await;
        let _ = &second;
        first.set_status("online").await;
        assert_eq!(picked(&crew.task().create().await).await, first.name);
    }

    async fn a_context_sticks_to_the_worker_that_has_it(server) {
        let crew = server.crew();
        let small = crew.worker().slots(3).register().await;
        crew.worker().slots(32).register().await;
        let context = unique("context");
        let first = crew.task().context(&context).create().await;
        first.lease_to(&small).await;
        let second = crew.task().context(&context).create().await;
        assert_eq!(picked(&second).await, small.name, "it has an active lease of the context");
        first.succeed("x").await;
        second.succeed("x").await;
        assert_eq!(picked(&crew.task().context(&context).create().await).await, small.name, "it completed the context's last lease");
    }

    async fn a_full_worker_is_no_reason_to_wait(server) {
        let crew = server.crew();
        let small = crew.worker().slots(1).register().await;
        let large = crew.worker().slots(2).register().await;
        let context = unique("context");
        crew.task().context(&context).create().await.lease_to(&small).await;
        assert_eq!(picked(&crew.task().context(&context).create().await).await, large.name);
    }

    async fn a_worker_is_passed_over_for_each_reason(server) {
        for unfit in ["offline", "syncing", "error", "unknown", "no claude", "full", "cordoned", "other agents"] {
            let crew = server.crew();
            let mut worker = crew.worker();
            match unfit {
                "offline" | "syncing" | "error" | "unknown" => worker = worker.with("status", json!(unfit)),
                "no claude" => worker = worker.able("claude_cli", json!(false)),
                "other agents" => worker = worker.able("agents", json!([unique("other")])),
                _ => {}
            }
            let worker = worker.register().await;
            match unfit {
                "cordoned" => worker.cordon().await,
                "full" => drop(crew.task().create().await.lease_to(&worker).await),
                _ => {}
            }
            let answer = crew.task().create().await.lease(json!({})).await;
            assert_eq!(answer.status, 503, "{unfit}: {}", answer.text);
            answer.fails(503, NOBODY);
        }
    }

    async fn naming_a_worker_skips_only_the_choice(server) {
        let crew = server.crew();
        let task = crew.task().create().await;
        let worker = crew.worker().with("status", json!("offline")).register().await;
        task.lease(json!({ "worker_id": worker.name })).await.fails(503, NOBODY);
        worker.set_status("online").await;
        task.lease_to(&worker).await;
        let next = crew.task().create().await;
        next.lease(json!({ "worker_id": worker.name })).await.fails(503, NOBODY);
        next.lease(json!({ "worker_id": "nobody-of-this-name" })).await.fails(404, "Worker not found");
    }

    async fn a_named_worker_must_be_fit_all_the_same(server) {
        let crew = server.crew();
        let task = crew.task().create().await;
        let unfit = [
            crew.worker().able("claude_cli", json!(false)).register().await,
            server.crew().worker().register().await,
            crew.worker().register().await,
        ];
        unfit[2].cordon().await;
        for worker in &unfit {
            task.lease(json!({ "worker_id": worker.name })).await.fails(503, NOBODY);
        }
        server.poke(&unfit[2].path("/uncordon")).await.ok();
        task.lease_to(&unfit[2]).await;
    }

    async fn room_comes_back_when_a_task_ends(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let (first, second) = (crew.task().create().await, crew.task().create().await);
        first.lease_to(&worker).await;
        second.lease(json!({})).await.fails(503, NOBODY);
        first.succeed("x").await;
        assert_eq!(picked(&second).await, worker.name);
    }
}

on_both! { alone:
    async fn a_worker_that_names_no_agents_serves_all(database) {
        let server = Server::on(database).start();
        let worker = server.worker().register().await;
        let task = server.crew().task().create().await;
        assert_eq!(picked(&task).await, worker.name);
    }
}
