//! What named keys can't reach: submit keys the tasks of others, workers' keys other workers, and a join token a second worker.

use crate::keys::{ADMIN, create, keyed, with_new_key};
use crate::on_both;
use crate::support::*;

pub fn ids(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|row| row["id"].as_str().expect("an id")).collect()
}

/// Two teams with submit keys, and the admin, who has a task too.
struct Teams {
    server: Server,
    admin: Api,
    red: Api,
    blue: Api,
}

impl Teams {
    async fn on(database: Database) -> Self {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let red = with_new_key(&admin, &server, "red", "submit", json!({})).await;
        let blue = with_new_key(&admin, &server, "blue", "submit", json!({})).await;
        Self { admin, red, blue, server }
    }
}

on_both! { alone:
    async fn a_submit_key_sees_and_changes_its_own_tasks_only(database) {
        let Teams { admin, red, blue, server: _running } = Teams::on(database).await;
        let worker = admin.worker().slots(8).register().await;
        let crew = |api| Crew { api, slug: "coder".into() };
        let (of_red, of_blue, of_admin) = (crew(&red).task().create().await, crew(&blue).task().create().await, crew(&admin).task().create().await);
        assert_eq!(of_red.now().await["owner"], "red");
        assert!(admin.task(&of_admin.id).now().await.get("owner").is_none());
        assert_eq!(ids(&red.get("llm-tasks").await.ok()), [&of_red.id]);
        assert_eq!(ids(&blue.get("llm-tasks?status=queued").await.ok()), [&of_blue.id]);
        assert_eq!(admin.get("llm-tasks").await.ok().as_array().unwrap().len(), 3);
        assert_eq!(admin.get("audit").await.ok().as_array().unwrap().iter().filter(|entry| entry["actor"] == "key:red").count(), 1);

        assert_eq!(red.patch(&of_red.path(""), json!({ "priority": 9 })).await.ok()["priority"], 9);
        assert_eq!(red.poke(&of_red.path("/suspend")).await.ok()["suspend"], true);
        assert_eq!(red.poke(&of_red.path("/resume")).await.ok()["suspend"], false);
        let trail = admin.get(&format!("audit?task_id={}&actor=key:red", of_red.id)).await.ok();
        let actions: Vec<_> = trail.as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
        assert_eq!(actions, ["task_resumed", "task_suspended", "task_edited", "task_created"]);
        assert_eq!(ids(&red.get(&format!("llm-tasks?id={}", &of_red.id[24..])).await.ok()), [&of_red.id]);
        assert_eq!(ids(&red.get(&format!("llm-tasks?ids={},{}", of_red.id, of_blue.id)).await.ok()), [&of_red.id]);

        // The tasks are done, so that there are results, artifacts and events.
        for task in [&of_red, &of_blue, &of_admin] {
            let task = admin.task(&task.id);
            let lease = task.lease_to(&worker).await;
            let event = json!({ "lease_id": lease.id, "events": [{ "seq": 1, "kind": "log", "at": 1, "data": "secret" }] });
            admin.post(&task.path("/events"), event).await.ok();
            lease.complete("success", json!({ "output": "secret" })).await.ok();
        }
        for other in [&of_blue, &of_admin] {
            for path in ["", "/result", "/wait", "/events"] {
                red.get(&other.path(path)).await.fails(404, "Task not found");
            }
            red.with_header("accept", "text/event-stream").get(&other.path("/events")).await.fails(404, "Task not found");
            red.poke(&other.path("/cancel")).await.fails(404, "Task not found");
            red.poke(&other.path("/requeue")).await.fails(404, "Task not found");
            red.poke(&other.path("/suspend")).await.fails(404, "Task not found");
            red.poke(&other.path("/resume")).await.fails(404, "Task not found");
            red.patch(&other.path(""), json!({ "priority": 9 })).await.fails(404, "Task not found");
            red.delete(&other.path("")).await.fails(404, "Task not found");
            for part in [other.id.as_str(), &other.id[..8], &other.id[24..]] {
                let found = red.get(&format!("llm-tasks?id={part}")).await.ok();
                assert!(!ids(&found).contains(&other.id.as_str()), "{part}: {found}");
            }
            assert_eq!(red.get(&format!("artifacts?task_id={}", other.id)).await.ok(), json!([]));
        }
        for path in ["", "/result", "/wait", "/events"] {
            red.get(&of_red.path(path)).await.ok();
        }
        assert_eq!(red.get(&format!("artifacts?task_id={}", of_red.id)).await.ok()[0]["content"], "secret");
        assert_eq!(red.get("artifacts").await.ok(), json!([]), "it has uploaded nothing");
        of_red.cancel().await.error(409);
        assert_eq!(red.delete(&of_red.path("")).await.ok()["removed"], true);
        red.get(&of_red.path("")).await.fails(404, "Task not found");
    }

    async fn bulk_calls_of_a_submit_key_leave_others_alone(database) {
        let Teams { admin, red, blue, server: _running } = Teams::on(database).await;
        let crew = |api| Crew { api, slug: "coder".into() };
        let (of_red, of_blue) = (crew(&red).task().create().await, crew(&blue).task().create().await);
        let answer = red.post("llm-tasks:cancel", json!({ "filter": { "agent_slug": "coder" } })).await.ok();
        assert_eq!((&answer["matched"], &answer["changed"]), (&json!(1), &json!(1)));
        let answer = red.post("llm-tasks:cancel", json!({ "ids": [of_blue.id, of_red.id] })).await.ok();
        assert_eq!(answer["matched"], 0);
        assert_eq!((of_red.status().await.as_str(), of_blue.status().await.as_str()), ("cancelled", "queued"));
        admin.task(&of_blue.id).cancel().await.ok();
        let answer = red.post("llm-tasks:requeue", json!({ "ids": [of_blue.id, of_red.id] })).await.ok();
        assert_eq!((&answer["matched"], &answer["changed"]), (&json!(1), &json!(1)));
        let answer = blue.post("llm-tasks:requeue", json!({ "filter": { "status": "cancelled" } })).await.ok();
        assert_eq!(answer["changed"], 1);
    }

    async fn the_names_of_a_submit_key_are_its_own(database) {
        let Teams { admin, red, blue, server: _running } = Teams::on(database).await;
        let wanted = |api| Crew { api, slug: "coder".into() }.task().context("talk").with("exclusive_key", json!("repo")).with("idempotency_key", json!("once"));
        let (of_red, of_blue, of_admin) = (wanted(&red).create().await, wanted(&blue).create().await, wanted(&admin).create().await);
        let shown = of_red.now().await;
        assert_eq!((&shown["context_id"], &shown["exclusive_key"], &shown["idempotency_key"]), (&json!("red/talk"), &json!("red/repo"), &json!("red/once")));
        assert_eq!((&of_admin.now().await["context_id"], &of_blue.now().await["context_id"]), (&json!("talk"), &json!("blue/talk")));
        // A repeat, also under the full names, is the same task.
        assert_eq!(wanted(&red).answer().await.ok()["id"], of_red.id);
        assert_eq!(wanted(&red).context("red/talk").with("idempotency_key", json!("red/once")).answer().await.ok()["id"], of_red.id);
        let by_header = wanted(&red).without("idempotency_key").json();
        assert_eq!(red.with_header("idempotency-key", "once").post("llm-tasks", by_header).await.ok()["id"], of_red.id);
        // Nor does a key show the task of another owner that was given its name.
        let later = |api| wanted(api).with("not_before", json!(now_ms() + 3_600_000)).without("exclusive_key");
        later(&admin).context("red/apart").with("idempotency_key", json!("red/mine")).create().await;
        later(&red).context("apart").with("idempotency_key", json!("mine")).answer().await.error(409);
        // The name of another key is only a part of the own name.
        let posing = wanted(&blue).context("red/talk").without("idempotency_key").create().await;
        assert_eq!(posing.now().await["context_id"], "blue/red/talk");
        assert_eq!(ids(&red.get("llm-tasks?context_id=talk").await.ok()), [&of_red.id]);
        assert_eq!(ids(&red.get("llm-tasks?context_id=red/talk").await.ok()), [&of_red.id]);
        assert_eq!(ids(&admin.get("llm-tasks?context_id=red/talk").await.ok()), [&of_red.id]);
        assert_eq!(ids(&blue.get("llm-tasks?context_id=red/talk").await.ok()), [&posing.id]);
        let answer = red.post("llm-tasks:cancel", json!({ "filter": { "context_id": "talk" }, "dry_run": true })).await.ok();
        assert_eq!(answer["matched"], 1);
        // All three are first in their contexts and have keys of their own, so all three may run.
        let worker = admin.worker().slots(8).register().await;
        assert_eq!(worker.claim(8).await.len(), 3, "the fourth task waits in its own key's name");

        let complaint = wanted(&red).context(&"x".repeat(252)).answer().await.refuses(&["context_id"]);
        assert!(complaint["context_id"][0].as_str().unwrap().contains("'red/' in front"), "{complaint}");
        wanted(&red).with("exclusive_key", json!("x".repeat(252))).answer().await.refuses(&["exclusive_key"]);
        red.with_header("idempotency-key", &"x".repeat(252)).post("llm-tasks", wanted(&red).without("idempotency_key").json()).await.refuses(&["idempotency_key"]);
        let fits = wanted(&red).without("idempotency_key").context(&"x".repeat(251)).create().await;
        assert_eq!(fits.now().await["context_id"].as_str().unwrap().len(), 255);
    }

    async fn dependencies_on_tasks_of_others_are_unknown(database) {
        let Teams { admin, red, blue, server: _running } = Teams::on(database).await;
        let task = |api| Crew { api, slug: "coder".into() }.task();
        let (of_red, of_blue) = (task(&red).create().await, task(&blue).create().await);
        let complain = async |on: Value| task(&red).with("depends_on", on).answer().await.refuses(&["depends_on"])["depends_on"][0].clone();
        let foreign = complain(json!([of_blue.id])).await;
        let unknown = complain(json!([NO_ID])).await;
        assert_eq!(foreign.as_str().unwrap().replace(&of_blue.id, NO_ID), unknown.as_str().unwrap());
        let body = json!({ "tasks": [task(&red).json(), task(&red).with("depends_on", json!([of_blue.id])).json()] });
        red.post("llm-tasks:batch", body).await.refuses(&["tasks"]);
        assert_eq!(red.get("llm-tasks").await.ok().as_array().unwrap().len(), 1, "nothing of the batch was created");
        task(&red).with("depends_on", json!([of_red.id])).create().await;
        task(&admin).with("depends_on", json!([of_red.id, of_blue.id])).create().await;
    }

    async fn a_submit_keys_watch_shows_its_own_tasks_only(database) {
        let Teams { admin, red, blue, server: _running } = Teams::on(database).await;
        let mut stream = sse::open(&red, "watch", None).await;
        let mut all = sse::open(&admin, "watch", None).await;
        let worker = admin.worker().slots(8).register().await;
        let crew = |api| Crew { api, slug: "coder".into() };
        let of_blue = crew(&blue).task().create().await;
        let of_red = crew(&red).task().create().await;
        let lease = admin.task(&of_blue.id).lease_to(&worker).await;
        lease.complete("success", json!({})).await.ok();
        let lease = admin.task(&of_red.id).lease_to(&worker).await;
        lease.complete("success", json!({})).await.ok();
        all.find(|event| event.kind == "task" && event.json()["id"] == json!(of_red.id) && event.json()["status"] == "completed").await;
        let (mut is_done, mut is_released) = (false, false);
        while !(is_done && is_released) {
            let event = stream.next().await.expect("the stream goes on");
            assert!(["task", "lease"].contains(&event.kind.as_str()), "{event:?}");
            assert!(event.data.contains(&of_red.id) && !event.data.contains(&of_blue.id), "{event:?}");
            is_done |= event.kind == "task" && event.json()["status"] == "completed";
            is_released |= event.kind == "lease" && event.json()["status"] == "released";
        }
    }

    async fn a_workers_key_names_no_url_unless_it_may_be_pushed_to(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let own = with_new_key(&admin, &server, "own", "worker", json!({ "worker": "w1" })).await;
        let url = json!({ "name": "w1", "url": "http://127.0.0.1:9" });
        for refused in [&url, &json!({ "name": "w1", "dispatch": "push" })] {
            assert!(own.post("workers", refused.clone()).await.error(403).contains("--push"));
        }
        admin.get("workers/w1").await.error(404);
        own.post("workers", json!({ "name": "w1", "url": "", "dispatch": "manual" })).await.created();
        // An admin names the URL; the worker registers again without one, and keeps it.
        admin.post("workers", url.clone()).await.ok();
        own.post("workers", json!({ "name": "w1" })).await.ok();
        assert_eq!(admin.get("workers/w1").await.ok()["url"], url["url"]);

        let token = with_new_key(&admin, &server, "token", "join", json!({ "worker": "w2", "push": true })).await;
        let enrolled = token.post("enroll", json!({ "worker": "w2" })).await.created();
        assert_eq!(enrolled["push"], true);
        let pushed = server.with_key(enrolled["key"].as_str().unwrap());
        pushed.post("workers", json!({ "name": "w2", "url": "http://127.0.0.1:9", "dispatch": "push" })).await.created();
        admin.post("keys", json!({ "name": "no", "scope": "submit", "push": true })).await.refuses(&["push"]);
        let keys = admin.get("keys").await.ok();
        let push: Vec<_> = keys.as_array().unwrap().iter().map(|key| (key["name"].as_str().unwrap(), key["push"] == true)).collect();
        assert_eq!(push, [("own", false), ("worker-w2", true)]);
    }

    async fn one_key_does_not_take_all_streams_of_its_address(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let ci = with_new_key(&admin, &server, "ci", "submit", json!({})).await;
        let mut streams = Vec::new();
        for _ in 0..64 {
            streams.push(sse::open(&ci, "watch", None).await);
        }
        let refused = ci.with_header("accept", "text/event-stream").get("watch").await.error(503);
        assert!(refused.contains("with this key"), "{refused}");
        let other = with_new_key(&admin, &server, "other", "submit", json!({})).await;
        sse::open(&other, "watch", None).await;
    }

    async fn a_workers_key_speaks_for_its_worker_only(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let one = with_new_key(&admin, &server, "one", "worker", json!({ "worker": "w1", "push": true })).await;
        let two = with_new_key(&admin, &server, "two", "worker", json!({ "worker": "w2", "push": true })).await;
        let register = |name: &str| json!({ "name": name, "url": format!("http://{name}"), "capabilities": { "max_concurrency": 4 } });
        let is_foreign = |answer: Answer| assert!(answer.error(403).contains("a key of its own"));
        is_foreign(one.post("workers", register("w2")).await);
        one.post("workers", register("w1")).await.created();
        two.post("workers", register("w2")).await.created();
        is_foreign(one.post("workers", json!({ "name": "w2", "url": "http://attacker" })).await);
        assert_eq!(admin.get("workers/w2").await.ok()["url"], "http://w2");

        let crew = admin.crew();
        for _ in 0..3 {
            crew.task().create().await;
        }
        is_foreign(one.post("workers/w2/claim", json!({ "max": 1 })).await);
        let claimed = two.post("workers/w2/claim", json!({ "max": 3 })).await.ok();
        let claimed = claimed["leases"].as_array().unwrap().clone();
        assert_eq!(claimed.len(), 3);
        let leases = lease_ids(&claimed);
        let task = |i: usize| claimed[i]["task"]["id"].as_str().unwrap().to_owned();
        let before = admin.get("workers/w2").await.ok()["leases"].clone();

        // The other's worker and its leases, on each route.
        is_foreign(one.post("workers/w2/claim", json!({ "max": 3, "held": [] })).await);
        is_foreign(one.post("workers/w2/heartbeat", json!({ "leases": leases })).await);
        let done = |i: usize| json!({ "task_id": task(i), "lease_id": leases[i], "status": "success", "metrics": { "duration_ms": 1 } });
        is_foreign(one.post("workers/w2/complete", json!({ "completions": [done(0)] })).await);
        let own = one.task(&task(0));
        is_foreign(own.heartbeat(json!({ "lease_id": leases[0] })).await);
        is_foreign(own.heartbeat(json!({ "lease_id": leases[0], "with_task": true })).await);
        is_foreign(own.heartbeat(json!({ "worker_id": "w2" })).await);
        own.heartbeat(json!({})).await.error(409);
        is_foreign(own.complete(done(0)).await);
        is_foreign(own.complete(json!({ "worker_id": "w2", "status": "success", "metrics": { "duration_ms": 1 } })).await);
        own.complete(json!({ "status": "success", "metrics": { "duration_ms": 1 } })).await.error(409);
        is_foreign(one.post(&own.path("/release"), json!({ "lease_id": leases[0], "reason": "x" })).await);
        let events = json!({ "lease_id": leases[0], "events": [{ "seq": 1, "kind": "log", "at": 1, "data": 1 }] });
        is_foreign(one.post(&own.path("/events"), events.clone()).await);
        let mut of_run = events.clone();
        of_run["task_id"] = json!(task(0));
        is_foreign(one.post("workers/w2/events", json!({ "runs": [of_run] })).await);
        // Named among its own, they count as lost, and each completion is refused on its own.
        assert_eq!(one.post("workers/w1/heartbeat", json!({ "leases": leases })).await.ok()["lost"], json!(leases));
        let answer = one.post("workers/w1/complete", json!({ "completions": [done(0)] })).await.ok();
        assert_eq!(answer["results"][0]["status"], 409);
        let answer = one.post("workers/w1/events", json!({ "runs": [of_run] })).await.ok();
        assert_eq!(answer["results"][0]["status"], 409);
        assert_eq!(admin.get("workers/w2").await.ok()["leases"], before, "nothing has changed");

        // Its own key does all of it, also without a name.
        let own = two.task(&task(0));
        own.heartbeat(json!({})).await.ok();
        two.post(&own.path("/events"), events).await.ok();
        own.complete(done(0)).await.ok();
        own.complete(done(0)).await.ok();
        is_foreign(one.task(&task(0)).complete(done(0)).await);
        two.post(&format!("llm-tasks/{}/release", task(1)), json!({ "lease_id": leases[1], "reason": "x" })).await.ok();
        let answer = two.post("workers/w2/complete", json!({ "completions": [done(2)] })).await.ok();
        assert_eq!(answer["results"][0]["status"], 200);
        // The key of the environment speaks for all workers.
        let any = server.with_key("worker-key-0123456789");
        any.post("workers", register("w1")).await.ok();
        any.post("workers/w2/claim", json!({ "max": 1 })).await.ok();
        let metrics = admin.get("/metrics").await.expect(200).text;
        assert!(metrics.lines().any(|line| line.starts_with(r#"bloom_http_refused_total{reason="other_worker"} "#)), "{metrics}");
    }

    async fn an_expired_lease_is_not_completed_by_another_worker(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", ADMIN).env("LEASE_TTL_SECONDS", 1).start();
        let admin = server.with_key(ADMIN);
        let one = with_new_key(&admin, &server, "one", "worker", json!({ "worker": "w1" })).await;
        let two = with_new_key(&admin, &server, "two", "worker", json!({ "worker": "w2" })).await;
        one.post("workers", json!({ "name": "w1" })).await.created();
        two.post("workers", json!({ "name": "w2" })).await.created();
        let task = admin.crew().task().create().await;
        let claimed = two.post("workers/w2/claim", json!({ "max": 1 })).await.ok();
        let lease = lease_ids(claimed["leases"].as_array().unwrap()).remove(0);
        task.reaches("queued").await;
        let done = json!({ "task_id": task.id, "lease_id": lease, "status": "success", "metrics": { "duration_ms": 1 } });
        assert!(one.task(&task.id).complete(done.clone()).await.error(403).contains("a key of its own"));
        let answer = one.post("workers/w1/complete", json!({ "completions": [done] })).await.ok();
        assert_eq!(answer["results"][0]["status"], 409, "{answer}");
        assert_eq!(task.status().await, "queued");
        let answer = two.post("workers/w2/complete", json!({ "completions": [done] })).await.ok();
        assert_eq!(answer["results"][0]["status"], 200, "{answer}");
    }

    async fn a_join_token_enrolls_one_worker_once(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let token = with_new_key(&admin, &server, "join", "join", json!({})).await;
        token.post("enroll", json!({ "worker": "../x" })).await.refuses(&["worker"]);
        token.post("enroll", json!({})).await.refuses(&["worker"]);
        admin.post("enroll", json!({ "worker": "w" })).await.error(403);
        // Two machines try at the same time.
        let tries: Vec<_> = (0..2)
            .map(|n| {
                let token = token.clone();
                beside(async move { token.post("enroll", json!({ "worker": format!("w{n}") })).await })
            })
            .collect();
        let mut won = Vec::new();
        for answer in tries {
            let answer = answer.await.unwrap();
            match answer.status {
                201 => won.push(answer.json()),
                _ => drop(answer.error(401)),
            }
        }
        assert_eq!(won.len(), 1, "{won:?}");
        let worker = won[0]["worker"].as_str().unwrap().to_owned();
        assert_eq!((&won[0]["name"], &won[0]["created_by"]), (&json!(format!("worker-{worker}")), &json!("key:join")));
        token.post("enroll", json!({ "worker": "w9" })).await.fails(401, "Unauthorized");
        let own = server.with_key(won[0]["key"].as_str().unwrap());
        own.post("workers", json!({ "name": worker })).await.created();
        own.post("workers", json!({ "name": "other" })).await.error(403);
        // A token without a name does not take over a worker; one for it replaces its key.
        let free = with_new_key(&admin, &server, "free", "join", json!({})).await;
        assert!(free.post("enroll", json!({ "worker": worker })).await.error(409).contains("--worker"));
        let bound = with_new_key(&admin, &server, "bound", "join", json!({ "worker": worker })).await;
        assert!(bound.post("enroll", json!({ "worker": "w7" })).await.error(403).contains(&worker));
        let again = bound.post("enroll", json!({ "worker": worker })).await.created();
        own.post("workers", json!({ "name": worker })).await.fails(401, "Unauthorized");
        server.with_key(again["key"].as_str().unwrap()).post("workers", json!({ "name": worker })).await.ok();
        // While the agent is there, nobody takes its key away who does not say that it is that agent.
        let [there, another] = ["019c936e-3800-7000-8000-000000000001", "019c936e-3800-7000-8000-000000000002"];
        let agent = server.with_key(again["key"].as_str().unwrap());
        agent.post("workers", json!({ "name": worker, "instance": there })).await.ok();
        let late = with_new_key(&admin, &server, "late", "join", json!({ "worker": worker })).await;
        for other in [json!({ "worker": worker }), json!({ "worker": worker, "instance": another })] {
            assert!(late.post("enroll", other).await.error(409).contains("nother agent"));
        }
        agent.post("workers", json!({ "name": worker, "instance": there })).await.ok();
        late.post("enroll", json!({ "worker": worker, "instance": there })).await.created();
        let left: Vec<_> = admin.get("keys").await.ok().as_array().unwrap().iter().map(|key| key["name"].clone()).collect();
        assert_eq!(left, [json!("free"), json!(format!("worker-{worker}"))]);
    }
}

#[test]
fn a_join_token_is_used_on_one_of_two_replicas() {
    let url = postgres::database();
    let start = || Server::on_url(&url).env("RUNTIME_API_KEY", ADMIN).start();
    let servers = [start(), start()];
    run(async {
        let admin = servers[0].with_key(ADMIN);
        for round in 0..5 {
            let token = create(&admin, &format!("join-{round}"), "join", json!({})).await;
            let elsewhere = servers[1].with_key(&token);
            // Any other call is refused with 403 as soon as the replica knows the token.
            eventually("both replicas know the token", || async { (elsewhere.get("stats").await.status == 403).then_some(()) }).await;
            let tries: Vec<_> = servers
                .iter()
                .enumerate()
                .map(|(n, server)| {
                    let (api, worker) = (server.with_key(&token), format!("w{round}-{n}"));
                    beside(async move { api.post("enroll", json!({ "worker": worker })).await.status })
                })
                .collect();
            let mut statuses = Vec::new();
            for answer in tries {
                statuses.push(answer.await.unwrap());
            }
            statuses.sort_unstable();
            assert_eq!(statuses, [201, 401]);
        }
        assert_eq!(admin.get("keys").await.ok().as_array().unwrap().len(), 5);
    });
}
