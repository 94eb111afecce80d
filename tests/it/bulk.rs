//! Many tasks in one call.

use crate::key_limits::ids;
use crate::on_both;
use crate::support::*;

on_both! {
    async fn a_batch_makes_all_its_tasks(server) {
        let crew = server.crew();
        let tasks = (0..100).map(|i| crew.task().prompt(&format!("number {i}")).json()).collect::<Vec<_>>();
        let made = server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        let made = made["tasks"].as_array().unwrap();
        assert_eq!(made.len(), 100);
        for (i, task) in made.iter().enumerate() {
            assert_eq!((&task["prompt"], &task["status"]), (&json!(format!("number {i}")), &json!("queued")), "in the order given");
        }
        assert_eq!(server.get(&format!("llm-tasks?agent_slug={}&limit=1000", crew.slug)).await.ok().as_array().unwrap().len(), 100);
    }

    async fn a_batch_is_all_or_nothing(server) {
        let crew = server.crew();
        let tasks = json!([crew.task().json(), crew.task().without("prompt").json()]);
        let answer = server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.refuses(&["tasks"]);
        assert!(answer["tasks"][0].as_str().unwrap().contains("prompt"), "{answer}");
        let tasks = json!([crew.task().json(), crew.task().with("depends_on", json!([NO_ID])).json()]);
        let answer = server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.refuses(&["tasks"]);
        assert!(answer["tasks"][0].as_str().unwrap().contains("depends_on"), "{answer}");
        assert_eq!(server.get(&format!("llm-tasks?agent_slug={}", crew.slug)).await.ok(), json!([]));
    }

    async fn a_batch_has_a_limit(server) {
        let crew = server.crew();
        let tasks = vec![crew.task().json(); 1001];
        server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.refuses(&["tasks"]);
        server.post("llm-tasks:batch", json!({})).await.refuses(&["tasks"]);
        server.post("llm-tasks:batch", json!({ "tasks": "all" })).await.refuses(&["tasks"]);
        let thousand = (0..1000).map(|_| crew.task().json()).collect::<Vec<_>>();
        assert_eq!(server.post("llm-tasks:batch", json!({ "tasks": thousand })).await.created()["tasks"].as_array().unwrap().len(), 1000);
    }

    async fn tasks_are_cancelled_by_their_ids(server) {
        let crew = server.crew();
        let (queued, (done, _)) = (crew.task().create().await, crew.leased_task().await);
        done.succeed("x").await;
        let ids = json!({ "ids": [queued.id, done.id, NO_ID] });
        let mut dry = ids.clone();
        dry["dry_run"] = json!(true);
        let said = server.post("llm-tasks:cancel", dry).await.ok();
        assert_eq!(queued.status().await, "queued", "a dry run changes nothing");
        let did = server.post("llm-tasks:cancel", ids.clone()).await.ok();
        assert_eq!(did["changed"], 1, "{did}");
        assert_eq!((&said["matched"], &did["more"]), (&did["matched"], &json!(false)), "{said} {did}");
        assert_eq!((queued.status().await, done.status().await), ("cancelled".into(), "completed".into()));
        assert_eq!(server.post("llm-tasks:cancel", ids).await.ok()["changed"], 0);
    }

    async fn tasks_are_cancelled_and_requeued_by_a_filter(server) {
        let crew = server.crew();
        let mut tasks = Vec::new();
        for i in 0..4 {
            tasks.push(crew.task().with("labels", json!({ "half": (i % 2).to_string() })).create().await);
        }
        let filter = json!({ "agent_slug": crew.slug, "labels": { "half": "1" } });
        let did = server.post("llm-tasks:cancel", json!({ "filter": filter })).await.ok();
        assert_eq!(did, json!({ "matched": 2, "changed": 2, "more": false }));
        assert_eq!(tasks[0].status().await, "queued");
        assert_eq!(tasks[1].status().await, "cancelled");
        let all = json!({ "filter": { "agent_slug": crew.slug, "status": "cancelled" } });
        let did = server.post("llm-tasks:requeue", all).await.ok();
        assert_eq!(did, json!({ "matched": 2, "changed": 2, "more": false }));
        assert_eq!(tasks[1].status().await, "queued");
    }

    async fn tasks_are_requeued_before_those_that_depend_on_them(server) {
        let crew = server.crew();
        let first = crew.task().create().await;
        let mut chain = vec![first.id.clone()];
        for _ in 0..3 {
            let next = crew.task().with("depends_on", json!([chain.last()])).create().await;
            chain.push(next.id.clone());
        }
        let alone = crew.task().with("depends_on", json!([first.id])).create().await;
        server.post("llm-tasks:cancel", json!({ "ids": [first.id] })).await.ok();
        alone.reaches("cancelled").await;
        crew.api.get(&format!("llm-tasks/{}/wait?timeout_sec=30", chain[3])).await.ok();
        let did = server.post("llm-tasks:requeue", json!({ "ids": [alone.id, chain[3]] })).await.ok();
        assert_eq!((&did["matched"], &did["changed"]), (&json!(2), &json!(0)), "{did}");
        for task in did["not_changed"].as_array().unwrap() {
            assert!(task["reason"] == "dependency" && task["message"].as_str().unwrap().contains("depends on task"), "{did}");
        }
        assert_eq!(did["not_changed"].as_array().unwrap().len(), 2, "{did}");
        let filter = json!({ "agent_slug": crew.slug, "status": "cancelled" });
        let did = server.post("llm-tasks:requeue", json!({ "filter": filter })).await.ok();
        assert_eq!(did, json!({ "matched": 5, "changed": 5, "more": false }));
    }

    async fn those_on_which_others_depend_are_among_the_first_that_are_requeued(server) {
        let crew = server.crew();
        let first = crew.task().create().await;
        let second = crew.task().with("depends_on", json!([first.id])).create().await;
        for _ in 0..2 {
            let tasks = (0..550).map(|_| crew.task().with("depends_on", json!([second.id])).json()).collect::<Vec<_>>();
            server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        server.post("llm-tasks:cancel", json!({ "ids": [first.id] })).await.ok();
        let cancelled = json!({ "filter": { "agent_slug": crew.slug, "status": "cancelled" } });
        eventually("all are cancelled", || async {
            let counted = server.post("llm-tasks:requeue", json!({ "filter": cancelled["filter"], "dry_run": true })).await.ok();
            (counted["matched"] == 1_102).then_some(())
        })
        .await;
        for changed in [1_000, 102] {
            let did = server.post("llm-tasks:requeue", cancelled.clone()).await.ok();
            assert_eq!((&did["changed"], did["not_changed"].is_null()), (&json!(changed), true), "{did}");
        }
    }

    async fn tasks_that_have_to_wait_for_others_do_not_hide_those_behind_them(server) {
        let crew = server.crew();
        let parent = crew.task().create().await;
        let labels = json!({ "t": "child" });
        for number in [1_000, 1] {
            let child = || crew.task().with("depends_on", json!([parent.id])).with("labels", labels.clone()).json();
            let tasks = (0..number).map(|_| child()).collect::<Vec<_>>();
            server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        let free = crew.task().with("labels", labels).create().await;
        server.post("llm-tasks:cancel", json!({ "ids": [parent.id, free.id] })).await.ok();
        let filter = json!({ "agent_slug": crew.slug, "status": "cancelled", "labels": { "t": "child" } });
        eventually("all are cancelled", || async {
            let counted = server.post("llm-tasks:requeue", json!({ "filter": filter, "dry_run": true })).await.ok();
            (counted["matched"] == 1_002).then_some(())
        })
        .await;
        let did = server.post("llm-tasks:requeue", json!({ "filter": filter })).await.ok();
        assert_eq!((&did["matched"], &did["changed"], &did["more"]), (&json!(1_002), &json!(1), &json!(false)), "{did}");
        assert_eq!(free.status().await, "queued");
        let did = server.post("llm-tasks:requeue", json!({ "filter": filter })).await.ok();
        assert_eq!((&did["matched"], &did["changed"], &did["more"]), (&json!(1_001), &json!(0), &json!(false)), "{did}");
    }

    async fn tasks_are_requeued_with_those_that_were_cancelled_because_of_them(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let after = async |other: &str| crew.task().with("depends_on", json!([other])).create().await;
        let root = crew.task().attempts(1).create().await;
        let (direct, indirect) = { let direct = after(&root.id).await; let indirect = after(&direct.id).await; (direct, indirect) };
        let by_person = after(&root.id).await;
        by_person.cancel().await.ok();
        root.lease_to(&worker).await.complete("error", json!({})).await.ok();
        for task in [&direct, &indirect] {
            task.reaches("cancelled").await;
        }
        let dependents = server.get(&format!("llm-tasks?depends_on={}", root.id)).await.ok();
        assert_eq!(ids(&dependents), [&by_person.id, &direct.id]);
        let named = json!({ "ids": [root.id], "with_dependents": true });
        let with = |more: Value| { let mut body = named.clone(); body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone()); body };
        let counted = server.post("llm-tasks:requeue", with(json!({ "dry_run": true }))).await.ok();
        assert_eq!((&counted["matched"], &counted["dependents"], &counted["changed"]), (&json!(3), &json!(2), &json!(0)));
        let alone = server.post("llm-tasks:requeue", json!({ "ids": [root.id], "dry_run": true })).await.ok();
        assert_eq!(alone["matched"], 1);
        let done = server.post("llm-tasks:requeue", with(json!({ "policy": { "timeout_sec": 77 } }))).await.ok();
        assert_eq!((&done["matched"], &done["changed"], &done["more"]), (&json!(3), &json!(3), &json!(false)));
        for task in [&root, &direct, &indirect] {
            let now = task.now().await;
            assert_eq!((&now["status"], &now["policy"]["timeout_sec"]), (&json!("queued"), &json!(77)));
        }
        assert_eq!(by_person.status().await, "cancelled", "a person has cancelled it");
        // A task that is queued again already has dependents that are not.
        let again = after(&root.id).await;
        root.lease_to(&worker).await.complete("error", json!({})).await.ok();
        again.reaches("cancelled").await;
        server.poke(&root.path("/requeue")).await.ok();
        let done = server.post("llm-tasks:requeue", named.clone()).await.ok();
        assert_eq!(done["changed"], 3, "{done}");
        assert_eq!(again.status().await, "queued");
        // By a filter, too.
        root.lease_to(&worker).await.complete("error", json!({})).await.ok();
        indirect.reaches("cancelled").await;
        let filter = json!({ "filter": { "agent_slug": crew.slug, "status": "failed" }, "with_dependents": true });
        assert_eq!(server.post("llm-tasks:requeue", filter).await.ok()["changed"], 4);
        server.post("llm-tasks:requeue", json!({ "filter": { "depends_on": "x" } })).await.refuses(&["filter"]);
        server.post("llm-tasks:requeue", json!({ "ids": [], "with_dependents": 1 })).await.refuses(&["with_dependents"]);
        server.get("llm-tasks?depends_on=x").await.refuses(&["depends_on"]);
        let cancelled = json!({ "filter": { "depends_on": root.id } });
        assert_eq!(server.post("llm-tasks:cancel", cancelled).await.ok()["changed"], 2);
    }

    async fn a_requeue_with_dependents_reaches_those_behind_tasks_that_run_again(server) {
        let crew = server.crew();
        let after = async |other: &str| crew.task().with("depends_on", json!([other])).create().await;
        let root = crew.task().create().await;
        root.cancel().await.ok();
        // Tasks that are made after the end of the root are cancelled at once.
        let chain = { let first = after(&root.id).await; let second = after(&first.id).await; let third = after(&second.id).await; [first, second, third] };
        for task in &chain {
            assert_eq!(task.status().await, "cancelled");
        }
        let named = json!({ "ids": [root.id], "with_dependents": true });
        let done = server.post("llm-tasks:requeue", named.clone()).await.ok();
        assert_eq!((&done["matched"], &done["dependents"], &done["changed"]), (&json!(4), &json!(3), &json!(4)));
        // The first is queued, the third is not: as after a call that was cut off, or had no quota for all.
        chain[1].cancel().await.ok();
        chain[2].reaches("cancelled").await;
        chain[1].requeue().await.ok();
        let done = server.post("llm-tasks:requeue", named.clone()).await.ok();
        assert_eq!((&done["matched"], &done["dependents"], &done["changed"]), (&json!(1), &json!(1), &json!(1)));
        assert_eq!(chain[2].status().await, "queued");
        // What depends on a task that a person has cancelled can't run.
        root.cancel().await.ok();
        chain[2].reaches("cancelled").await;
        let done = server.post("llm-tasks:requeue", json!({ "ids": [root.id, chain[0].id] })).await.ok();
        assert_eq!(done["changed"], 2);
        chain[0].cancel().await.ok();
        let done = server.post("llm-tasks:requeue", named).await.ok();
        assert_eq!((&done["matched"], &done.get("dependents")), (&json!(0), &None), "{done}");
    }

    async fn one_call_requeues_tasks_of_several_statuses_and_counts_each_dependent_once(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let (failed, dead) = (crew.task().attempts(1).create().await, crew.task().attempts(1).create().await);
        let both = crew.task().with("depends_on", json!([failed.id, dead.id])).create().await;
        failed.lease_to(&worker).await.complete("error", json!({ "reason": "auth" })).await.ok();
        dead.lease_to(&worker).await.complete("error", json!({ "reason": "timeout", "retryable": true })).await.ok();
        assert_eq!((failed.status().await, dead.status().await), ("failed".into(), "dead".into()));
        both.reaches("cancelled").await;
        let filter = |more: Value| {
            let mut filter = json!({ "agent_slug": crew.slug });
            filter.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            filter
        };
        let count = async |more: Value, with_dependents: bool| {
            let body = json!({ "filter": filter(more), "dry_run": true, "with_dependents": with_dependents });
            let found = server.post("llm-tasks:requeue", body).await.ok();
            (found["matched"].as_i64().unwrap(), found["dependents"].as_i64().unwrap_or_default())
        };
        assert_eq!(count(json!({ "status": "failed,dead" }), true).await, (3, 1));
        assert_eq!(count(json!({ "status": "failed,dead" }), false).await, (2, 0));
        assert_eq!(count(json!({ "status": "dead,nonsense" }), false).await, (1, 0));
        assert_eq!(count(json!({ "status": "nonsense" }), true).await, (0, 0));
        assert_eq!(count(json!({ "reason": "auth" }), true).await, (2, 1));
        assert_eq!(count(json!({ "reason": "dependency_failed" }), false).await, (1, 0));
        assert_eq!(ids(&server.get(&format!("llm-tasks?reason=timeout&agent_slug={}", crew.slug)).await.ok()), [&dead.id]);
        assert_eq!(server.get(&format!("llm-tasks?reason=stalled&agent_slug={}", crew.slug)).await.ok(), json!([]));
        server.get("llm-tasks?reason=late").await.refuses(&["reason"]);
        let body = json!({ "filter": filter(json!({ "status": "failed,dead" })), "with_dependents": true });
        let done = server.post("llm-tasks:requeue", body).await.ok();
        assert_eq!((&done["changed"], &done["more"], done.get("not_changed")), (&json!(3), &json!(false), None), "{done}");
        assert_eq!(both.status().await, "queued");
    }

    async fn a_bulk_call_says_when_there_is_more(server) {
        let crew = server.crew();
        for _ in 0..2 {
            let tasks = (0..600).map(|_| crew.task().json()).collect::<Vec<_>>();
            server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        let filter = json!({ "filter": { "agent_slug": crew.slug, "status": "queued" } });
        let first = server.post("llm-tasks:cancel", filter.clone()).await.ok();
        assert_eq!(first, json!({ "matched": 1000, "changed": 1000, "more": true }));
        let second = server.post("llm-tasks:cancel", filter.clone()).await.ok();
        assert_eq!(second, json!({ "matched": 200, "changed": 200, "more": false }));
        assert_eq!(server.post("llm-tasks:cancel", filter).await.ok(), json!({ "matched": 0, "changed": 0, "more": false }));
    }

    async fn running_tasks_that_were_told_to_stop_do_not_hide_others(server) {
        let crew = server.crew();
        let mut running = 0;
        for _ in 0..2 {
            let tasks = (0..520).map(|_| crew.task().with("session", json!("none")).json()).collect::<Vec<_>>();
            server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        while running < 1040 {
            running += crew.worker().slots(32).register().await.claim_within(32, 20).await.len();
        }
        let filter = json!({ "filter": { "agent_slug": crew.slug } });
        let mut dry = filter.clone();
        dry["dry_run"] = json!(true);
        let counted = async |dry: Value| {
            let counted = server.post("llm-tasks:cancel", dry).await.ok();
            (counted["matched"].clone(), counted["changed"].clone(), counted["more"].clone())
        };
        assert_eq!(counted(dry.clone()).await, (json!(1040), json!(0), json!(false)));
        assert_eq!(server.post("llm-tasks:cancel", filter.clone()).await.ok(), json!({ "matched": 1000, "changed": 1000, "more": true }));
        assert_eq!(server.post("llm-tasks:cancel", filter.clone()).await.ok(), json!({ "matched": 40, "changed": 40, "more": false }));
        assert_eq!(counted(dry).await, (json!(0), json!(0), json!(false)));
    }

    async fn a_confirmation_is_for_what_was_counted(server) {
        let crew = server.crew();
        let (first, (failing, _)) = (crew.task().create().await, crew.leased_task().await);
        let filter = |more: Value| {
            let mut body = json!({ "filter": { "agent_slug": crew.slug } });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let counted = server.post("llm-tasks:cancel", filter(json!({ "dry_run": true }))).await.ok();
        assert_eq!(counted["matched"], 2, "{counted}");
        let requeued = server.post("llm-tasks:requeue", filter(json!({ "dry_run": true }))).await.ok();
        assert_eq!(requeued["matched"], 0);
        eventually("the clock goes on", || async { (now_ms() > requeued["as_of"].as_i64().unwrap() + 1).then_some(()) }).await;
        let later = crew.task().create().await;
        failing.fail("no").await;
        let cancelled = server.post("llm-tasks:cancel", filter(json!({ "as_of": counted["as_of"] }))).await.ok();
        assert_eq!(cancelled, json!({ "matched": 1, "changed": 1, "more": false }));
        assert_eq!((first.status().await, later.status().await), ("cancelled".into(), "queued".into()));
        let again = filter(json!({ "as_of": requeued["as_of"] }));
        assert_eq!(server.post("llm-tasks:requeue", again).await.ok()["changed"], 0, "they have ended since then");
        server.post("llm-tasks:requeue", filter(json!({ "as_of": "yesterday" }))).await.refuses(&["as_of"]);
    }

    async fn a_batch_says_how_many_tasks_existed(server) {
        let crew = server.crew();
        let key = unique("key");
        let batch = json!({ "tasks": [crew.task().with("idempotency_key", json!(key)).json()] });
        assert_eq!(server.post("llm-tasks:batch", batch.clone()).await.created()["existed"], 0);
        assert_eq!(server.post("llm-tasks:batch", batch).await.created()["existed"], 1);
    }

    async fn a_bulk_call_is_checked(server) {
        for call in ["llm-tasks:cancel", "llm-tasks:requeue"] {
            server.post(call, json!({})).await.expect(400);
            // An empty filter would match every task.
            server.post(call, json!({ "filter": {} })).await.refuses(&["filter"]);
            server.post(call, json!({ "ids": vec![NO_ID; 1001] })).await.refuses(&["ids"]);
            server.post(call, json!({ "ids": "all" })).await.refuses(&["ids"]);
            server.post(call, json!({ "filter": 5 })).await.refuses(&["filter"]);
        }
    }
}
