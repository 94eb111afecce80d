//! A change on one replica takes effect on all of them at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};

use crate::liveness::{create_all, median, task_ids, told_of};
use crate::replicas::leader;
use crate::support::*;

/// Another replica reads a commit within 250 ms. The median of several times is compared, with a margin for a busy machine.
const NEWS: Duration = Duration::from_millis(250 + 450);
/// The leader queries the database every second, independent of the feed. The margin is as above.
const POLL_MS: i64 = 1_000 + 1_500;
/// A request that takes this long hangs: longer than any request takes on a busy machine.
const HANGS: Duration = Duration::from_secs(20);

/// Two replicas; the first one is the leader.
async fn pair() -> (Arc<Server>, Arc<Server>) {
    let url = postgres::database();
    let mut servers = [0, 1].map(|_| Arc::new(Server::on_url(&url).start()));
    let first = eventually("one replica leads", || leader(&servers)).await;
    servers.swap(0, first);
    (Arc::clone(&servers[0]), Arc::clone(&servers[1]))
}

/// The same crew, on both replicas.
fn crews<'a>(here: &'a Server, there: &'a Server) -> (Crew<'a>, Crew<'a>) {
    let slug = unique("agent");
    (Crew { api: here, slug: slug.clone() }, Crew { api: there, slug })
}

#[test]
fn a_lease_of_a_worker_that_the_leader_has_not_heard_of_expires() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let mut late = Vec::new();
        for _ in 0..7 {
            let task = here.task().create().await;
            let worker = there.worker().register().await;
            let lease = task.lease_for(&Worker { api: &first, name: worker.name.clone() }, 1).await;
            let back = task.reaches("queued").await;
            late.push(back["updated_at"].as_i64().unwrap() - lease.json["expires_at"].as_i64().unwrap());
            assert_eq!(lease.now().await["status"], "expired");
            task.cancel().await.ok();
        }
        assert!(late.iter().all(|ms| *ms >= 0), "no lease expires early: {late:?}");
        assert!(median(&mut late) < POLL_MS, "expired {late:?} ms late");
    });
}

#[test]
fn leases_given_elsewhere_expire_whoever_knows_their_tasks() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let (near, far) = (here.worker().slots(32).register().await, there.worker().slots(32).register().await);
        let mut late = Vec::new();
        // All combinations of the replica that creates the task and the one that leases it.
        for round in 0..8 {
            let (maker, giver) = ([&here, &there][round % 2], [&first, &other][round / 2 % 2]);
            let made = maker.task().create().await;
            let worker = if round % 3 == 0 { &near } else { &far };
            let lease = giver.task(&made.id).lease_for(worker, 1).await;
            let end = lease.json["expires_at"].as_i64().unwrap();
            late.push((made, end));
        }
        let mut delays = Vec::new();
        for (task, end) in late {
            let back = task.reaches("queued").await;
            delays.push(back["updated_at"].as_i64().unwrap() - end);
        }
        assert!(delays.iter().all(|ms| *ms >= 0), "no lease expires early: {delays:?}");
        assert!(median(&mut delays) < POLL_MS, "expired {delays:?} ms late");
    });
}

#[test]
fn room_made_through_one_replica_is_used_through_the_other() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let worker = there.worker().slots(1).register().await;
        let mut times = Vec::new();
        create_all(&other, (0..12).map(|_| there.task().json()).collect()).await;
        let mut held = worker.claim_within(1, 10).await;
        for _ in 0..11 {
            assert_eq!(held.len(), 1);
            let path = worker.path("/claim");
            let known = lease_ids(&held);
            let api = (**other).clone();
            let next = beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 30, "held": known })).await.ok() });
            here.api.task(&task_ids(&held)[0]).succeed("x").await;
            let done = Instant::now();
            held = next.await.unwrap()["leases"].as_array().unwrap().clone();
            times.push(done.elapsed());
        }
        assert!(median(&mut times) < NEWS, "{times:?}");
    });
}

