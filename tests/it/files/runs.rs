//! Files of runs: who uploads them, their limits, and when they go.

use super::{bytes, content, has_no_chunks, id, upload};
use crate::keys::{ADMIN, keyed, with_new_key};
use crate::on_both;
use crate::support::*;

fn of_run(task: &Task<'_>, lease: &str, rest: &str) -> String {
    format!("task_id={}&lease_id={lease}&{rest}", task.id)
}

on_both! { alone:
    async fn files_of_a_run_go_with_its_task(database) {
        let server = Server::on(database).start();
        let (task, lease) = server.crew().leased_task().await;
        let query = |rest: &str| of_run(&task, &lease.id, rest);
        let report = upload(&server, &query("name=out/r.txt"), b"report").await.created();
        assert_eq!((&report["type"], &report["task_id"]), (&json!("OUTPUT"), &json!(task.id)));
        let again = upload(&server, &query("name=out/r.txt"), b"report").await.ok();
        assert_eq!(again, report, "a repeated upload");
        let changed = upload(&server, &query("name=out/r.txt"), b"changed").await.created();
        assert_ne!(id(&changed), id(&report));
        let large = upload(&server, &query("name=x.patch&type=GIT_DIFF"), &bytes(600_000)).await.created();
        upload(&server, &query("name=x.patch&type=GIT_DIFF"), &bytes(600_000)).await.ok();
        let done = lease.complete("success", json!({ "output": "done" })).await.ok();
        upload(&server, &query("name=late"), b"late").await.fails(404, "Lease not found or already expired");
        let listed = server.get(&format!("artifacts?task_id={}", task.id)).await.ok();
        let ids: Vec<&str> = listed.as_array().unwrap().iter().map(id).collect();
        assert_eq!(ids, [id(&done["artifact"]), id(&large), id(&changed), id(&report)], "newest first");
        let mut pages = Vec::new();
        let mut next = Some(format!("/api/runtime/artifacts?task_id={}&limit=1", task.id));
        while let Some(page) = next {
            let answer = server.get(&page).await;
            next = answer.next_page();
            pages.extend(answer.ok().as_array().unwrap().iter().map(|artifact| id(artifact).to_owned()));
        }
        assert_eq!(pages, ids);
        assert_eq!(content(&server, &large).await, bytes(600_000));
        for artifact in [&report, &done["artifact"]] {
            let told = server.delete(&format!("artifacts/{}", id(artifact))).await.error(409);
            assert!(told.contains("belongs to its task"), "{told}");
        }
        let input = json!([{ "artifact_id": id(&report) }]);
        server.crew().task().with("inputs", input).answer().await.refuses(&["inputs"]);
        server.delete(&task.path("")).await.ok();
        server.get(&format!("artifacts/{}/content", id(&large))).await.fails(404, "Artifact not found");
        assert_eq!(server.get("artifacts").await.ok(), json!([]));
        has_no_chunks(&server).await;
    }

    async fn keys_of_clients_upload_no_files_of_runs(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let worker = admin.worker().slots(4).register().await;
        for scope in ["submit", "member"] {
            let key = with_new_key(&admin, &server, scope, scope, json!({ "team": "web" })).await;
            let own = Crew { api: &key, slug: "coder".into() }.task().create().await;
            let lease = admin.task(&own.id).lease_to(&worker).await;
            for rest in ["name=out", "name=x.patch&type=GIT_DIFF"] {
                let said = upload(&key, &of_run(&own, &lease.id, rest), b"forged").await.error(403);
                assert!(said.contains("worker"), "{said}");
            }
            let unknown = format!("task_id={NO_ID}&lease_id={}&name=out", lease.id);
            upload(&key, &unknown, b"forged").await.error(403);
            assert_eq!(key.get(&format!("artifacts?task_id={}", own.id)).await.ok(), json!([]));
            upload(&admin, &of_run(&own, &lease.id, "name=out"), b"by hand").await.created();
        }
    }

    async fn a_lease_has_a_limit_of_files(database) {
        let server = Server::on(database).start();
        let (task, lease) = server.crew().leased_task().await;
        for n in 0..200 {
            upload(&server, &of_run(&task, &lease.id, &format!("name=f{n}")), b"x").await.created();
        }
        let told = upload(&server, &of_run(&task, &lease.id, "name=f200"), b"x").await.error(413);
        assert!(told.contains("200 files"), "{told}");
        upload(&server, &of_run(&task, &lease.id, "name=f0"), b"x").await.ok();
        assert_eq!(server.get(&format!("artifacts?task_id={}&limit=1000", task.id)).await.ok().as_array().unwrap().len(), 200);
    }

    async fn a_worker_reaches_only_what_its_tasks_need(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let mine = with_new_key(&admin, &server, "mine", "worker", json!({ "worker": "w-mine" })).await;
        let other = with_new_key(&admin, &server, "other", "worker", json!({ "worker": "w-other" })).await;
        let red = with_new_key(&admin, &server, "red", "submit", json!({})).await;
        let blue = with_new_key(&admin, &server, "blue", "submit", json!({})).await;
        for (api, name) in [(&mine, "w-mine"), (&other, "w-other")] {
            api.post("workers", json!({ "name": name })).await.created();
        }
        let secret = upload(&red, "name=secret", b"secret").await.created();
        let unused = upload(&red, "name=unused", b"unused").await.created();
        let body = json!({ "context_id": "c", "agent_slug": "a", "prompt": "p", "inputs": [{ "artifact_id": id(&secret) }] });
        let task = red.post("llm-tasks", body).await.created();
        let task = admin.task(id(&task));
        let read = |api: &Api, artifact: &Value| {
            let (api, path) = (api.clone(), format!("artifacts/{}/content", id(artifact)));
            async move { api.get(&path).await }
        };
        read(&mine, &secret).await.fails(404, "Artifact not found");
        let claimed = mine.post("workers/w-mine/claim", json!({ "max": 1, "wait_sec": 20 })).await.ok();
        let lease = claimed["leases"][0]["lease"]["id"].as_str().unwrap().to_owned();
        assert_eq!(claimed["leases"][0]["task"]["inputs"][0]["artifact_id"], secret["id"]);
        assert_eq!(read(&mine, &secret).await.expect(200).text, "secret");
        read(&mine, &unused).await.fails(404, "Artifact not found");
        read(&other, &secret).await.fails(404, "Artifact not found");
        upload(&mine, "name=a", b"a").await.expect(403);
        let query = of_run(&task, &lease, "name=out");
        upload(&other, &query, b"a").await.expect(403);
        upload(&blue, &query, b"a").await.error(403);
        let out = upload(&mine, &query, b"out").await.created();
        upload(&mine, &of_run(&task, id(&out), "name=out"), b"out").await.error(409);
        upload(&mine, &of_run(&task, &lease, "name=out&type=INPUT"), b"a").await.refuses(&["type"]);
        read(&mine, &out).await.fails(404, "Artifact not found");
        read(&blue, &out).await.fails(404, "Artifact not found");
        assert_eq!(read(&red, &out).await.expect(200).text, "out");
        mine.delete(&format!("artifacts/{}", id(&out))).await.expect(403);
        task.complete(json!({ "status": "success", "output": "o", "lease_id": lease, "metrics": { "duration_ms": 1 } })).await.ok();
        read(&mine, &secret).await.fails(404, "Artifact not found");
    }
}

#[test]
fn two_replicas_serve_the_same_files() {
    run(async {
        let one = Server::on(Database::Postgres).start();
        let two = Server::on_url(&one.database_url()).start();
        let sent = bytes(700_000);
        let uploaded = upload(&one, "name=a", &sent).await.created();
        assert_eq!(content(&two, &uploaded).await, sent);
        let crew = two.crew();
        let task = crew.task().with("inputs", json!([{ "artifact_id": id(&uploaded) }])).create().await;
        one.delete(&format!("artifacts/{}", id(&uploaded))).await.error(409);
        let worker = crew.worker().register().await;
        let lease = task.lease_to(&worker).await;
        // The same file at the same time: one of them is the first.
        let query = of_run(&task, &lease.id, "name=same");
        let (left, right) = tokio::join!(upload(&one, &query, &sent), upload(&two, &query, &sent));
        let mut statuses = [left.status, right.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 201]);
        assert_eq!(left.json(), right.json());
        assert_eq!(one.get(&format!("artifacts?task_id={}", task.id)).await.ok(), json!([left.json()]));
    });
}
