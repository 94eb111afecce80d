//! Quotas of submit keys: what the server refuses beyond them, also on the other replica, after a restart, and for what runs produce.

use futures_util::future::join_all;

use crate::files::upload;
use crate::keys::{ADMIN, create, keyed, with_new_key};
use crate::on_both;
use crate::replicas::replicas_of;
use crate::support::*;

fn task(prompt: &str) -> Value {
    json!({ "context_id": unique("c"), "agent_slug": "coder", "prompt": prompt })
}

async fn quota_of(admin: &Api, name: &str) -> Value {
    let keys = admin.get("keys").await.ok();
    keys.as_array().unwrap().iter().find(|key| key["name"] == name).expect("the key")["quota"].clone()
}

on_both! { alone:
    async fn a_key_has_no_more_open_tasks_than_its_quota(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let team = with_new_key(&admin, &server, "team", "submit", json!({ "quota": { "max_open_tasks": 3 } })).await;
        // Many at once share the room that is left.
        let outcomes = join_all((0..8).map(|_| team.post("llm-tasks", task("x")))).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.status == 201).count(), 3);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.status == 409).count(), 5);
        let said = team.post("llm-tasks", task("x")).await.error(409);
        assert_eq!(said, "The quota of this key is 3 open tasks, and 3 are open: wait until some end, or cancel some");
        let whole = json!({ "tasks": [task("x"), task("x")] });
        team.post("llm-tasks:batch", whole).await.error(409);
        assert_eq!(quota_of(&admin, "team").await, json!({
            "max_open_tasks": 3, "max_tasks_per_minute": null, "max_stored_bytes": null, "open_tasks": 3, "stored_bytes": null
        }));
        admin.post("llm-tasks", task("x")).await.created();

        let open = team.get("llm-tasks").await.ok();
        let first = open[0]["id"].as_str().unwrap();
        team.post(&format!("llm-tasks/{first}/cancel"), json!({})).await.ok();
        let next = team.post("llm-tasks", task("x")).await.created();
        team.post(&format!("llm-tasks/{first}/requeue"), json!({})).await.error(409);
        team.post(&format!("llm-tasks/{}/cancel", next["id"].as_str().unwrap()), json!({})).await.ok();
        team.post(&format!("llm-tasks/{first}/requeue"), json!({})).await.ok();
    }

    async fn a_teammate_queues_no_more_again_than_the_quota_of_the_creator_allows(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let ci = with_new_key(&admin, &server, "ci", "submit", json!({ "team": "web", "quota": { "max_open_tasks": 2 } })).await;
        let ann = with_new_key(&admin, &server, "ann", "member", json!({ "team": "web" })).await;
        let mut made = Vec::new();
        for _ in 0..6 {
            let id = ci.post("llm-tasks", task("x")).await.created()["id"].as_str().unwrap().to_owned();
            ci.post(&format!("llm-tasks/{id}/cancel"), json!({})).await.ok();
            made.push(id);
        }
        let open = async || quota_of(&admin, "ci").await["open_tasks"].clone();
        let many = ann.post("llm-tasks:requeue", json!({ "ids": made })).await.ok();
        assert_eq!((&many["matched"], &many["changed"], open().await), (&json!(6), &json!(2), json!(2)));
        assert!(many["not_changed"].as_array().unwrap().iter().all(|task| task["reason"] == "quota"), "{many}");
        let said = ann.post(&format!("llm-tasks/{}/requeue", made[5]), json!({})).await.error(409);
        assert_eq!(said, "The quota of the key 'ci', which created the task, is 2 open tasks, and 2 are open: wait until some end, or cancel some");
        ann.post("llm-tasks", task("x")).await.created();
        // An administrator is not limited, with a named key neither.
        let root = with_new_key(&admin, &server, "root", "admin", json!({})).await;
        admin.post(&format!("llm-tasks/{}/requeue", made[5]), json!({})).await.ok();
        root.post(&format!("llm-tasks/{}/requeue", made[4]), json!({})).await.ok();
        assert_eq!(open().await, 4);
        // A key that was revoked has no quota any more.
        admin.delete("keys/ci").await.ok();
        ann.post(&format!("llm-tasks/{}/requeue", made[3]), json!({})).await.ok();
    }

    async fn a_quota_of_a_minute_tells_when_there_is_room(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let team = with_new_key(&admin, &server, "team", "submit", json!({ "quota": { "max_tasks_per_minute": 2 } })).await;
        let whole = |count: usize| json!({ "tasks": (0..count).map(|_| task("x")).collect::<Vec<_>>() });
        team.post("llm-tasks:batch", whole(3)).await.error(409);
        team.post("llm-tasks:batch", whole(2)).await.created();
        let refused = team.post("llm-tasks", task("x")).await.expect(429);
        assert!((1..=30).contains(&refused.number("retry-after")), "{}", refused.text);
        assert_eq!(refused.json()["code"], "rate_limited");
        // It is kept in the database.
        server.kill9();
        server.start_again();
        team.post("llm-tasks", task("x")).await.expect(429);
    }

    async fn what_runs_store_counts_and_is_kept(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let team = with_new_key(&admin, &server, "team", "submit", json!({ "quota": { "max_stored_bytes": 100_000 } })).await;
        upload(&team, "name=a", &[7; 60_000]).await.created();
        upload(&team, "name=b", &[7; 60_000]).await.error(409);
        team.post("llm-tasks", task(&"x".repeat(35_000))).await.created();
        team.post("llm-tasks", task(&"x".repeat(2_000))).await.error(409);
        assert_eq!(quota_of(&admin, "team").await["stored_bytes"], 60_000 + 35_000 + 2_048);

        // A run may produce more than there is room for: its work is paid.
        let worker = admin.worker().slots(1).register().await;
        let claimed = worker.claim(1).await;
        let run = admin.task(claimed[0]["task"]["id"].as_str().unwrap());
        let failed = json!({ "status": "error", "output": "y".repeat(50_000), "error_message": "no", "reason": "bad_output", "metrics": { "duration_ms": 1 } });
        run.complete(failed).await.ok();
        let full = || async { quota_of(&admin, "team").await["stored_bytes"].as_i64().unwrap() };
        server.stop();
        server.start_again();
        eventually("what the run stored is measured", || async { (147_048..147_100).contains(&full().await).then_some(()) }).await;
        team.post("llm-tasks", task("x")).await.error(409);
        // Another run would store even more.
        team.post(&run.path("/requeue"), json!({})).await.error(409);
        let said = team.post("llm-tasks:requeue", json!({ "ids": [run.id], "dry_run": false })).await.error(409);
        assert!(said.contains("stored bytes"), "{said}");
        team.delete(&format!("llm-tasks/{}", run.id)).await.ok();
        server.stop();
        server.start_again();
        eventually("what was deleted is measured", || async { (full().await == 60_000).then_some(()) }).await;
        team.post("llm-tasks", task("x")).await.created();
    }

    async fn a_quota_is_changed_and_wrong_ones_are_refused(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let team = with_new_key(&admin, &server, "team", "submit", json!({})).await;
        assert_eq!(quota_of(&admin, "team").await, json!(null));
        team.post("llm-tasks", task("x")).await.created();
        let changed = admin.post("keys/team/quota", json!({ "max_open_tasks": 1 })).await.ok();
        assert_eq!((&changed["name"], &changed["quota"]["max_open_tasks"], &changed["quota"]["open_tasks"]), (&json!("team"), &json!(1), &json!(1)));
        team.post("llm-tasks", task("x")).await.error(409);
        let whole = admin.post("keys/team/quota", json!({ "max_opentasks": 9 })).await.expect(400);
        assert!(whole.text.contains("did you mean max_open_tasks?"), "{}", whole.text);
        team.post("llm-tasks", task("x")).await.error(409);
        assert_eq!(admin.delete("keys/team/quota").await.ok()["quota"], json!(null));
        team.post("llm-tasks", task("x")).await.created();
        assert_eq!(quota_of(&admin, "team").await, json!(null));

        for (wrong, field) in [("max_open_tasks", 0), ("max_tasks_per_minute", -1), ("max_stored_bytes", 0)] {
            admin.post("keys/team/quota", json!({ wrong: field })).await.refuses(&[wrong]);
        }
        admin.post("keys", json!({ "name": "r", "scope": "read", "quota": { "max_open_tasks": 1 } })).await.refuses(&["quota"]);
        create(&admin, "r", "read", json!({})).await;
        let said = admin.post("keys/r/quota", json!({ "max_open_tasks": 1 })).await.error(409);
        assert_eq!(said, "A quota is for keys of the scopes 'submit' and 'member', and this key has the scope 'read'");
        admin.post("keys/nobody/quota", json!({ "max_open_tasks": 1 })).await.error(404);
        team.post("keys/team/quota", json!({ "max_open_tasks": 9 })).await.error(403);
        team.delete("keys/team/quota").await.error(403);
        let told = admin.get("audit?action=quota_changed").await.ok();
        let told: Vec<&str> = told.as_array().unwrap().iter().map(|entry| entry["detail"].as_str().unwrap()).collect();
        assert_eq!(told, ["no quota", "1 open tasks"]);
    }
}

#[test]
fn two_replicas_share_the_room_of_a_quota() {
    run(async {
        let url = postgres::database();
        let servers = replicas_of(2, || Server::on_url(&url).env("RUNTIME_API_KEY", ADMIN));
        let (first, second) = (&servers[0], &servers[1]);
        let admin = first.with_key(ADMIN);
        let key = create(&admin, "team", "submit", json!({ "quota": { "max_open_tasks": 5, "max_tasks_per_minute": 5 } })).await;
        let (one, other) = (first.with_key(&key), second.with_key(&key));
        let outcomes = join_all((0..40).map(|n| if n % 2 == 0 { &one } else { &other }).map(|api| api.post("llm-tasks", task("x")))).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.status == 201).count(), 5);
        // A new quota reaches the other replica.
        admin.post("keys/team/quota", json!({ "max_open_tasks": 6 })).await.ok();
        eventually("the other replica has the new quota", || async {
            (other.post("llm-tasks", task("x")).await.status == 201).then_some(())
        })
        .await;
        other.post("llm-tasks", task("x")).await.error(409);
    });
}
