//! Parallel requests: what may happen once happens once, and no worker exceeds its capacity.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::future::join_all;

use crate::on_both;
use crate::support::*;

on_both! {
    async fn of_parallel_lease_calls_one_wins(server) {
        let crew = server.crew();
        crew.worker().slots(32).register().await;
        crew.worker().slots(32).register().await;
        for _ in 0..5 {
            let task = crew.task().create().await;
            let answers = join_all((0..64).map(|_| task.lease(json!({})))).await;
            assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
            for answer in answers.into_iter().filter(|answer| answer.status != 201) {
                answer.fails(409, "Task status is 'leased', expected 'queued'");
            }
            assert_eq!(task.now().await["attempts"], 1);
        }
    }

    async fn of_parallel_completions_one_counts(server) {
        let crew = server.crew();
        for named in [false, true] {
            let (task, lease) = crew.leased_task().await;
            let answers = join_all((0..32).map(|i| {
                let mut body = json!({ "status": "success", "output": format!("{i}"), "metrics": { "duration_ms": 1 } });
                if named {
                    body["lease_id"] = json!(lease.id);
                }
                task.complete(body)
            })).await;
            let won = answers.iter().filter(|answer| answer.status == 200).collect::<Vec<_>>();
            // A repeat that names its lease gets the result that was stored first.
            assert_eq!(won.len(), if named { 32 } else { 1 });
            assert!(won.iter().all(|answer| answer.json() == won[0].json()));
            assert_eq!(server.get(&format!("artifacts?task_id={}", task.id)).await.ok().as_array().unwrap().len(), 1);
            assert_eq!(server.get(&task.path("/result")).await.ok(), won[0].json()["result"]);
        }
    }

    async fn parallel_claims_share_the_work_out(server) {
        let crew = server.crew();
        let tasks = (0..64).map(|_| crew.task().json()).collect::<Vec<_>>();
        server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        let mut workers = Vec::new();
        for _ in 0..8 {
            workers.push(crew.worker().slots(8).register().await);
        }
        let claims = join_all((0..4).flat_map(|_| workers.iter().map(|worker| worker.claim(3)))).await;
        let mut seen = std::collections::HashSet::new();
        for entry in claims.iter().flatten() {
            assert!(seen.insert(entry["task"]["id"].to_string()), "delivered twice: {entry}");
        }
        for worker in &workers {
            let shown = worker.now().await;
            assert!(shown["active_leases"].as_i64().unwrap() <= 8, "{shown}");
        }
        let mut rest = Vec::new();
        for worker in &workers {
            rest.extend(worker.claim(8).await);
        }
        assert_eq!(seen.len() + rest.len(), 64, "each task is leased exactly once");
    }

    async fn a_parallel_cancel_and_completion_agree(server) {
        let crew = server.crew();
        for _ in 0..10 {
            let (task, lease) = crew.leased_task().await;
            let (cancel, done) = tokio::join!(task.cancel(), lease.complete("error", json!({ "retryable": true })));
            let end = task.now().await;
            match cancel.status {
                200 => assert_eq!(end["status"], "cancelled", "{end}"),
                other => panic!("{other}: {}", cancel.text),
            }
            assert_eq!(done.status, 200, "{}", done.text);
        }
    }

    async fn one_holder_of_a_key_under_any_race(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(32).register().await;
        let key = json!(unique("key"));
        let mut tasks = Vec::new();
        for _ in 0..16 {
            tasks.push(crew.task().with("exclusive_key", key.clone()).create().await);
        }
        let body = json!({ "worker_id": worker.name });
        let (calls, claimed) = tokio::join!(join_all(tasks.iter().map(|task| task.lease(body.clone()))), worker.claim(32));
        let won = calls.iter().filter(|answer| answer.status == 201).count() + claimed.len();
        assert_eq!(won, 1);
    }
}

on_both! { alone:
    async fn a_hundred_workers_are_never_overrun(database) {
        // No worker is lost and no lease ends while all is done, however long that takes.
        let server = Arc::new(Server::on(database).env("WORKER_OFFLINE_AFTER_SECONDS", 3_600).env("LEASE_TTL_SECONDS", 3_600).start());
        let crew = server.crew();
        let hiring = &crew;
        let names = join_all((0..100).map(|i| {
            let slots = if i % 4 == 0 { 32 } else { 1 + i % 8 };
            async move { (hiring.worker().slots(slots).register().await.name, slots) }
        })).await.into_iter().collect::<HashMap<_, _>>();
        let slots = names.values().sum::<i64>();
        let wanted = usize::try_from(slots).unwrap() + 300;
        for _ in 0..wanted.div_ceil(500) {
            let tasks = (0..500).map(|_| crew.task().json()).collect::<Vec<_>>();
            server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        let over = Arc::<AtomicBool>::default();
        let watcher = beside(watch_slots(Arc::clone(&server), names.clone(), Arc::clone(&over)));
        let taken = Arc::<AtomicUsize>::default();
        // Half of the tasks are leased by claims and half by lease calls, in parallel, and every worker asks for more than its capacity.
        let slug = crew.slug.clone();
        let queued = server.get(&format!("llm-tasks?agent_slug={slug}&limit=1000")).await.ok();
        let callers = queued.as_array().unwrap().iter().map(|task| {
            let (task, taken) = (server.task(task["id"].as_str().unwrap()), Arc::clone(&taken));
            async move {
                if task.lease(json!({})).await.status == 201 {
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let claimers = names.keys().map(|name| {
            let (worker, taken) = (Worker { api: &server, name: name.clone() }, Arc::clone(&taken));
            async move {
                for _ in 0..3 {
                    taken.fetch_add(worker.claim(32).await.len(), Ordering::Relaxed);
                }
            }
        });
        tokio::join!(join_all(callers), join_all(claimers));
        // Further claims fill the slots that are still free.
        for name in names.keys() {
            taken.fetch_add(Worker { api: &server, name: name.clone() }.claim(32).await.len(), Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
        watcher.await.unwrap();
        assert_eq!(i64::try_from(taken.load(Ordering::Relaxed)).unwrap(), slots, "every slot is used exactly once");
        let tables = checker::read(&server.database_url()).await;
        tables.are_sound();
        for (name, slots) in &names {
            assert_eq!(tables.active_on(name), usize::try_from(*slots).unwrap(), "{name}");
        }
        let stats = server.get("stats").await.ok();
        assert_eq!(stats["leases"]["active"], json!(slots));
    }
}

/// Checks until the end that no worker holds more tasks than its capacity.
async fn watch_slots(server: Arc<Server>, slots: HashMap<String, i64>, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        for worker in server.get("workers").await.ok().as_array().unwrap() {
            let held = worker["active_leases"].as_i64().unwrap();
            if let Some(slots) = slots.get(worker["id"].as_str().unwrap()) {
                assert!(held <= *slots, "{worker}");
            }
        }
    }
}
