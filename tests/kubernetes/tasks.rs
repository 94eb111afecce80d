//! The life of an LLMTask.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::{PATIENCE, shared};
use crate::objects::{Player, condition, is_true, lease_name, object, task_id, writes};
use crate::support::{Database, NO_ID, eventually, now_ms, run, unique};
use bloom_operator::crds::{LLMTask, TaskLease};

/// Runs each test with a server on SQLite and with one on PostgreSQL.
macro_rules! on_both {
    ($(async fn $name:ident($database:ident) $body:block)*) => {$(
        mod $name {
            #[allow(clippy::wildcard_imports)]
            use super::*;
            async fn check($database: Database) $body
            #[test]
            fn on_sqlite() {
                run(check(Database::Sqlite));
            }
            #[test]
            fn on_postgresql() {
                run(check(Database::Postgres));
            }
        }
    )*};
}

on_both! {
    async fn an_agent_runs_what_kubectl_applies(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let agent = server.agent(&unique("runner")).shell().start();
        let manifest = object("greet", &slug, json!({ "prompt": "printf 'hello from the cluster'" })).to_string();
        team.kubectl(&["apply", "-f", "-"], &manifest).unwrap();
        let timeout = format!("--timeout={}s", PATIENCE.as_secs());
        team.kubectl(&["wait", "--for=condition=Complete", "lt/greet", &timeout], "").unwrap();
        let done = team.get("greet").await;
        let status = done.status.as_ref().unwrap();
        assert_eq!((status.phase.as_deref(), status.attempts), (Some("Completed"), Some(1)));
        assert_eq!(status.result_preview.as_deref(), Some("hello from the cluster\n"));
        assert_eq!(status.result.as_ref().unwrap().bytes, 23);
        assert!(status.start_time.is_some() && status.completion_time.is_some() && status.worker_name.is_some());
        assert_eq!(status.observed_generation, done.metadata.generation);
        for (kind, holds) in [("Queued", false), ("Leased", false), ("Complete", true), ("Failed", false)] {
            assert_eq!(is_true(&done, kind), holds, "{kind}");
        }

        // Over HTTP it is a task as any other.
        let task = server.get(&format!("llm-tasks/{}", status.task_id.as_ref().unwrap())).await.ok();
        assert_eq!(task["context_id"], format!("namespace:{}/repo", team.name));
        let uid = done.metadata.uid.clone().unwrap();
        assert_eq!(task["kubernetes"], json!({ "namespace": team.name, "name": "greet", "uid": uid }));
        assert_eq!(server.get(&format!("llm-tasks/{uid}")).await.ok()["id"], task["id"], "the uid names it too");
        server.get(&format!("llm-tasks/{}", uuid::Uuid::from_u128(7))).await.expect(404);

        let columns = team.kubectl(&["get", "lt", "-o", "wide"], "").unwrap();
        for column in ["PHASE", "WORKER", "ATTEMPTS", "REASON", "AGE", "CONTEXT", "AGENT", "COST", "Completed"] {
            assert!(columns.contains(column), "{column} is missing in {columns}");
        }
        drop(agent);
    }

    async fn each_step_is_shown_with_few_writes(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let name = team.create(&slug, json!({ "maxAttempts": 2 })).await;
        let queued = team.is_in_phase(&name, "Queued").await;
        assert_eq!(queued.status.as_ref().unwrap().reason.as_deref(), Some("NoWorker"));
        assert!(is_true(&queued, "Queued") && !is_true(&queued, "Leased"));

        let player = Player::join(&server, &slug, 1).await;
        let claimed = player.claim().await;
        let running = team.is_in_phase(&name, "Running").await;
        assert_eq!(running.status.as_ref().unwrap().worker_name.as_deref(), Some(player.name.as_str()));
        assert!(is_true(&running, "Leased") && !is_true(&running, "Queued"));

        let usage = json!({ "input_tokens": 3, "output_tokens": 4, "cost_usd": 0.25 });
        player.complete(&claimed, json!({ "status": "error", "error_message": "no way", "retryable": true, "usage": usage })).await;
        let again = player.claim().await;
        team.shows(&name, "the second attempt", |object| object.status.as_ref().unwrap().attempts == Some(2)).await;
        player.complete(&again, json!({ "output": "x".repeat(10_000) })).await;
        let done = team.is_in_phase(&name, "Completed").await;
        let status = done.status.as_ref().unwrap();
        assert_eq!((status.attempts, status.usage.unwrap().cost_usd), (Some(2), 0.25));
        assert_eq!((status.result_preview.as_ref().unwrap().len(), status.result.as_ref().unwrap().bytes), (4_096, 10_000));
        let events = || async {
            let told = team.kubectl(&["describe", "lt", &name], "").ok()?;
            (1..=2).all(|attempt| told.contains(&format!("Attempt {attempt} of 2 runs on worker {}", player.name))).then_some(())
        };
        eventually("an event for each attempt", events).await;
    }

    async fn a_success_takes_few_writes(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let name = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        team.is_in_phase(&name, "Running").await;
        player.complete(&claimed, json!({})).await;
        team.is_in_phase(&name, "Completed").await;
        // The finalizer, the TaskLease, Running, an Event, Completed, and the TaskLease again; Queued only if the claim was slow.
        let six = || async { Some(writes(&server).await).filter(|count| *count > 5.5) };
        let count = eventually("all writes", six).await;
        assert!(count < 7.5, "{count} writes");
    }

    async fn deleting_the_lease_revokes_it(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let name = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        let running = team.shows(&name, "its lease", |object| lease_name(object).is_some()).await;
        let leases = team.api::<TaskLease>();
        let lease = leases.get(lease_name(&running).unwrap()).await.unwrap();
        assert_eq!((lease.spec.task_name.as_str(), lease.spec.worker_name.as_str(), lease.spec.attempt), (name.as_str(), player.name.as_str(), 1));
        assert_eq!(claimed["lease"]["id"], lease.spec.lease_id);
        assert_eq!(lease.metadata.owner_references.as_ref().unwrap()[0].name, name);
        let edit = Patch::Merge(json!({ "spec": { "attempt": 2 } }));
        let told = leases.patch(lease.metadata.name.as_ref().unwrap(), &PatchParams::default(), &edit).await.unwrap_err().to_string();
        assert!(told.contains("delete it to revoke the lease"), "{told}");

        leases.delete(lease.metadata.name.as_ref().unwrap(), &DeleteParams::default()).await.unwrap();
        let again = player.claim().await;
        assert_ne!(again["lease"]["id"], claimed["lease"]["id"]);
        let body = json!({ "leases": [claimed["lease"]["id"]] });
        let beat = server.post(&format!("workers/{}/heartbeat", player.name), body).await.ok();
        assert_eq!(beat["lost"], json!([claimed["lease"]["id"]]), "the worker is told");
        player.complete(&again, json!({})).await;
        let done = team.is_in_phase(&name, "Completed").await;
        assert_eq!((done.status.as_ref().unwrap().attempts, lease_name(&done)), (Some(1), None), "the revoked attempt does not count");
        let left = leases.list(&ListParams::default()).await.unwrap();
        assert!(left.items.is_empty(), "{left:?}");
        let events = team.kubectl(&["describe", "lt", &name], "").unwrap();
        assert!(events.contains("Assigned") && events.contains(&format!("runs on worker {}", player.name)), "{events}");
        assert!(events.contains("Retry") && events.contains("TaskLease was deleted"), "{events}");
    }

    async fn an_error_is_shown(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let name = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        player.complete(&claimed, json!({ "status": "error", "error_message": "no way", "reason": "bad_output" })).await;
        let failed = team.is_in_phase(&name, "Failed").await;
        let condition = condition(&failed, "Failed").unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str(), condition.message.as_str()), ("True", "BadOutput", "no way"));
        assert!(!is_true(&failed, "Complete"));

        // A person queues it again over HTTP; the object follows.
        server.poke(&format!("llm-tasks/{}/requeue", task_id(&failed).unwrap())).await.ok();
        let queued = team.is_in_phase(&name, "Queued").await;
        assert!(!is_true(&queued, "Failed") && is_true(&queued, "Queued"));
    }

    async fn a_run_that_asks_a_person_is_shown(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let name = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        let task = format!("llm-tasks/{}", claimed["task"]["id"].as_str().unwrap());
        let asked = json!({ "lease_id": claimed["lease"]["id"], "id": NO_ID, "question": { "tool": "Bash", "limit_sec": 600 } });
        server.post(&format!("{task}/question"), asked).await.ok();
        let reason = |object: &LLMTask| object.status.as_ref().and_then(|status| status.reason.clone());
        let asks = team.shows(&name, "that it asks", |object| reason(object).as_deref() == Some("NeedsHuman")).await;
        let status = asks.status.as_ref().unwrap();
        let told = (status.phase.as_deref(), status.message.as_deref());
        assert_eq!(told, (Some("Running"), Some("a person must decide whether it may use Bash")));
        server.post(&format!("{task}/answer"), json!({ "allow": true })).await.ok();
        let goes_on = team.shows(&name, "that it goes on", |object| reason(object).is_none()).await;
        assert!(is_true(&goes_on, "Leased"));
    }

    async fn a_suspended_task_waits(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let name = team.create(&slug, json!({ "suspend": true })).await;
        let reason = |object: &LLMTask| object.status.as_ref().and_then(|status| status.reason.clone());
        team.shows(&name, "that it is suspended", |object| reason(object).as_deref() == Some("Suspended")).await;
        let id = team.task_id(&name).await;
        // What was changed elsewhere is put right.
        server.poke(&format!("llm-tasks/{id}/resume")).await.ok();
        let task = || async { server.get(&format!("llm-tasks/{id}")).await.ok() };
        eventually("it is suspended again", || async { (task().await["suspend"] == true).then_some(()) }).await;
        team.patch(&name, json!({ "suspend": false })).await.unwrap();
        let claimed = player.claim().await;
        player.complete(&claimed, json!({})).await;
        team.is_in_phase(&name, "Completed").await;
    }

    async fn cancel_and_priority_can_be_edited(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let name = team.create(&slug, json!({})).await;
        let id = team.task_id(&name).await;
        team.patch(&name, json!({ "priority": 9 })).await.unwrap();
        let task = || async { server.get(&format!("llm-tasks/{id}")).await.ok() };
        eventually("the priority", || async { (task().await["priority"] == 9).then_some(()) }).await;
        // What was changed elsewhere is put right.
        server.patch(&format!("llm-tasks/{id}"), json!({ "priority": 1 })).await.ok();
        eventually("the priority of the object", || async { (task().await["priority"] == 9).then_some(()) }).await;

        team.patch(&name, json!({ "cancel": true })).await.unwrap();
        let cancelled = team.is_in_phase(&name, "Cancelled").await;
        assert_eq!(condition(&cancelled, "Failed").unwrap().reason, "Cancelled");
        let audit = server.get(&format!("audit?task_id={id}")).await.ok().to_string();
        assert!(audit.contains(&format!("key:kubernetes:{}", team.name)), "{audit}");
    }

    async fn a_run_is_stopped_before_its_object_goes(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let name = team.create(&slug, json!({})).await;
        let claimed = player.claim().await;
        let id = claimed["task"]["id"].as_str().unwrap();
        team.is_in_phase(&name, "Running").await;
        team.delete(&name).await;
        eventually("the worker is told to stop", || async {
            (server.get(&format!("llm-tasks/{id}")).await.ok()["cancel_requested"] == true).then_some(())
        })
        .await;
        assert!(team.get(&name).await.metadata.deletion_timestamp.is_some(), "it stays until the run has ended");
        player.complete(&claimed, json!({ "status": "error", "error_message": "stopped", "reason": "cancelled" })).await;
        team.is_gone(&name).await;
        assert_eq!(server.get(&format!("llm-tasks/{id}")).await.ok()["status"], "cancelled");

        // A queued one goes at once, and what has no finalizer yet too.
        let queued = team.create(&unique("nobody"), json!({})).await;
        let id = team.task_id(&queued).await;
        team.delete(&queued).await;
        team.is_gone(&queued).await;
        assert_eq!(server.get(&format!("llm-tasks/{id}")).await.ok()["status"], "cancelled");
    }

    async fn a_prompt_is_waited_for(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let map = team.create(&slug, json!({ "promptFrom": { "configMapKeyRef": { "name": "texts", "key": "one" } } })).await;
        let secret = team.create(&slug, json!({ "promptFrom": { "secretKeyRef": { "name": "secret", "key": "two" } } })).await;
        let pending = team.is_in_phase(&map, "Pending").await;
        let queued = condition(&pending, "Queued").unwrap();
        assert_eq!((queued.status.as_str(), queued.reason.as_str()), ("False", "PromptNotFound"));
        assert_eq!(queued.message, format!("ConfigMap 'texts' does not exist in namespace '{}'", team.name));
        team.is_in_phase(&secret, "Pending").await;

        let named = |name: &str| ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        let data = [("one".to_owned(), "from the map".to_owned())].into();
        let texts = ConfigMap { metadata: named("texts"), data: Some(data), ..ConfigMap::default() };
        team.api::<ConfigMap>().create(&PostParams::default(), &texts).await.unwrap();
        let string_data = Some([("two".to_owned(), "from the secret".to_owned())].into());
        let kept = Secret { metadata: named("secret"), string_data, ..Secret::default() };
        let secrets = team.api::<Secret>();
        secrets.create(&PostParams::default(), &kept).await.unwrap();
        // Who creates LLMTasks must not read other Secrets of the namespace by them.
        let told = "Secret 'secret' is not marked as one for prompts: kubectl label secret secret bloom-runtime.dev/prompt=true";
        team.shows(&secret, "the secret is refused", |object| condition(object, "Queued").is_some_and(|queued| queued.message == told)).await;
        let label = json!({ "metadata": { "labels": { "bloom-runtime.dev/prompt": "true" } } });
        secrets.patch("secret", &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
        for (name, prompt) in [(map, "from the map"), (secret, "from the secret")] {
            let id = team.task_id(&name).await;
            assert_eq!(server.get(&format!("llm-tasks/{id}")).await.ok()["prompt"], prompt);
        }
    }

    async fn a_status_that_was_edited_is_put_right(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        // Each step in another second, so that each has a time of its own.
        let second = || now_ms() / 1000;
        let next_second = async |now: i64| eventually("the next second", || async { (second() > now).then_some(()) }).await;
        let name = team.create(&slug, json!({})).await;
        team.task_id(&name).await;
        next_second(second()).await;
        let claimed = player.claim().await;
        team.is_in_phase(&name, "Running").await;
        next_second(second()).await;
        player.complete(&claimed, json!({ "output": "right" })).await;
        let before = team.is_in_phase(&name, "Completed").await;
        for edit in [
            json!({ "status": { "phase": "Queued", "resultPreview": "wrong", "message": "by hand", "attempts": 7 } }),
            json!({ "status": null }),
        ] {
            team.api::<LLMTask>().patch_status(&name, &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
            let what = "the status is as before";
            team.shows(&name, what, |object| object.status == before.status).await;
        }
        assert_eq!(server.get("llm-tasks?limit=10").await.ok().as_array().unwrap().len(), 1);
    }

    async fn tasks_wait_for_others_by_name(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 2).await;
        let first = unique("first");
        let second = team.create(&slug, json!({ "dependsOn": [first] })).await;
        let pending = team.is_in_phase(&second, "Pending").await;
        assert_eq!(pending.status.unwrap().reason.as_deref(), Some("DependencyNotFound"));
        let made: LLMTask = serde_json::from_value(object(&first, &slug, json!({}))).unwrap();
        team.api::<LLMTask>().create(&PostParams::default(), &made).await.unwrap();
        let waits = team.is_in_phase(&second, "Queued").await;
        assert_eq!(waits.status.unwrap().reason.as_deref(), Some("DependsOn"));
        let claimed = player.claim().await;
        player.complete(&claimed, json!({})).await;
        let claimed = player.claim().await;
        assert_eq!(claimed["task"]["kubernetes"]["name"], second);
    }

    async fn a_finished_task_is_removed_after_its_time(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 1).await;
        let name = team.create(&slug, json!({ "ttlSecondsAfterFinished": 1 })).await;
        let claimed = player.claim().await;
        player.complete(&claimed, json!({})).await;
        team.is_gone(&name).await;
        let path = format!("llm-tasks/{}", claimed["task"]["id"].as_str().unwrap());
        eventually("the task is removed too", || async { (server.get(&path).await.status == 404).then_some(()) }).await;
    }

    async fn a_repeated_key_shows_the_first_task(database) {
        let team = shared().await.namespace().await;
        let server = team.server(database).start();
        let slug = unique("agent");
        let player = Player::join(&server, &slug, 2).await;
        let first = team.create(&slug, json!({ "idempotencyKey": "once" })).await;
        let id = team.task_id(&first).await;
        let second = team.create(&slug, json!({ "idempotencyKey": "once" })).await;
        assert_eq!(team.task_id(&second).await, id);
        let other = team.create(&slug, json!({ "idempotencyKey": "once", "contextId": "another" })).await;
        let refused = team.is_in_phase(&other, "Pending").await;
        assert_eq!(refused.status.unwrap().reason.as_deref(), Some("Refused"));
        // The task is the first object's: the end of the second one does not stop it.
        team.delete(&second).await;
        team.is_gone(&second).await;
        let claimed = player.claim().await;
        assert_eq!(claimed["task"]["id"], id);
        player.complete(&claimed, json!({})).await;
        team.is_in_phase(&first, "Completed").await;
    }

    async fn namespaces_share_neither_contexts_nor_keys(database) {
        let cluster = shared().await;
        let (one, other) = (cluster.namespace().await, cluster.namespace().await);
        let server = one.server(database).start();
        let plan = other.with_operator(crate::support::Server::on_url(&server.database_url()), "operator-1");
        let second = (database == Database::Postgres).then(|| plan.start());
        let slug = unique("agent");
        let keys = json!({ "exclusiveKey": "lock", "idempotencyKey": "once", "session": "context" });
        let mine = one.create(&slug, keys.clone()).await;
        let id = one.task_id(&mine).await;
        if second.is_some() {
            let theirs = other.create(&slug, keys).await;
            assert_ne!(other.task_id(&theirs).await, id);
        }
        // Nobody enters a namespace over HTTP.
        let context = format!("namespace:{}/repo", one.name);
        let task = json!({ "context_id": context, "agent_slug": slug, "prompt": "p" });
        let refused = server.post("llm-tasks", task).await.expect(400).text;
        assert!(refused.contains("String must not begin with 'namespace:'"), "{refused}");
        for key in ["exclusive_key", "idempotency_key"] {
            let task = json!({ "context_id": "c", "agent_slug": slug, "prompt": "p", key: context });
            assert!(server.post("llm-tasks", task).await.expect(400).text.contains(key));
        }
        let plain = json!({ "context_id": "repo", "agent_slug": slug, "prompt": "p", "exclusive_key": "lock", "idempotency_key": "once" });
        assert_ne!(server.post("llm-tasks", plain).await.created()["id"], id);
    }
}
