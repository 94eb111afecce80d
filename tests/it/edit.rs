//! Edits of queued tasks, and deletions of finished ones.

use crate::liveness::task_ids;
use crate::on_both;
use crate::replicas::replicas;
use crate::support::*;

on_both! {
    async fn a_queued_task_is_edited(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let labels = json!({ "team": "a", "old": "1" });
        let (first, second) = (crew.task().with("session", json!("none")).with("labels", labels).create().await, crew.task().create().await);
        let later = now_ms() + 3_600_000;
        let edit = json!({ "priority": 9, "not_before": later, "labels": { "team": "b", "new": "2", "old": null, "none": null } });
        let before = first.now().await;
        let shown = server.patch(&second.path(""), edit).await.ok();
        assert_eq!((&shown["priority"], &shown["not_before"], &shown["labels"]), (&json!(9), &json!(later), &json!({ "team": "b", "new": "2" })));
        assert_eq!((&shown["waiting"]["reason"], &shown["status"]), (&json!("not_before"), &json!("queued")));
        assert_eq!(second.now().await, shown);
        assert_eq!(first.now().await, before, "other tasks stay as they are");
        let shown = server.patch(&first.path(""), json!({ "labels": { "old": null, "new": "2" } })).await.ok();
        assert_eq!(shown["labels"], json!({ "team": "a", "new": "2" }), "other labels stay");

        let listed = |filter: &'static str| {
            let path = format!("llm-tasks?agent_slug={}&{filter}", crew.slug);
            async move {
                let tasks = server.get(&path).await.ok();
                tasks.as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
            }
        };
        assert_eq!(listed("label=new%3D2").await, [second.id.clone(), first.id.clone()]);
        assert_eq!(listed("label=team%3Db").await, std::slice::from_ref(&second.id));
        assert_eq!(listed("label=old%3D1").await, [] as [String; 0]);

        assert_eq!(task_ids(&worker.claim(1).await), [first.id.as_str()], "the other one is not ready");
        let path = worker.path("/claim");
        let (api, here) = ((*server).clone(), second.id.clone());
        let claim = beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 30 })).await.ok() });
        let cleared = server.patch(&second.path(""), json!({ "not_before": null })).await.ok();
        assert_eq!(cleared["not_before"], Value::Null);
        assert_eq!(claim.await.unwrap()["leases"][0]["task"]["id"], json!(here), "a waiting claim is woken");

        second.fail("x").await;
        server.patch(&second.path(""), json!({ "priority": 1 })).await.fails(409, "Cannot edit task with status 'failed': only a queued task can be edited");
        let back = second.requeue().await.ok();
        assert_eq!((&back["priority"], &back["labels"]), (&json!(9), &json!({ "team": "b", "new": "2" })), "an edit is kept");
    }

    async fn an_edit_moves_a_task_in_the_queue(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let mut tasks = Vec::new();
        for _ in 0..4 {
            tasks.push(crew.task().with("session", json!("none")).create().await);
        }
        server.patch(&tasks[2].path(""), json!({ "priority": 9 })).await.ok();
        server.patch(&tasks[0].path(""), json!({ "priority": 1 })).await.ok();
        server.patch(&tasks[3].path(""), json!({ "not_before": now_ms() + 3_600_000 })).await.ok();
        let mut order = Vec::new();
        while let Some(id) = task_ids(&worker.claim(1).await).first() {
            order.push((*id).to_owned());
        }
        assert_eq!(order, [tasks[2].id.clone(), tasks[1].id.clone(), tasks[0].id.clone()]);
    }

    async fn an_edit_that_changes_nothing_leaves_no_entry(server) {
        let task = server.crew().task().with("labels", json!({ "a": "1" })).create().await;
        let before = task.now().await;
        let same = json!({ "priority": before["priority"], "not_before": null, "labels": { "a": "1", "b": null } });
        assert_eq!(server.patch(&task.path(""), same).await.ok(), before);
        server.patch(&task.path(""), json!({ "labels": {} })).await.ok();
        server.patch(&task.path(""), json!({ "priority": 7, "labels": { "a": "2" } })).await.ok();
        let entries = server.get(&format!("audit?task_id={}", task.id)).await.ok();
        let told: Vec<_> = entries.as_array().unwrap().iter().map(|entry| [&entry["action"], &entry["actor"], &entry["detail"]]).collect();
        assert_eq!(told[0], [&json!("task_edited"), &json!("admin"), &json!("priority 5 to 7, labels a")]);
        assert_eq!(told.len(), 2, "{told:?}");
    }

    async fn a_wrong_edit_is_refused_whole(server) {
        let task = server.crew().task().create().await;
        let before = task.now().await;
        let path = task.path("");
        let refused = |body: Value| server.patch(&path, body);
        refused(json!({ "priority": 10, "labels": { "a": 1 }, "not_before": "now", "prompt": "x", "status": "completed" }))
            .await
            .refuses(&["priority", "labels", "not_before", "prompt", "status"]);
        for body in [json!({}), json!([]), json!(null), json!("x")] {
            refused(body).await.refuses(&[]);
        }
        refused(json!({ "priority": null })).await.refuses(&["priority"]);
        let many: serde_json::Map<_, _> = (0..33).map(|n| (n.to_string(), json!(""))).collect();
        refused(json!({ "priority": 1, "labels": many })).await.refuses(&["labels"]);
        server.send(reqwest::Method::PATCH, &task.path(""), Some(b"{".to_vec())).await.expect(400);
        assert_eq!(task.now().await, before);
        server.patch(&format!("llm-tasks/{NO_ID}"), json!({ "priority": 1 })).await.fails(404, "Task not found");
        server.patch("llm-tasks/x", json!({ "priority": 1 })).await.fails(404, "Task not found");
    }

    async fn a_finished_task_is_deleted_with_what_belongs_to_it(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let task = crew.task().with("idempotency_key", json!(unique("key"))).with("labels", json!({ "gone": crew.slug })).create().await;
        server.delete(&task.path("")).await.fails(409, "Cannot delete task with status 'queued': cancel it first");
        let lease = task.lease_to(&worker).await;
        server.delete(&task.path("")).await.fails(409, "Cannot delete task with status 'leased': cancel it first");
        let events = json!([{ "seq": 1, "kind": "text", "at": now_ms(), "data": "x" }]);
        server.post(&task.path("/events"), json!({ "lease_id": lease.id, "events": events })).await.ok();
        let waits = crew.task().with("session", json!("none")).create().await;
        let both = crew.task().with("session", json!("none")).with("depends_on", json!([task.id, waits.id])).create().await;
        let usage = json!({ "input_tokens": 3, "output_tokens": 4, "cost_usd": 0.5 });
        let model = unique("model");
        task.complete(json!({ "status": "success", "output": "x", "metrics": { "duration_ms": 1 }, "usage": usage, "model": model })).await.ok();
        let before = task.now().await;

        assert_eq!(server.delete(&task.path("")).await.ok(), json!({ "removed": true, "id": task.id }));
        for path in ["", "/result", "/events", "/wait?timeout_sec=0"] {
            server.get(&task.path(path)).await.expect(404);
        }
        server.delete(&task.path("")).await.fails(404, "Task not found");
        task.requeue().await.fails(404, "Task not found");
        server.patch(&task.path(""), json!({ "priority": 1 })).await.fails(404, "Task not found");
        assert_eq!(server.get(&format!("artifacts?task_id={}", task.id)).await.ok(), json!([]));
        assert_eq!(server.get(&format!("llm-tasks?label=gone%3D{}", crew.slug)).await.ok(), json!([]));
        let leases = server.get("leases?limit=1000").await.ok();
        assert!(leases.as_array().unwrap().iter().all(|lease| lease["task_id"] != json!(task.id)));
        let rows = server.get("usage?by=model").await.ok();
        let row = rows.as_array().unwrap().iter().find(|row| row["key"] == json!(model)).expect("the usage is kept");
        assert_eq!((&row["runs"], &row["input_tokens"]), (&json!(1), &json!(3)));
        let gone = both.now().await;
        assert_eq!((&gone["status"], &gone["failure"]["reason"]), (&json!("cancelled"), &json!("dependency_failed")));
        let entries = server.get(&format!("audit?task_id={}&action=task_deleted", task.id)).await.ok();
        assert_eq!((&entries[0]["actor"], &entries[0]["detail"]), (&json!("admin"), &json!("was completed")));
        let again = crew.task().with("idempotency_key", before["idempotency_key"].clone()).create().await;
        assert_ne!(again.id, task.id, "its idempotency key is free again");
        crew.task().with("depends_on", json!([task.id])).answer().await.refuses(&["depends_on"]);
    }

    async fn of_a_requeue_and_a_deletion_one_wins(server) {
        let crew = server.crew();
        for _ in 0..20 {
            let task = crew.task().with("session", json!("none")).create().await;
            task.cancel().await.ok();
            let (requeued, deleted) = futures_util::future::join(task.requeue(), server.delete(&task.path(""))).await;
            match (requeued.status, deleted.status) {
                (200, 409) => assert_eq!(task.status().await, "queued"),
                (404, 200) => drop(server.get(&task.path("")).await.expect(404)),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn an_edit_on_one_replica_changes_the_order_on_the_other() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let (here, there) = crew_on_both(&servers);
        let worker = there.worker().slots(8).register().await;
        let mut tasks = Vec::new();
        for _ in 0..4 {
            tasks.push(here.task().with("session", json!("none")).create().await);
        }
        let waiting = here.task().with("session", json!("none")).with("not_before", json!(now_ms() + 3_600_000)).create().await;
        // The other replica has the queue in its cache before the edit.
        let first = worker.claim(1).await;
        assert_eq!(task_ids(&first), [tasks[0].id.as_str()]);
        servers[0].patch(&tasks[3].path(""), json!({ "priority": 9 })).await.ok();
        servers[0].patch(&tasks[1].path(""), json!({ "priority": 0 })).await.ok();
        // A change that the other replica shows has reached its cache, and those before it too.
        let mark = here.worker().register().await;
        eventually("the other replica has followed", || async {
            let workers = servers[1].get("stats").await.ok();
            let shown = servers[1].get(&mark.path("")).await;
            (shown.status == 200 && workers["workers"]["total"] == json!(2)).then_some(())
        })
        .await;
        let mut order = Vec::new();
        while let Some(id) = task_ids(&worker.claim(1).await).first() {
            order.push((*id).to_owned());
        }
        assert_eq!(order, [tasks[3].id.clone(), tasks[2].id.clone(), tasks[1].id.clone()]);
        let path = worker.path("/claim");
        let api = (**servers[1]).clone();
        let claim = beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 30 })).await.ok() });
        servers[0].patch(&waiting.path(""), json!({ "not_before": null })).await.ok();
        assert_eq!(claim.await.unwrap()["leases"][0]["task"]["id"], json!(waiting.id));

        let last = here.task().with("session", json!("none")).create().await;
        last.cancel().await.ok();
        let (requeued, deleted) = futures_util::future::join(servers[1].task(&last.id).requeue(), servers[0].delete(&last.path(""))).await;
        assert!(matches!((requeued.status, deleted.status), (200, 409) | (404, 200)), "{} {}", requeued.status, deleted.status);
    });
}
