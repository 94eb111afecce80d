//! Contexts: their list, and the reset that has the next run begin a new session. With several servers on one database where there can be
//! several.

use crate::keys::{ADMIN, keyed, with_new_key};
use crate::on_both;
use crate::support::*;

async fn shown(api: &Api, context: &str) -> Value {
    api.get(&format!("contexts/{context}")).await.ok()
}

/// The lease of the worker's next claim, which is for one task.
async fn claimed(worker: &Worker<'_>) -> Value {
    let mut leases = worker.claim(1).await;
    leases.pop().expect("a task")["lease"].clone()
}

/// The ids of all contexts on all pages.
async fn all(api: &Api, query: &str) -> Vec<String> {
    let (mut ids, mut path) = (Vec::new(), Some(format!("contexts?{query}")));
    while let Some(next) = path.take() {
        let page = api.get(&next).await;
        path = page.next_page();
        ids.extend(page.ok().as_array().unwrap().iter().map(|row| row["context_id"].as_str().unwrap().to_owned()));
    }
    ids
}

on_both! {
    async fn a_context_tells_of_its_tasks(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let context = unique("talk");
        server.get(&format!("contexts/{context}")).await.fails(404, "No task belongs to this context");
        server.poke(&format!("contexts/{context}/reset")).await.fails(404, "No task belongs to this context");
        let first = crew.task().context(&context).create().await;
        let lease = claimed(&worker).await;
        assert!(lease.get("context_reset_at").is_none(), "{lease}");
        let used = json!({ "output": "x", "session_id": "s-1", "usage": { "input_tokens": 3, "output_tokens": 4, "cost_usd": 0.5 } });
        let mut done = json!({ "lease_id": lease["id"], "status": "success", "metrics": { "duration_ms": 5 } });
        done.as_object_mut().unwrap().extend(used.as_object().unwrap().clone());
        first.complete(done).await.ok();
        let second = crew.task().context(&context).create().await;
        claimed(&worker).await;
        let third = crew.task().context(&context).create().await;
        let told = shown(server, &context).await;
        let expected = json!({
            "context_id": context, "namespace": null, "project": null,
            "tasks": { "queued": 1, "running": 1, "finished": 1, "more": false },
            "last_task": { "id": third.id, "status": "queued", "agent_slug": crew.slug, "updated_at": third.now().await["updated_at"] },
            "session_id": "s-1", "worker_id": worker.name, "reset_at": null,
            "usage": { "input_tokens": 3, "output_tokens": 4, "cost_usd": 0.5 },
        });
        assert_eq!(told, expected);
        assert_eq!(second.status().await, "leased");
    }

    async fn pages_have_each_context_once_in_order(server) {
        let crew = server.crew();
        let base = unique("page");
        let names: Vec<String> = ["a", "b", "c", "d", "e"].iter().map(|end| format!("{base}-{end}")).collect();
        for name in names.iter().chain(&names) {
            crew.task().context(name).with("session", json!("none")).create().await;
        }
        let mut found = all(server, "limit=2").await;
        found.retain(|id| id.starts_with(&base));
        assert_eq!(found, names);
        let from = server.get(&format!("contexts?limit=2&cursor=%3D{}", names[1])).await.ok();
        assert_eq!(from[0]["context_id"], json!(names[2]));
        let recent = server.get("contexts?order=recent&limit=5").await.ok();
        let recent: Vec<_> = recent.as_array().unwrap().iter().map(|row| row["context_id"].as_str().unwrap()).filter(|id| id.starts_with(&base)).collect();
        let newest_first: Vec<_> = names.iter().rev().filter(|name| recent.contains(&name.as_str())).collect();
        assert_eq!(recent, newest_first);
        crew.task().context(&names[0]).with("session", json!("none")).create().await;
        let first = server.get("contexts?order=recent&limit=1000").await;
        let at = |name: &str| first.json().as_array().unwrap().iter().position(|row| row["context_id"] == json!(name));
        assert!(at(&names[0]) < at(&names[4]) && at(&names[4]) < at(&names[1]), "{:?} {:?} {:?}", at(&names[0]), at(&names[4]), at(&names[1]));
        assert_eq!(first.next_page(), None);
        server.get("contexts?order=newest").await.refuses(&["order"]);
        server.get("contexts?cursor=x").await.refuses(&["cursor"]);
        server.get("contexts?project=%00").await.refuses(&["project"]);
    }

    async fn the_contexts_of_a_project_are_listed(server) {
        let name = unique("docs");
        server.post("projects", json!({ "name": name, "repo_url": "https://git.example.com/docs.git" })).await.created();
        let crew = server.crew();
        let (inside, outside) = (unique("inside"), unique("outside"));
        for context in [&inside, &inside] {
            crew.task().context(context).with("project", json!(name)).create().await;
        }
        crew.task().context(&outside).create().await;
        assert_eq!(all(server, &format!("limit=1&project={name}")).await, [inside.as_str()]);
        assert_eq!(all(server, &format!("order=recent&project={name}")).await, [inside.as_str()]);
        assert_eq!(shown(server, &inside).await["project"], json!(name));
    }

    async fn a_reset_is_told_with_each_later_lease(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let (context, other) = (unique("talk"), unique("other"));
        let running = crew.task().context(&context).create().await;
        let before = claimed(&worker).await;
        let reset = server.poke(&format!("contexts/{context}/reset")).await.ok();
        let at = reset["reset_at"].as_i64().expect("a time");
        assert_eq!((shown(server, &context).await, running.status().await.as_str()), (reset, "leased"));
        assert!(before.get("context_reset_at").is_none(), "its run goes on: {before}");
        running.succeed("x").await;
        crew.task().context(&context).create().await;
        let next = claimed(&worker).await;
        assert_eq!(next["context_reset_at"], json!(at));
        let undelivered = server.post(&worker.path("/claim"), json!({ "max": 1, "held": [] })).await.ok()["leases"].clone();
        assert_eq!(undelivered[0]["lease"]["context_reset_at"], json!(at), "a lost reply is told again");
        crew.task().context(&other).create().await;
        assert!(claimed(&worker).await.get("context_reset_at").is_none(), "of this context only");

        let again = server.poke(&format!("contexts/{context}/reset")).await.ok()["reset_at"].as_i64().unwrap();
        assert!(again > at, "{again} {at}");
        let alone = crew.task().context(&context).with("session", json!("none")).create().await;
        let leased = alone.lease(json!({ "worker_id": worker.name })).await.created();
        assert_eq!(leased["lease"]["context_reset_at"], json!(again), "a lease call tells it too");
        assert!(server.get("leases?limit=1000").await.text.find("context_reset_at").is_none(), "lists do not");
        let audit = server.get("audit?action=context_reset&limit=1000").await.ok();
        let entries = audit.as_array().unwrap().iter().filter(|entry| entry["entity_id"] == json!(context));
        let told: Vec<_> = entries.map(|entry| (entry["entity_type"].clone(), entry["actor"].clone())).collect();
        assert_eq!(told, [(json!("context"), json!("api")), (json!("context"), json!("api"))]);
    }

    async fn a_reset_goes_with_the_last_task(server) {
        let crew = server.crew();
        let context = unique("gone");
        let tasks = [crew.task().context(&context).create().await, crew.task().context(&context).create().await];
        server.poke(&format!("contexts/{context}/reset")).await.ok();
        for (task, is_left) in tasks.iter().zip([true, false]) {
            task.cancel().await.ok();
            server.delete(&task.path("")).await.ok();
            let found = server.get(&format!("contexts/{context}")).await;
            assert_eq!(found.status == 200, is_left);
        }
        crew.task().context(&context).create().await;
        assert_eq!(shown(server, &context).await["reset_at"], json!(null));
    }
}