#[test]
fn a_claim_that_does_not_wait_knows_of_room_made_elsewhere() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let worker = here.worker().slots(1).register().await;
        let elsewhere = Worker { api: &other, name: worker.name.clone() };
        word_of(&other, &worker.name).await;
        create_all(&first, (0..40).map(|_| here.task().json()).collect()).await;
        for round in 0..8 {
            let held = eventually("the first task of a round", || async { task_ids(&worker.claim(1).await).pop() }).await;
            there.api.task(&held).succeed("x").await;
            let next = task_ids(&worker.claim(1).await);
            assert_eq!(next.len(), 1, "round {round}: completed elsewhere");
            here.api.task(&next[0]).succeed("x").await;
            let next = task_ids(&elsewhere.claim(1).await);
            assert_eq!(next.len(), 1, "round {round}: claimed and completed elsewhere");
            there.api.task(&next[0]).succeed("x").await;
            worker.cordon().await;
            eventually("the other one knows of the cordon", || async { (elsewhere.now().await["cordoned"] == true).then_some(()) }).await;
            assert!(elsewhere.claim(1).await.is_empty());
            first.poke(&worker.path("/uncordon")).await.ok();
            let next = task_ids(&elsewhere.claim(1).await);
            assert_eq!(next.len(), 1, "round {round}: uncordoned elsewhere");
            there.api.task(&next[0]).succeed("x").await;
        }
    });
}

#[test]
fn a_claim_that_does_not_wait_knows_of_agents_that_changed_elsewhere() {
    run(async {
        let (first, other) = pair().await;
        let (one, two) = (crews(&first, &other), crews(&first, &other));
        let worker = one.0.worker().register().await;
        let elsewhere = Worker { api: &other, name: worker.name.clone() };
        word_of(&other, &worker.name).await;
        for round in 0..20 {
            let (here, there) = if round % 2 == 0 { &two } else { &one };
            let task = here.task().create().await;
            first.post("workers", json!({ "name": worker.name, "capabilities": { "agents": [here.slug] } })).await.ok();
            assert_eq!(task_ids(&elsewhere.claim(1).await), [task.id.as_str()], "round {round}");
            there.api.task(&task.id).succeed("x").await;
        }
    });
}

/// Waits until this replica knows the worker.
async fn word_of(api: &Api, worker: &str) {
    eventually("the worker is known", || async { (api.get("workers").await.ok().to_string().contains(worker)).then_some(()) }).await;
}

#[test]
fn what_is_ready_elsewhere_is_had_without_waiting() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let worker = there.worker().slots(32).register().await;
        for round in 0..20 {
            // The task was just created through the other replica. A claim that does not wait asks the database before it answers that
            // there is nothing.
            let task = here.task().create().await;
            assert_eq!(task_ids(&worker.claim(1).await), [task.id], "round {round}");
        }
    });
}

#[test]
fn a_key_that_is_busy_elsewhere_hides_nothing() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let (holder, worker) = (here.worker().slots(32).register().await, there.worker().slots(32).register().await);
        for round in 0..5 {
            let key = json!(unique("key"));
            let mut tasks = (0..26).map(|_| here.task().with("exclusive_key", key.clone()).json()).collect::<Vec<_>>();
            tasks.push(here.task().with("priority", json!(1)).json());
            let ids = create_all(&first, tasks).await;
            first.task(&ids[0]).lease_to(&holder).await;
            assert_eq!(task_ids(&worker.claim_within(1, 10).await), ids[26..], "round {round}");
            first.post("llm-tasks:cancel", json!({ "ids": ids[1..26] })).await.ok();
            for id in [&ids[0], &ids[26]] {
                first.task(id).succeed("x").await;
            }
        }
    });
}

/// Claims and completes tasks until none of these is left; returns how many it has done.
async fn works(api: Api, name: String, left: Arc<AtomicUsize>) -> usize {
    let worker = Worker { api: &api, name };
    let mut done = 0;
    while left.load(Ordering::Relaxed) > 0 {
        for id in task_ids(&worker.claim_within(1, 2).await) {
            api.task(&id).succeed("x").await;
            left.fetch_sub(1, Ordering::Relaxed);
            done += 1;
        }
    }
    done
}

