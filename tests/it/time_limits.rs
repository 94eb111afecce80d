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
        server.post(&requeue, json!({ "policy": { "timeout_sec": 60, "max_attempts": 2 } })).await.refuses(&["policy"]);
        assert_eq!(task.status().await, "failed", "a wrong request changes nothing");
        let longer = json!({ "timeout_sec": 7200, "timeout_is_default": false, "budget": 1.5 });
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
        for wrong in [json!({ "timeout_sec": 0 }), json!({ "timeout_sec": 86_401 }), json!({ "timeout_sec": 60, "budget": -1 }), json!("2h")] {
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
        assert_eq!(server.patch(&task.path(""), policy(86_400)).await.ok()["policy"], json!({ "timeout_sec": 86_400, "timeout_is_default": false, "budget": 0.0 }));
        assert_eq!(task.now().await["policy"]["timeout_sec"], 86_400);
        let entries = server.get(&format!("audit?task_id={}", task.id)).await.ok();
        assert_eq!((&entries[0]["action"], &entries[0]["detail"]), (&json!("task_edited"), &json!("timeout_sec 120 by default to 86400")));
        for wrong in [policy(86_401), json!({ "policy": {} }), json!({ "policy": { "budget": "1" } }), json!({ "policy": null })] {
            server.patch(&task.path(""), wrong).await.refuses(&["policy"]);
        }
    }
}

on_both! {
    async fn profiles_may_limit_tasks_that_name_no_limit(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let claimed = async || {
            let claimed = server.post(&worker.path("/claim"), json!({ "max": 1 })).await.ok()["leases"][0].clone();
            let lasts = claimed["lease"]["expires_at"].as_i64().unwrap() - claimed["lease"]["started_at"].as_i64().unwrap();
            (claimed["task"]["policy"]["timeout_is_default"].clone(), claimed["lease"]["profile_timeout_max"].clone(), lasts)
        };
        let of = |policy: Value| crew.task().with("session", json!("none")).with("policy", policy);
        // Without a profile that says otherwise, the lease of a short task ends a minute after its time limit, before its TTL is over.
        let (own, default) = (json!({ "timeout_sec": 1 }), json!({ "timeout_sec": 1, "timeout_is_default": true }));
        let (own, default) = (of(own).create().await, of(default).create().await);
        assert_eq!(claimed().await, (json!(false), Value::Null, 61_000));
        let (is_default, most, lasts) = claimed().await;
        assert_eq!((is_default, most), (json!(true), json!(86_400)));
        assert!(lasts > 61_000, "{lasts}");
        for task in [&own, &default] {
            task.fail("x").await;
        }
        // Who names the same limit wants that one.
        assert_eq!(default.requeue().await.ok()["policy"]["timeout_is_default"], true, "it is as it was");
        let named = server.patch(&default.path(""), policy(1)).await.ok();
        assert_eq!(named["policy"], json!({ "timeout_sec": 1, "timeout_is_default": false, "budget": 0.0 }));
        let entries = server.get(&format!("audit?task_id={}", default.id)).await.ok();
        assert_eq!((&entries[0]["action"], &entries[0]["detail"]), (&json!("task_edited"), &json!("timeout_sec 1 by default to 1")));
        assert_eq!(claimed().await, (json!(false), Value::Null, 61_000));
        let other = of(json!({})).create().await;
        other.cancel().await.ok();
        let again = server.post(&other.path("/requeue"), policy(120)).await.ok();
        assert_eq!(again["policy"], json!({ "timeout_sec": 120, "timeout_is_default": false, "budget": 0.0 }));
    }
}

on_both! { alone:
    async fn a_profile_gets_no_more_than_the_server_allows(database) {
        let server = Server::on(database).env("MAX_TIMEOUT_SECONDS", 3600).start();
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let batch = server.post("llm-tasks:batch", json!({ "tasks": [crew.task().json()] })).await.created();
        assert_eq!(batch["tasks"][0]["policy"]["timeout_is_default"], true);
        let claimed = server.post(&worker.path("/claim"), json!({ "max": 1 })).await.ok();
        assert_eq!(claimed["leases"][0]["lease"]["profile_timeout_max"], 3600);
        let leases = server.get("leases?limit=1000").await;
        assert!(leases.text.find("profile_timeout_max").is_none(), "lists do not tell it");
    }

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
