//! The time limit of runs: the maximum of a server, and its change in tasks that exist.

use crate::on_both;
use crate::support::*;

fn policy(seconds: i64) -> Value {
    json!({ "policy": { "timeout_sec": seconds } })
}

on_both! {
    async fn a_requeued_task_may_get_more_time(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().with("policy", json!({ "timeout_sec": 60, "budget": 1.5 })).create().await;
        task.lease_to(&worker).await;
        task.fail("x").await;
        let requeue = task.path("/requeue");
        server.post(&requeue, policy(0)).await.refuses(&["policy"]);
        server.post(&requeue, json!({ "policy": { "timeout_sec": 60, "budget": 2 } })).await.refuses(&["policy"]);
        assert_eq!(task.status().await, "failed", "a wrong request changes nothing");
        let longer = json!({ "timeout_sec": 7200, "budget": 1.5 });
        assert_eq!(server.post(&requeue, policy(7200)).await.ok()["policy"], longer);
        let entries = server.get(&format!("audit?task_id={}", task.id)).await.ok();
        assert_eq!((&entries[0]["action"], &entries[0]["detail"]), (&json!("task_requeued"), &json!("timeout_sec 60 to 7200")));
        let leased = server.post(&worker.path("/claim"), json!({ "max": 1 })).await.ok();
        assert_eq!(leased["leases"][0]["task"]["policy"], longer, "the worker is told");
        task.fail("x").await;
        assert_eq!(task.requeue().await.ok()["policy"], longer, "it is kept");
    }

    async fn many_requeued_tasks_get_more_time(server) {
        let crew = server.crew();
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let task = crew.task().create().await;
            task.cancel().await.ok();
            tasks.push(task);
        }
        let named = json!({ "ids": [tasks[0].id, tasks[1].id] });
        let with = |mut body: Value, policy: Value| {
            body["policy"] = policy;
            body
        };
        for wrong in [json!({ "timeout_sec": 0 }), json!({ "timeout_sec": 86_401 }), json!({ "timeout_sec": 60, "budget": 1 }), json!("2h")] {
            server.post("llm-tasks:requeue", with(named.clone(), wrong)).await.refuses(&["policy"]);
        }
        assert_eq!(tasks[0].status().await, "cancelled", "a wrong request changes nothing");
        let all = json!({ "filter": { "agent_slug": crew.slug } });
        let changed = async |body: Value| server.post("llm-tasks:requeue", body).await.ok()["changed"].clone();
        assert_eq!(changed(with(named, json!({ "timeout_sec": 7200 }))).await, 2);
        assert_eq!(changed(with(all, json!({ "timeout_sec": 600 }))).await, 1);
        for (task, seconds) in tasks.iter().zip([7200, 7200, 600]) {
            let now = task.now().await;
            assert_eq!((&now["status"], &now["policy"]["timeout_sec"]), (&json!("queued"), &json!(seconds)));
        }
    }

    async fn a_queued_task_may_get_more_time(server) {
        let task = server.crew().task().create().await;
        assert_eq!(server.patch(&task.path(""), policy(86_400)).await.ok()["policy"], json!({ "timeout_sec": 86_400, "budget": 0.0 }));
        assert_eq!(task.now().await["policy"]["timeout_sec"], 86_400);
        let entries = server.get(&format!("audit?task_id={}", task.id)).await.ok();
        assert_eq!((&entries[0]["action"], &entries[0]["detail"]), (&json!("task_edited"), &json!("timeout_sec 120 to 86400")));
        for wrong in [policy(86_401), json!({ "policy": {} }), json!({ "policy": { "budget": 1 } }), json!({ "policy": null })] {
            server.patch(&task.path(""), wrong).await.refuses(&["policy"]);
        }
    }
}

on_both! { alone:
    async fn no_time_limit_is_above_that_of_the_server(database) {
        let server = Server::on(database).env("MAX_TIMEOUT_SECONDS", 3600).start();
        let crew = server.crew();
        let new = |seconds: i64| crew.task().with("policy", json!({ "timeout_sec": seconds }));
        let told = "timeout_sec: Number must be less than or equal to 3600: that is MAX_TIMEOUT_SECONDS of this server";
        assert_eq!(new(3601).answer().await.refuses(&["policy"])["policy"][0], told);
        let batch = server.post("llm-tasks:batch", json!({ "tasks": [new(60).json(), new(3601).json()] })).await;
        assert_eq!(batch.refuses(&["tasks"])["tasks"][0], format!("policy: {told}"));
        let task = new(3600).create().await;
        assert_eq!(server.patch(&task.path(""), policy(3601)).await.refuses(&["policy"])["policy"][0], told);
        task.cancel().await.ok();
        assert_eq!(server.post(&task.path("/requeue"), policy(3601)).await.refuses(&["policy"])["policy"][0], told);
        let bulk = json!({ "ids": [task.id], "policy": { "timeout_sec": 3601 } });
        assert_eq!(server.post("llm-tasks:requeue", bulk).await.refuses(&["policy"])["policy"][0], told);
        let listed = server.get(&format!("llm-tasks?agent_slug={}", crew.slug)).await.ok();
        assert_eq!(listed.as_array().unwrap().len(), 1, "nothing else was created: {listed}");
    }
}