#[test]
fn a_backlog_is_shared_fairly() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let mut names = Vec::new();
        for i in 0..8 {
            let crew = if i % 2 == 0 { &here } else { &there };
            names.push(crew.worker().slots(1).register().await.name);
        }
        let left = Arc::new(AtomicUsize::new(800));
        let workers = names.iter().enumerate().map(|(i, name)| {
            let api = if i % 2 == 0 { &first } else { &other };
            beside(works((***api).clone(), name.clone(), Arc::clone(&left)))
        });
        let workers = workers.collect::<Vec<_>>();
        create_all(&first, (0..800).map(|_| here.task().json()).collect()).await;
        let shares = join_all(workers).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(shares.iter().sum::<usize>(), 800, "{shares:?}");
        assert!(shares.iter().all(|share| *share > 0), "some workers starve: {shares:?}");
    });
}

#[test]
fn two_that_create_in_one_context_at_once_both_succeed() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let mut made: HashMap<String, Vec<String>> = HashMap::new();
        for round in 0..40 {
            let context = unique("context");
            let bodies = [&here, &there].map(|crew| crew.task().context(&context));
            let [one, two] = bodies;
            // Two pairs per context, so that the second pair has predecessors.
            for again in 0..2 {
                let pair = [one.json(), two.json()];
                let both = join(first.post("llm-tasks", pair[0].clone()), other.post("llm-tasks", pair[1].clone()));
                let (a, b) = tokio::time::timeout(HANGS, both).await.unwrap_or_else(|_| panic!("round {round}.{again} hangs"));
                for answer in [a, b] {
                    made.entry(context.clone()).or_default().push(answer.created()["id"].as_str().unwrap().to_owned());
                }
            }
        }
        // All tasks of a context run one after another, in the order of their ids, through either replica.
        let worker = here.worker().slots(32).register().await;
        let elsewhere = Worker { api: &other, name: worker.name.clone() };
        let mut ran: HashMap<String, Vec<String>> = HashMap::new();
        for turn in 0.. {
            if ran.values().map(Vec::len).sum::<usize>() == 160 {
                break;
            }
            let claimed = [&worker, &elsewhere][turn % 2].claim_within(32, 10).await;
            assert!(!claimed.is_empty(), "no task is ready, and only {} ran", ran.values().map(Vec::len).sum::<usize>());
            for entry in &claimed {
                let (context, id) = (entry["task"]["context_id"].as_str().unwrap(), entry["task"]["id"].as_str().unwrap());
                ran.entry(context.to_owned()).or_default().push(id.to_owned());
            }
            for (i, id) in task_ids(&claimed).iter().enumerate() {
                [&first, &other][i % 2].task(id).succeed("x").await;
            }
        }
        for (context, mut ids) in made {
            ids.sort_unstable();
            assert_eq!(ran[&context], ids, "the tasks of a context run in order");
        }
    });
}

#[test]
fn a_turn_taken_early_through_another_replica_steps_back() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let (near, far) = (here.worker().slots(8).register().await, there.worker().slots(8).register().await);
        for round in 0..3 {
            let context = unique("context");
            let a = here.task().context(&context).create().await;
            let b = there.task().context(&context).create().await;
            let lease = b.lease_for(&near, 1).await;
            lease.reaches("expired").await;
            assert_eq!(task_ids(&far.claim_within(8, 10).await), [a.id.as_str()], "round {round}: the first task runs first");
            assert_eq!(near.claim(8).await.len(), 0, "round {round}: one task runs at a time");
            a.succeed("x").await;
            assert_eq!(task_ids(&far.claim_within(8, 10).await), [b.id.as_str()], "round {round}");
            b.succeed("x").await;
        }
    });
}

#[test]
fn the_trail_is_in_order_whichever_replicas_wrote_it() {
    run(async {
        let (first, other) = pair().await;
        let (here, there) = crews(&first, &other);
        let worker = here.worker().slots(32).register().await;
        let mut lives = Vec::new();
        for round in 0..20 {
            let (crew, one, two) = if round % 2 == 0 { (&here, &first, &other) } else { (&there, &other, &first) };
            let id = crew.task().create().await.id;
            let lease = two.task(&id).lease_to(&worker).await;
            one.post(&format!("llm-tasks/{id}/release"), json!({ "lease_id": lease.id, "reason": "shutdown" })).await.ok();
            two.task(&id).lease_to(&worker).await;
            one.task(&id).succeed("x").await;
            lives.push(id);
        }
        for id in lives {
            assert_eq!(told_of(&other, &id).await, ["task_created", "task_leased", "task_released", "task_leased", "task_completed"]);
        }
    });
}
