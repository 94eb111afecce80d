//! Workers that claim: claims, batched heartbeats and batched completions.

use std::time::Instant;

use crate::on_both;
use crate::support::*;

on_both! {
    async fn an_unknown_worker_can_claim_nothing(server) {
        for call in ["claim", "heartbeat"] {
            let body = json!({ "max": 1, "leases": [] });
            server.post(&format!("workers/nobody-of-this-name/{call}"), body).await.fails(404, "Worker not found");
        }
    }

    async fn a_claim_is_checked_field_by_field(server) {
        let worker = server.crew().worker().register().await;
        for (key, bad) in [
            ("max", json!(0)), ("max", json!(33)), ("max", json!(1.5)), ("max", json!(null)), ("wait_sec", json!(-1)), ("wait_sec", json!(61)),
            ("held", json!("all")), ("held", json!(["not-an-id"])), ("accounts", json!("team")), ("accounts", json!([""])),
            ("accounts", json!(vec!["team"; 65])),
        ] {
            let mut body = json!({ "max": 1 });
            body[key] = bad.clone();
            let answer = server.post(&worker.path("/claim"), body).await;
            assert_eq!(answer.status, 400, "{key}: {bad}: {}", answer.text);
            answer.refuses(&[key]);
        }
        server.post(&worker.path("/claim"), json!({})).await.refuses(&["max"]);
        server.post(&worker.path("/heartbeat"), json!({})).await.refuses(&["leases"]);
        server.post(&worker.path("/complete"), json!({})).await.refuses(&["completions"]);
        let many = vec![json!({}); 501];
        server.post(&worker.path("/complete"), json!({ "completions": many })).await.refuses(&["completions"]);
    }

    async fn a_claim_without_work_says_so(server) {
        let worker = server.crew().worker().register().await;
        let answer = server.post(&worker.path("/claim"), json!({ "max": 1, "held": null, "wait_sec": null })).await.ok();
        assert_eq!(answer, json!({ "leases": [], "directives": { "cancel": [], "drain": false } }));
    }

    async fn a_worker_is_told_which_accounts_others_found_out_of_quota(server) {
        let crew = server.crew();
        let (finder, other) = (crew.worker().register().await, crew.worker().register().await);
        let (team, own) = (unique("team"), unique("own"));
        let until = now_ms() + 3_600_000;
        let tell = async |worker: &str, pauses: Value| server.post("workers", json!({ "name": worker, "pauses": pauses })).await.ok();
        let pause = |name: &str, cause: &str, until: i64, told_by: Option<&str>| {
            let (since, message) = (until - 3_700_000, "out of quota");
            json!({ "kind": "account", "name": name, "cause": cause, "since": since, "until": until, "message": message, "told_by": told_by })
        };
        let told = async |worker: &str| {
            let body = json!({ "leases": [], "max": 1, "accounts": [team, own] });
            let heartbeat = server.post(&format!("workers/{worker}/heartbeat"), body.clone()).await.ok();
            let claim = server.post(&format!("workers/{worker}/claim"), body).await.ok();
            assert_eq!(heartbeat["directives"], claim["directives"]);
            claim["directives"].get("paused_accounts").cloned()
        };
        let shown = tell(&finder.name, json!([pause(&team, "quota", until, None), pause(&own, "billing", until, None)])).await;
        assert_eq!((&shown["pauses"][0]["until"], shown["pauses"][0].get("told_by")), (&json!(until), None));
        let paused = json!([{ "account": team, "until": until, "worker": finder.name }]);
        assert_eq!((told(&other.name).await, told(&finder.name).await), (Some(paused), None));
        let shown = tell(&other.name, json!([pause(&team, "quota", until, Some(&finder.name))])).await;
        assert_eq!(shown["pauses"][0]["told_by"], json!(finder.name));
        tell(&finder.name, json!([])).await;
        let third = crew.worker().register().await;
        for worker in [&finder, &other, &third] {
            assert_eq!(told(&worker.name).await, None, "who was told tells nobody");
        }
        tell(&finder.name, json!([pause(&team, "quota", now_ms() - 1, None)])).await;
        assert_eq!(told(&other.name).await, None, "it is over");
    }

    async fn a_claim_delivers_leases_with_their_tasks(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        let task = crew.task().prompt("Do it").create().await;
        let claimed = worker.claim(2).await;
        assert_eq!(claimed.len(), 1);
        let (lease, given) = (&claimed[0]["lease"], &claimed[0]["task"]);
        assert_eq!(given, &task.now().await);
        assert_eq!((&given["status"], &given["prompt"], &given["attempts"]), (&json!("leased"), &json!("Do it"), &json!(1)));
        assert_eq!((&lease["task_id"], &lease["worker_id"], &lease["status"]), (&json!(task.id), &json!(worker.name), &json!("active")));
        assert_eq!(lease["id"], given["lease_id"]);
        assert_eq!(worker.claim(2).await.len(), 0, "a lease is delivered once");
    }

    async fn the_most_urgent_comes_first_then_the_oldest(server) {
        let crew = server.crew();
        let mut tasks = Vec::new();
        for priority in [5, 0, 9, 5, 9] {
            tasks.push(crew.task().with("priority", json!(priority)).create().await.id);
        }
        let worker = crew.worker().slots(5).register().await;
        let order = worker.claim(5).await.iter().map(|entry| entry["task"]["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        let wanted = [2, 4, 0, 3, 1].map(|i: usize| tasks[i].clone());
        assert_eq!(order, wanted);
    }

    async fn a_claim_takes_no_more_than_asked_nor_than_there_is_room(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(3).register().await;
        for _ in 0..6 {
            crew.task().create().await;
        }
        assert_eq!(worker.claim(1).await.len(), 1);
        assert_eq!(worker.claim(32).await.len(), 2);
        assert_eq!(worker.claim(32).await.len(), 0);
        assert_eq!(worker.now().await["active_leases"], 3);
    }

    async fn only_tasks_of_its_agents_come(server) {
        let (writer, painter) = (server.crew(), server.crew());
        let both = writer.worker().slots(4).able("agents", json!([writer.slug, painter.slug])).register().await;
        let one = writer.worker().slots(4).register().await;
        let painting = painter.task().create().await;
        assert_eq!(one.claim(4).await.len(), 0);
        let claimed = both.claim(4).await;
        assert_eq!(claimed[0]["task"]["id"], json!(painting.id));
    }

    async fn a_worker_of_namespaces_gets_no_task_of_the_http_api(server) {
        let crew = server.crew();
        let task = crew.task().create().await;
        for namespaces in [json!([]), json!(["team"])] {
            let worker = crew.worker().able("namespaces", namespaces.clone()).register().await;
            assert_eq!(worker.now().await["capabilities"]["namespaces"], namespaces);
            assert_eq!(worker.claim(1).await.len(), 0);
            task.lease(json!({ "worker_id": worker.name })).await.error(503);
        }
        assert_eq!(task.now().await["waiting"]["reason"], "no_worker");
        let all = crew.worker().register().await;
        assert_eq!(all.now().await["capabilities"].get("namespaces"), None);
        assert_eq!(all.claim(1).await.len(), 1);
    }

    async fn a_worker_that_claims_has_said_that_it_can(server) {
        let crew = server.crew();
        let worker = crew.worker().able("claude_cli", json!(false)).register().await;
        crew.task().create().await;
        assert_eq!(worker.claim(1).await.len(), 1);
    }

    async fn an_open_claim_is_woken_by_work(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let path = worker.path("/claim");
        let api = (**server).clone();
        let claim = beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await.ok() });
        // The claim has no work yet, so it must still be open.
        assert!(!claim.is_finished());
        let submitted = Instant::now();
        let task = crew.task().create().await;
        let answer = claim.await.unwrap();
        assert_eq!(answer["leases"][0]["task"]["id"], json!(task.id));
        assert!(submitted.elapsed().as_millis() < 1000, "{:?}", submitted.elapsed());
    }

    async fn an_open_claim_is_woken_by_room(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let (first, second) = (crew.task().create().await, crew.task().create().await);
        first.lease_to(&worker).await;
        let path = worker.path("/claim");
        let api = (**server).clone();
        let claim = beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await.ok() });
        first.succeed("x").await;
        assert_eq!(claim.await.unwrap()["leases"][0]["task"]["id"], json!(second.id));
    }

    async fn a_lost_reply_costs_nothing(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(3).register().await;
        for _ in 0..2 {
            crew.task().create().await;
        }
        let ids = lease_ids(&worker.claim(3).await);
        let again = async |held: Value| server.post(&worker.path("/claim"), json!({ "max": 3, "held": held })).await.ok()["leases"].clone();
        assert_eq!(again(json!(ids)).await, json!([]), "the worker knows all of its leases");
        let redelivered = again(json!([ids[0]])).await;
        assert_eq!(lease_ids(redelivered.as_array().unwrap()), [ids[1].clone()]);
        let mut all = lease_ids(again(json!([])).await.as_array().unwrap());
        all.sort_unstable();
        assert_eq!(all, { let mut ids = ids.clone(); ids.sort_unstable(); ids });
        assert_eq!(worker.claim(3).await.len(), 0, "without held nothing is delivered again");
        assert_eq!(again(json!([NO_ID, ids[0], ids[1]])).await, json!([]), "an unknown lease is ignored");
    }

    async fn claim_never_delivers_the_lease_calls_leases(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        crew.task().create().await.lease_to(&worker).await;
        let answer = server.post(&worker.path("/claim"), json!({ "max": 2, "held": [] })).await.ok();
        assert_eq!(answer["leases"], json!([]));
        for _ in 0..2 {
            crew.task().create().await;
        }
        assert_eq!(worker.claim(2).await.len(), 1, "the lease by call uses a slot");
    }

    async fn nothing_is_leased_in_advance(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        worker.claim(4).await;
        let task = crew.task().create().await;
        assert_eq!(task.status().await, "queued");
        assert_eq!(worker.now().await["active_leases"], 0);
    }

    async fn a_claimed_lease_ends_with_its_time_limit(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        crew.task().with("policy", json!({ "timeout_sec": 1 })).create().await;
        let claimed = worker.claim(1).await;
        let lease = &claimed[0]["lease"];
        let end = lease["started_at"].as_i64().unwrap() + 61_000;
        assert!(lease["expires_at"].as_i64().unwrap() <= end, "{lease}");
        let heartbeat = server.post(&format!("llm-tasks/{}/heartbeat", claimed[0]["task"]["id"].as_str().unwrap()), json!({})).await.ok();
        assert!(heartbeat["expires_at"].as_i64().unwrap() <= end, "a heartbeat does not move the lease past its hard end: {heartbeat}");
    }

    async fn one_heartbeat_renews_all(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(3).register().await;
        for _ in 0..3 {
            crew.task().create().await;
        }
        let claimed = worker.claim(3).await;
        let ids = lease_ids(&claimed);
        let gone = server.task(claimed[2]["task"]["id"].as_str().unwrap());
        gone.succeed("x").await;
        let answer = server.post(&worker.path("/heartbeat"), json!({ "leases": [ids[0], ids[1], ids[2], NO_ID] })).await.ok();
        let sorted = |list: &Value| {
            let mut ids = list.as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect::<Vec<_>>();
            ids.sort_unstable();
            ids
        };
        let mut lost = vec![ids[2].clone(), NO_ID.to_owned()];
        lost.sort_unstable();
        let mut renewed = ids[..2].to_vec();
        renewed.sort_unstable();
        assert_eq!((sorted(&answer["renewed"]), sorted(&answer["lost"])), (renewed, lost));
        assert_eq!(answer["directives"], json!({ "cancel": [], "drain": false }));
        for entry in &claimed[..2] {
            assert_eq!(server.task(entry["task"]["id"].as_str().unwrap()).status().await, "running");
        }
    }

    async fn a_worker_renews_only_its_own_leases(server) {
        let crew = server.crew();
        let (mine, other) = (crew.worker().register().await, crew.worker().register().await);
        crew.task().create().await;
        let ids = lease_ids(&mine.claim(1).await);
        let answer = server.post(&other.path("/heartbeat"), json!({ "leases": ids })).await.ok();
        assert_eq!((&answer["renewed"], &answer["lost"]), (&json!([]), &json!(ids)));
    }

    async fn a_worker_is_told_what_to_cancel(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(2).register().await;
        let task = crew.task().create().await;
        let ids = lease_ids(&worker.claim(1).await);
        task.cancel().await.ok();
        let heartbeat = server.post(&worker.path("/heartbeat"), json!({ "leases": ids })).await.ok();
        assert_eq!(heartbeat["directives"]["cancel"], json!([task.id]));
        assert_eq!(heartbeat["directives"]["cancel_leases"], json!([heartbeat["renewed"][0]]));
        let claim = server.post(&worker.path("/claim"), json!({ "max": 1, "held": ids })).await.ok();
        assert_eq!(claim["directives"]["cancel"], json!([task.id]));
        assert_eq!(claim["directives"]["cancel_leases"], heartbeat["renewed"]);
        task.succeed("x").await;
        let heartbeat = server.post(&worker.path("/heartbeat"), json!({ "leases": [] })).await.ok();
        assert_eq!(heartbeat["directives"]["cancel"], json!([]));
    }

    async fn completions_in_one_call_stand_each_on_its_own(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        for _ in 0..3 {
            crew.task().create().await;
        }
        let claimed = worker.claim(3).await;
        let ids = lease_ids(&claimed);
        let task = |i: usize| claimed[i]["task"]["id"].clone();
        let queued = crew.task().create().await;
        let completion = |task: Value, lease: &str, status: &str| {
            json!({ "task_id": task, "lease_id": lease, "status": status, "output": "o", "metrics": { "duration_ms": 1 } })
        };
        let answer = server.post(&worker.path("/complete"), json!({ "completions": [
            completion(task(0), &ids[0], "success"),
            completion(task(1), &ids[1], "error"),
            completion(task(2), NO_ID, "success"),
            completion(task(2), &ids[2], "finished"),
            completion(json!(NO_ID), &ids[2], "success"),
            completion(json!(queued.id), &ids[2], "success"),
            completion(task(0), &ids[0], "success"),
        ] })).await.ok();
        let results = answer["results"].as_array().unwrap();
        let statuses = results.iter().map(|result| result["status"].as_i64().unwrap()).collect::<Vec<_>>();
        assert_eq!(statuses, [200, 200, 409, 400, 404, 409, 200], "{answer}");
        for (i, result) in results.iter().enumerate() {
            assert!(result["task_id"].is_string(), "{result}");
            assert_eq!(result["status"] != 200, result.get("error").is_some_and(|error| !error.is_null()), "{i}: {result}");
        }
        assert_eq!(server.task(task(0).as_str().unwrap()).status().await, "completed");
        assert_eq!(server.task(task(1).as_str().unwrap()).status().await, "failed");
        assert_eq!(server.task(task(2).as_str().unwrap()).status().await, "leased");
    }
}
