//! The audit trail: which changes leave an entry, and what it contains.

use crate::on_both;
use crate::support::*;

/// `action entity_type entity_id actor`, oldest first.
async fn trail(server: &Server) -> Vec<String> {
    let entries = server.get("audit?limit=1000").await.ok();
    let mut trail = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert!(entry["timestamp"].is_i64() && entry["id"].is_string() && entry["detail"].is_string(), "{entry}");
            ["action", "entity_type", "entity_id", "actor"].map(|key| entry[key].as_str().unwrap()).join(" ")
        })
        .collect::<Vec<_>>();
    trail.reverse();
    trail
}

on_both! { alone:
    async fn a_plain_lifecycle_leaves_three_entries(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let lease = task.lease_to(&worker).await;
        task.heartbeat(json!({})).await.ok();
        lease.heartbeat().await.ok();
        task.succeed("x").await;
        let (task, lease, worker) = (&task.id, &lease.id, &worker.name);
        assert_eq!(trail(&server).await, [
            format!("worker_registered worker {worker} api"),
            format!("task_created llm_task {task} api"),
            format!("task_leased lease {lease} router"),
            format!("task_completed llm_task {task} {worker}"),
        ]);
    }

    async fn what_a_request_did_is_found_by_its_id(database) {
        let server = Server::on(database).start();
        let slug = unique("agent");
        let tasks: Vec<_> = (0..3).map(|_| json!({ "context_id": "c", "agent_slug": slug, "prompt": "p", "session": "none" })).collect();
        let post = |path: &str, body: Value| server.request(reqwest::Method::POST, path).json(&body).send();
        let answer = post("llm-tasks:batch", json!({ "tasks": tasks })).await.unwrap();
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        server.request(reqwest::Method::POST, "workers").header("x-request-id", "mine-1").json(&json!({ "name": "w" })).send().await.unwrap();
        let found = server.get(&format!("audit?request_id={id}")).await.ok();
        let found = found.as_array().unwrap();
        assert!(found.len() == 3 && found.iter().all(|entry| entry["action"] == "task_created" && entry["request_id"] == id), "{found:?}");
        assert_eq!(server.get(&format!("audit?request_id={id}&limit=2")).await.ok().as_array().unwrap().len(), 2);
        assert_eq!(server.get(&format!("audit?request_id={id}&actor=admin")).await.ok(), json!([]));
        assert_eq!(server.get("audit?request_id=none").await.ok(), json!([]));
        let user = crate::cli::User::at(&server);
        let told = user.does(&["audit", "--request", "mine-1", "-o", "json"]).ok();
        let told: Value = serde_json::from_str(&told).unwrap();
        assert!(told.as_array().unwrap().len() == 1 && told[0]["action"] == "worker_registered", "{told}");
        let page = server.request(reqwest::Method::GET, "/audit?request_id=mine-1").send().await.unwrap().text().await.unwrap();
        assert!(page.contains("value=\"mine-1\"") && page.contains("/workers/w") && !page.contains(&slug), "{page}");
    }

    async fn every_deed_is_told(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        server.post("workers", json!({ "name": worker.name, "os_info": "Alpine" })).await.ok();
        for call in ["cordon", "uncordon", "drain", "uncordon"] {
            server.poke(&worker.path(&format!("/{call}"))).await.ok();
        }
        let failed = crew.task().create().await;
        failed.lease_to(&worker).await;
        failed.fail("x").await;
        failed.requeue().await.ok();
        failed.cancel().await.ok();
        let released = crew.task().with("session", json!("none")).create().await;
        let lease = released.lease_to(&worker).await;
        server.post(&released.path("/release"), json!({ "lease_id": lease.id, "reason": "shutdown" })).await.ok();
        let claimed = worker.claim(1).await;
        let claim = lease_ids(&claimed)[0].clone();
        server.task(&released.id).complete(json!({ "status": "error", "lease_id": claim, "retryable": true, "metrics": { "duration_ms": 1 } })).await.ok();
        let dying = crew.task().attempts(1).create().await;
        let last = dying.lease_for(&worker, 1).await;
        dying.reaches("dead").await;
        server.delete(&worker.path("")).await.ok();
        let told = trail(&server).await;
        let has = |line: String| assert!(told.contains(&line), "missing: {line}\nin: {told:#?}");
        let name = &worker.name;
        has(format!("worker_updated worker {name} api"));
        for deed in ["cordoned", "uncordoned", "draining"] {
            assert!(told.iter().any(|line| line.starts_with(&format!("worker_{deed} worker {name} "))), "{deed}: {told:#?}");
        }
        has(format!("task_requeued llm_task {} admin", failed.id));
        assert!(told.iter().any(|line| line.starts_with(&format!("task_cancelled llm_task {} ", failed.id))), "{told:#?}");
        assert!(told.iter().any(|line| line.starts_with("task_released ")), "{told:#?}");
        has(format!("task_leased lease {claim} reconciler"));
        assert!(told.iter().any(|line| line.starts_with(&format!("task_retried llm_task {} ", released.id))), "{told:#?}");
        has(format!("lease_expired lease {} reconciler", last.id));
        has(format!("task_dead llm_task {} reconciler", dying.id));
        assert!(told.iter().any(|line| line.starts_with(&format!("worker_removed worker {name} "))), "{told:#?}");
    }

    async fn a_worker_that_goes_and_comes_back_is_told(database) {
        let server = Server::on(database).env("WORKER_OFFLINE_AFTER_SECONDS", 1).start();
        let worker = server.crew().worker().register().await;
        eventually("the worker is offline", || async { (worker.status().await == "offline").then_some(()) }).await;
        worker.claim(1).await;
        let online = format!("worker_online worker {} ", worker.name);
        let told = eventually("the worker is back", || async {
            let told = trail(&server).await;
            told.iter().any(|line| line.starts_with(&online)).then_some(told)
        }).await;
        assert!(told.contains(&format!("worker_offline worker {} reconciler", worker.name)), "{told:#?}");
    }

    async fn what_changes_nothing_leaves_no_entry(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let (task, _) = crew.leased_task().await;
        task.cancel().await.ok();
        let before = trail(&server).await;
        task.cancel().await.ok();
        task.requeue().await.expect(409);
        task.heartbeat(json!({})).await.ok();
        task.heartbeat(json!({ "lease_id": NO_ID })).await.expect(409);
        server.post("llm-tasks", json!({})).await.expect(400);
        server.get("llm-tasks").await.ok();
        assert_eq!(trail(&server).await, before);
    }

    async fn entries_are_filtered(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let (first, second) = (crew.worker().register().await, crew.worker().register().await);
        let start = now_ms();
        let task = crew.task().with("session", json!("none")).create().await;
        let lost = task.lease_for(&first, 1).await;
        eventually("the lease expires", || async { (task.status().await == "queued").then_some(()) }).await;
        let kept = task.lease_to(&second).await;
        task.succeed("x").await;
        let other = crew.task().create().await;
        other.cancel().await.ok();
        other.requeue().await.ok();
        let told = |query: String| {
            let server = &server;
            async move {
                let entries = server.get(&format!("audit?{query}")).await.ok();
                let line = |entry: &Value| ["action", "entity_id"].map(|key| entry[key].as_str().unwrap().to_owned()).join(" ");
                entries.as_array().unwrap().iter().rev().map(line).collect::<Vec<_>>()
            }
        };
        let of_task = [
            format!("task_created {}", task.id),
            format!("task_leased {}", lost.id),
            format!("lease_expired {}", lost.id),
            format!("task_leased {}", kept.id),
            format!("task_completed {}", task.id),
        ];
        assert_eq!(told(format!("task_id={}", task.id)).await, of_task, "with the entries of its leases");
        assert_eq!(told(format!("worker_id={}", first.name)).await, [
            format!("worker_registered {}", first.name), of_task[1].clone(), of_task[2].clone(),
        ]);
        let of_second = [format!("worker_registered {}", second.name), of_task[3].clone(), of_task[4].clone()];
        assert_eq!(told(format!("worker_id={}", second.name)).await, of_second);
        assert_eq!(told(format!("actor={}", second.name)).await, of_task[4..]);
        assert_eq!(told("actor=admin".into()).await, [format!("task_requeued {}", other.id)]);
        assert_eq!(told("actor=router".into()).await, [of_task[1].clone(), of_task[3].clone()]);
        assert_eq!(told("action=lease_expired".into()).await, of_task[2..3]);
        assert_eq!(told("action=task_leased".into()).await, [of_task[1].clone(), of_task[3].clone()]);
        let requeued = format!("task_requeued {}", other.id);
        let of_requeue = std::slice::from_ref(&requeued);
        assert_eq!(told("action=task_requeued,lease_expired".into()).await, [of_task[2].clone(), requeued.clone()], "both rare");
        assert_eq!(told("action=task_requeued,lease_expired&limit=1".into()).await, of_requeue, "the newest of both");
        assert_eq!(told("action=lease_expired,task_leased".into()).await, of_task[1..4], "one is frequent");
        assert_eq!(told("action=task_requeued,task_completed&actor=admin".into()).await, of_requeue);
        assert_eq!(told(format!("action=task_completed,lease_expired&task_id={}", task.id)).await, [of_task[2].clone(), of_task[4].clone()]);
        assert_eq!(told(format!("task_id={}&action=task_leased&worker_id={}&actor=router", task.id, first.name)).await, of_task[1..2]);
        assert_eq!(told(format!("created_before={start}&task_id={}", task.id)).await, [] as [String; 0]);
        assert_eq!(told(format!("created_after={}&task_id={}", start - 1, task.id)).await, of_task);
        assert_eq!(told(format!("created_after={}", now_ms() + 60_000)).await, [] as [String; 0]);
        assert_eq!(told(format!("task_id={NO_ID}")).await, [] as [String; 0]);
        assert_eq!(told("worker_id=&actor=&action=&task_id=&limit=1000".into()).await.len(), 10, "empty values are no filters");
        let shown = server.get(&format!("audit?action=lease_expired&task_id={}", task.id)).await.ok();
        assert_eq!((&shown[0]["task_id"], &shown[0]["worker_id"]), (&json!(task.id), &json!(first.name)));

        // Pages keep the filter.
        let page = server.get(&format!("audit?task_id={}&limit=3", task.id)).await;
        let next = page.next_page().expect("a next page");
        assert_eq!((page.ok().as_array().unwrap().len(), server.get(&next).await.ok().as_array().unwrap().len()), (3, 2));

        for (query, field) in [
            ("task_id=x", "task_id"), ("action=task_crated", "action"), ("action=task_created,", "action"), ("created_after=soon", "created_after"), ("created_before=-1", "created_before"),
            ("actor=a%00b", "actor"), ("worker_id=a%00b", "worker_id"),
        ] {
            server.get(&format!("audit?{query}")).await.refuses(&[field]);
        }
    }

    async fn an_entry_names_the_request_that_caused_it(database) {
        let server = Server::on(database).start();
        let answer = server.crew().task().answer().await.expect(201);
        let id = answer.header("x-request-id").expect("a request id").to_owned();
        let listed = server.get("audit?limit=1").await.ok();
        assert!(listed[0].to_string().contains(&id), "{id}: {listed}");
    }

    async fn old_entries_go_by_their_age(database) {
        let server = Server::on(database).env("AUDIT_RETENTION_DAYS", 1).env("TASK_RETENTION_DAYS", 1).start();
        server.crew().task().create().await.cancel().await.ok();
        assert_eq!(trail(&server).await.len(), 2, "entries of today are kept");
    }
}