/// A reset that one server has acknowledged is told with every lease that another one makes.
#[test]
fn a_reset_counts_on_every_replica() {
    run(async {
        let servers = crate::replicas::replicas(&postgres::database(), 2);
        let (one, other) = crew_on_both(&servers);
        let worker = other.worker().slots(30).register().await;
        for round in 0..20 {
            let context = unique("talk");
            one.task().context(&context).create().await;
            let at = one.api.poke(&format!("contexts/{context}/reset")).await.ok()["reset_at"].clone();
            let given = eventually("the other server gives the task", || async { worker.claim(1).await.pop() }).await;
            let lease = &given["lease"];
            assert_eq!((&lease["context_id"], &lease["context_reset_at"]), (&json!(context), &at), "round {round}");
            // Its lease must not end in a later round.
            other.api.task(given["task"]["id"].as_str().unwrap()).succeed("x").await;
        }
    });
}

on_both! { alone:
    async fn a_submit_key_resets_its_own_contexts_only(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let red = with_new_key(&admin, &server, "red", "submit", json!({})).await;
        let blue = with_new_key(&admin, &server, "blue", "submit", json!({})).await;
        let reader = with_new_key(&admin, &server, "eyes", "read", json!({})).await;
        let crew = |api| Crew { api, slug: "coder".into() };
        crew(&red).task().context("talk").create().await;
        crew(&blue).task().context("talk").create().await;
        // The admin works in the context of red, too: red is not told of it.
        crew(&admin).task().context("red/talk").create().await;
        crew(&admin).task().context("red/other").create().await;

        assert_eq!(all(&red, "limit=1").await, ["red/talk"]);
        assert_eq!(all(&blue, "project=none").await, Vec::<String>::new());
        assert_eq!(all(&reader, "").await, ["blue/talk", "red/other", "red/talk"]);
        assert_eq!(shown(&red, "talk").await["tasks"]["queued"], 1);
        assert_eq!(shown(&admin, "red%2Ftalk").await["tasks"]["queued"], 2);
        for other in ["blue%2Ftalk", "other", "red%2Fother"] {
            red.get(&format!("contexts/{other}")).await.fails(404, "No task belongs to this context");
            red.poke(&format!("contexts/{other}/reset")).await.fails(404, "No task belongs to this context");
        }
        reader.poke("contexts/red%2Ftalk/reset").await.error(403);
        assert!(red.poke("contexts/talk/reset").await.ok()["reset_at"].is_i64());
        assert!(shown(&blue, "talk").await["reset_at"].is_null());
        let audit = admin.get("audit?action=context_reset").await.ok();
        assert_eq!((&audit[0]["entity_id"], &audit[0]["actor"]), (&json!("red/talk"), &json!("key:red")));
    }
}
