//! Tasks that can run are leased at once, however many others are parked, and no request has to walk through the parked ones.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::on_both;
use crate::support::checker::Link;
use crate::support::*;

/// The ids of the tasks that a claim delivered.
pub fn task_ids(claimed: &[Value]) -> Vec<String> {
    claimed.iter().map(|entry| entry["task"]["id"].as_str().unwrap().to_owned()).collect()
}

/// Creates these tasks in batches; returns their ids in order.
pub async fn create_all(api: &Api, tasks: Vec<Value>) -> Vec<String> {
    let mut ids = Vec::new();
    for part in tasks.chunks(1000) {
        let made = api.post("llm-tasks:batch", json!({ "tasks": part })).await.created();
        ids.extend(made["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()));
    }
    ids
}

/// The audit actions about this task and its leases, oldest first.
pub async fn told_of(api: &Api, task: &str) -> Vec<String> {
    let entries = api.get("audit?limit=1000").await.ok();
    let about = |entry: &&Value| entry["entity_id"] == task || entry["detail"].as_str().unwrap().contains(task);
    let mut told =
        entries.as_array().unwrap().iter().filter(about).map(|entry| entry["action"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    told.reverse();
    told
}

pub fn median<T: Copy + Ord>(values: &mut [T]) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

on_both! {
    async fn tasks_behind_a_busy_key_hide_nothing(server) {
        let crew = server.crew();
        let (holder, other) = (crew.worker().slots(32).register().await, crew.worker().slots(32).register().await);
        for round in 0..6 {
            let key = json!(unique("key"));
            let mut tasks = (0..26).map(|_| crew.task().with("exclusive_key", key.clone()).json()).collect::<Vec<_>>();
            // Behind all of them in the queue, by its id and by its priority.
            tasks.push(crew.task().with("priority", json!(1)).json());
            let ids = create_all(server, tasks).await;
            let lease = server.task(&ids[0]).lease_to(&holder).await;
            assert_eq!(task_ids(&other.claim(1).await), ids[26..], "round {round}: the claim finds the one task that can run");
            server.post("llm-tasks:cancel", json!({ "ids": ids[1..26] })).await.ok();
            lease.complete("success", json!({ "output": "x" })).await.ok();
        }
    }

    async fn claims_beside_each_other_all_get_work(server) {
        let crew = server.crew();
        let mut workers = Vec::new();
        for _ in 0..12 {
            workers.push(crew.worker().slots(1).register().await);
        }
        for round in 0..6 {
            // The tasks with keys come first, and all but one of each key turn out to be blocked.
            let keys = [0, 1, 2].map(|_| unique("key"));
            let keyed = (0..12).map(|i| crew.task().with("exclusive_key", json!(keys[i % 3])).with("priority", json!(9)).json());
            let ids = create_all(server, keyed.chain((0..12).map(|_| crew.task().json())).collect()).await;
            let claims = futures_util::future::join_all(workers.iter().map(|worker| worker.claim(1))).await;
            assert!(claims.iter().all(|claimed| claimed.len() == 1), "round {round}: {:?}", claims.iter().map(Vec::len).collect::<Vec<_>>());
            server.post("llm-tasks:cancel", json!({ "ids": ids })).await.ok();
            for task in claims.iter().flat_map(|claimed| task_ids(claimed)) {
                server.task(&task).fail("cancelled").await;
            }
        }
    }

    async fn a_worker_of_many_agents_gets_work_at_once(server) {
        let crew = server.crew();
        let task = crew.task().create().await;
        let agents = (0..400).map(|_| unique("agent")).chain([crew.slug.clone()]).collect::<Vec<_>>();
        let worker = server.worker().able("agents", json!(agents)).register().await;
        assert_eq!(task_ids(&worker.claim(1).await), [task.id.as_str()]);
        task.succeed("x").await;
    }

    async fn of_several_agents_the_most_urgent_task_comes_first(server) {
        let (one, two) = (server.crew(), server.crew());
        for round in 0..4 {
            let worker = server.worker().slots(2).able("agents", json!([one.slug, two.slug])).register().await;
            let (many, few) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
            let ids = create_all(server, (0..30).map(|_| many.task().json()).collect()).await;
            let urgent = few.task().with("priority", json!(9)).create().await;
            assert_eq!(task_ids(&worker.claim(1).await), [urgent.id.as_str()], "round {round}");
            assert_eq!(task_ids(&worker.claim(1).await), ids[..1], "the oldest task comes next");
            server.post("llm-tasks:cancel", json!({ "ids": ids[1..] })).await.ok();
        }
    }

    async fn a_turn_that_was_taken_early_and_lost_steps_back(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        for _ in 0..3 {
            let context = unique("context");
            let first = crew.task().context(&context).create().await;
            let second = crew.task().context(&context).create().await;
            // Lease calls ignore the session order.
            let lease = second.lease_for(&worker, 1).await;
            lease.reaches("expired").await;
            assert_eq!(task_ids(&worker.claim_within(8, 10).await), [first.id.as_str()], "the context's order is kept");
            assert_eq!(worker.claim(8).await.len(), 0, "one task of the context runs at a time");
            first.succeed("x").await;
            assert_eq!(task_ids(&worker.claim(8).await), [second.id.as_str()]);
            second.succeed("x").await;
        }
    }
}

on_both! { alone:
    async fn a_completion_is_answered_before_a_thousand_dependents_are_looked_at(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let mut link = Link::open(&server.database_url()).await;
        let mut stands = [false; 2];
        // The test wins only if it reads the tables before the wake-ups are done. A busy machine may be late, so there are several rounds.
        for round in 1.. {
            let ends = [crew.task().with("priority", json!(9)).create().await, crew.task().with("priority", json!(9)).create().await];
            let after_both = json!([ends[0].id, ends[1].id]);
            create_all(&server, (0..1000).map(|_| crew.task().with("depends_on", after_both.clone()).json()).collect()).await;
            for (end, stands) in ends.iter().zip(&mut stands) {
                end.lease_to(&worker).await;
                end.succeed("x").await;
                // If all dependents were re-evaluated before the answer, no wake-up would be left.
                *stands |= link.count("wakeups").await > 0;
                eventually("all were re-evaluated", || async { (Link::open(&server.database_url()).await.count("wakeups").await == 0).then_some(()) }).await;
                let parked = link.count("task_state WHERE parked = 'depends_on'").await;
                assert_eq!(parked, if end.id == ends[0].id { 1000 } else { 0 }, "all become ready when both are completed");
            }
            assert_eq!(link.count("task_state WHERE status = 'queued' AND parked IS NULL").await, 1000 * round);
            if stands == [true; 2] {
                break;
            }
            assert!(round < 8, "every completion waited for all of its dependents: {stands:?}");
        }
    }

    async fn a_context_of_a_thousand_costs_its_turns_nothing(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(1).register().await;
        let context = unique("context");
        let long = create_all(&server, (0..1000).map(|_| crew.task().context(&context).json()).collect()).await;
        let plain = create_all(&server, (0..30).map(|_| crew.task().with("priority", json!(9)).json()).collect()).await;
        let (mut of_plain, mut of_long) = (Vec::new(), Vec::new());
        // Tasks of the context and others are measured in one loop, on the same machine.
        for turn in 0..60 {
            let claimed = worker.claim(1).await;
            let wanted = if turn < 30 { &plain[turn] } else { &long[turn - 30] };
            assert_eq!(&task_ids(&claimed)[0], wanted, "turn {turn}: the next task is ready when the completion is answered");
            let asked = Instant::now();
            server.task(wanted).succeed("x").await;
            if turn < 30 { of_plain.push(asked.elapsed()) } else { of_long.push(asked.elapsed()) }
        }
        // A walk through a thousand rows would cost hundreds of times as much as one step. The margin is for a busy machine.
        let (of_plain, of_long) = (median(&mut of_plain), median(&mut of_long));
        assert!(of_long < of_plain * 10 + Duration::from_millis(30), "{of_long:?} with a thousand behind it, {of_plain:?} alone");
        // After most of the tasks were cancelled at once, the rest run in order.
        server.post("llm-tasks:cancel", json!({ "ids": long[30..990] })).await.ok();
        for id in &long[990..] {
            assert_eq!(task_ids(&worker.claim_within(1, 10).await), std::slice::from_ref(id));
            server.task(id).succeed("x").await;
        }
        let mut link = Link::open(&server.database_url()).await;
        assert_eq!(link.count("task_state WHERE status NOT IN ('completed', 'cancelled')").await, 0);
        eventually("no wake-up is left", || async { (Link::open(&server.database_url()).await.count("wakeups").await == 0).then_some(()) }).await;
    }

    async fn a_batch_is_created_at_one_moment(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let context = unique("context");
        let tasks = (0..1000).map(|_| crew.task().context(&context).json()).collect::<Vec<_>>();
        let made = server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        let times = made["tasks"].as_array().unwrap().iter().map(|task| task["created_at"].as_i64().unwrap()).collect::<Vec<_>>();
        let (first, last) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        // Within a millisecond, ids differ by a counter, so a thousand ids need not use hundreds of milliseconds.
        assert!(last - first <= 10, "{} ms from the first to the last", last - first);
        assert!(*last <= now_ms() + 10, "creation times are not in the future");
        assert!(times.is_sorted(), "creation times follow the order of the request");
    }

    async fn the_trail_of_a_task_is_in_the_order_of_its_life(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(32).register().await;
        let mut wanted = HashMap::new();
        for _ in 0..10 {
            let task = crew.task().create().await;
            let lease = task.lease_to(&worker).await;
            server.post(&task.path("/release"), json!({ "lease_id": lease.id, "reason": "shutdown" })).await.ok();
            task.lease_to(&worker).await;
            task.fail("x").await;
            task.requeue().await.ok();
            task.lease_to(&worker).await;
            task.succeed("x").await;
            let life = ["task_created", "task_leased", "task_released", "task_leased", "task_completed", "task_requeued", "task_leased", "task_completed"];
            wanted.insert(task.id, life);
        }
        for (task, life) in wanted {
            assert_eq!(told_of(&server, &task).await, life);
        }
    }
}
