//! Teams: what member keys see and change of the tasks of their team, and nothing of others.

use crate::files::upload;
use crate::key_limits::ids;
use crate::keys::{ADMIN, create, keyed, opens, routes, with_new_key};
use crate::on_both;
use crate::support::fixtures::NewTask;
use crate::support::*;

/// The team `web` with two people and a submit key, and others: another team, a submit key without a team, the admin.
struct Teams {
    server: Server,
    admin: Api,
    ann: Api,
    bob: Api,
    ci: Api,
    /// The others, with the names of their keys.
    others: Vec<(&'static str, Api)>,
}

impl Teams {
    async fn on(database: Database) -> Self {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let key = async |name: &str, scope: &str, more: Value| with_new_key(&admin, &server, name, scope, more).await;
        let ann = key("ann", "member", json!({ "team": "web" })).await;
        let bob = key("bob", "member", json!({ "team": "web" })).await;
        let ci = key("ci", "submit", json!({ "team": "web" })).await;
        let eve = key("eve", "member", json!({ "team": "data" })).await;
        // A key with the name of the team, and one with the name of a member's.
        let web = key("web", "submit", json!({})).await;
        let others = vec![("eve", eve), ("web", web), ("admin", admin.clone())];
        Self { server, admin, ann, bob, ci, others }
    }
}

fn task(api: &Api) -> NewTask<'_> {
    Crew { api, slug: "coder".into() }.task()
}

on_both! { alone:
    async fn members_see_and_change_the_tasks_of_their_team(database) {
        let Teams { admin, ann, bob, ci, others, server: _running } = Teams::on(database).await;
        let (of_ann, of_bob, of_ci) = (task(&ann).create().await, task(&bob).create().await, task(&ci).create().await);
        for (_, other) in &others {
            task(other).create().await;
        }
        let shown = of_ann.now().await;
        assert_eq!((&shown["owner"], &shown["team"]), (&json!("ann"), &json!("web")));
        assert_eq!(admin.task(&of_ci.id).now().await["team"], "web");
        let team = [of_ci.id.as_str(), &of_bob.id, &of_ann.id];
        for member in [&ann, &bob] {
            assert_eq!(ids(&member.get("llm-tasks").await.ok()), team);
            assert_eq!(ids(&member.get("llm-tasks?status=queued&agent_slug=coder").await.ok()), team);
            assert_eq!(ids(&member.get(&format!("llm-tasks?ids={},{}", of_ann.id, of_ci.id)).await.ok()), [&of_ci.id, &of_ann.id]);
            assert_eq!(ids(&member.get(&format!("llm-tasks?id={}", &of_ci.id[24..])).await.ok()), [&of_ci.id]);
            // All ids that are made now begin alike.
            assert_eq!(ids(&member.get(&format!("llm-tasks?search={}", &of_ann.id[..4])).await.ok()), team);
        }
        assert_eq!(ids(&ci.get("llm-tasks").await.ok()), [&of_ci.id], "a submit key with a team sees its own tasks only");
        // Who sees all tasks may ask for those of a team; nobody sees more by it.
        assert_eq!(ids(&admin.get("llm-tasks?team=web").await.ok()), team);
        assert_eq!(ids(&admin.get("llm-tasks?team=web&owner=ci&status=queued").await.ok()), [&of_ci.id]);
        assert_eq!(ids(&bob.get("llm-tasks?team=web").await.ok()), team);
        assert_eq!(bob.get("llm-tasks?team=data").await.ok(), json!([]));
        let cancelled = |team: &str| json!({ "filter": { "team": team }, "dry_run": true });
        assert_eq!(admin.post("llm-tasks:cancel", cancelled("web")).await.ok()["matched"], 3);
        assert_eq!(bob.post("llm-tasks:cancel", cancelled("data")).await.ok()["matched"], 0);

        for one in [&of_ann, &of_ci] {
            assert_eq!(bob.patch(&one.path(""), json!({ "priority": 9 })).await.ok()["priority"], 9);
            assert_eq!(bob.poke(&one.path("/suspend")).await.ok()["suspend"], true);
            assert_eq!(bob.poke(&one.path("/resume")).await.ok()["suspend"], false);
            assert_eq!(bob.poke(&one.path("/cancel")).await.ok()["status"], "cancelled");
            assert_eq!(bob.poke(&one.path("/requeue")).await.ok()["status"], "queued");
        }
        let trail = admin.get(&format!("audit?task_id={}&actor=key:bob", of_ci.id)).await.ok();
        assert_eq!(trail.as_array().unwrap().len(), 5, "{trail}");
        let worker = admin.worker().slots(8).register().await;
        let lease = admin.task(&of_ci.id).lease_to(&worker).await;
        let event = json!({ "lease_id": lease.id, "events": [{ "seq": 1, "kind": "log", "at": 1, "data": "said" }] });
        admin.post(&of_ci.path("/events"), event).await.ok();
        lease.complete("success", json!({ "output": "done" })).await.ok();
        for path in ["", "/result", "/wait", "/events"] {
            ann.get(&of_ci.path(path)).await.ok();
        }
        assert_eq!(ann.get(&format!("artifacts?task_id={}", of_ci.id)).await.ok()[0]["content"], "done");
        assert_eq!(ann.delete(&of_ci.path("")).await.ok()["removed"], true);
        task(&bob).with("depends_on", json!([of_ann.id])).create().await;
    }

    async fn what_is_not_of_the_team_looks_as_if_it_did_not_exist(database) {
        let Teams { admin, ann, others, server, .. } = Teams::on(database).await;
        let worker = admin.worker().slots(8).register().await;
        let routes = routes(&server).await;
        let of_task: Vec<_> = routes.iter().filter(|(_, path)| path.starts_with("llm-tasks/{id}")).collect();
        let own = task(&ann).create().await;
        for (name, other) in &others {
            let foreign = task(other).context("secret").create().await;
            let lease = admin.task(&foreign.id).lease_to(&worker).await;
            lease.complete("success", json!({ "output": "secret" })).await.ok();
            let artifact = admin.get(&format!("artifacts?task_id={}", foreign.id)).await.ok()[0]["id"].as_str().unwrap().to_owned();
            for (method, path) in of_task.iter().filter(|(method, path)| opens("member", &format!("{method} {path}"))) {
                let call = async |id: &str| {
                    let request = ann.request(method.clone(), &path.replace("{id}", id)).json(&json!({ "priority": 1, "answer": "x" }));
                    let answer = request.send().await.unwrap();
                    (answer.status().as_u16(), answer.text().await.unwrap().replace(id, ""))
                };
                assert_eq!(call(&foreign.id).await, call(NO_ID).await, "{name}: {method} {path}");
            }
            assert_eq!(ann.get(&format!("artifacts?task_id={}", foreign.id)).await.ok(), json!([]));
            assert_eq!(ann.get(&format!("artifacts/{artifact}/content")).await.status, 404, "{name}");
            assert_eq!(ann.delete(&format!("artifacts/{artifact}")).await.status, 404, "{name}");
            for query in [format!("ids={}", foreign.id), format!("id={}", foreign.id), format!("id={}", &foreign.id[24..]), "context_id=secret".into()] {
                assert_eq!(ann.get(&format!("llm-tasks?{query}")).await.ok(), json!([]), "{name}: {query}");
            }
            for body in [json!({ "ids": [foreign.id] }), json!({ "filter": { "context_id": "secret" } })] {
                assert_eq!(ann.post("llm-tasks:requeue", body.clone()).await.ok()["matched"], 0, "{name}");
                assert_eq!(ann.post("llm-tasks:cancel", body).await.ok()["matched"], 0, "{name}");
            }
            let complaint = task(&ann).with("depends_on", json!([foreign.id])).answer().await.refuses(&["depends_on"]);
            assert!(complaint["depends_on"][0].as_str().unwrap().contains(&foreign.id), "{complaint}");
            let context = admin.task(&foreign.id).now().await["context_id"].as_str().unwrap().to_owned();
            ann.get(&format!("contexts/{}", context.replace('/', "%2F"))).await.error(404);
        }
        assert_eq!(ids(&ann.get("llm-tasks").await.ok()), [&own.id]);
        assert_eq!(ann.get("contexts").await.ok().as_array().unwrap().len(), 1);
        assert_eq!(ann.post("llm-tasks:cancel", json!({ "filter": { "agent_slug": "coder" }, "dry_run": true })).await.ok()["matched"], 1);
        assert_eq!(ann.get("artifacts").await.ok(), json!([]), "it has uploaded nothing");
    }

    async fn the_numbers_that_members_read_are_those_of_their_team(database) {
        let Teams { admin, ann, bob, ci, others, server: _running } = Teams::on(database).await;
        let worker = admin.worker().slots(8).register().await;
        admin.post("workers", json!({ "name": worker.name, "url": "http://secret.example", "ip_addrs": ["192.0.2.1"] })).await.ok();
        let used = |cost: f64| json!({ "usage": { "input_tokens": 1, "output_tokens": 1, "cost_usd": cost }, "model": "m" });
        let gone = task(&ci).with("ttl_after_finished_sec", json!(0)).create().await;
        admin.task(&gone.id).lease_to(&worker).await.complete("success", used(4.0)).await.ok();
        eventually("the task is removed", || async { (admin.get(&gone.path("")).await.status == 404).then_some(()) }).await;
        for (api, cost) in [(&ann, 1.0), (&ci, 2.0), (&others[0].1, 8.0), (&others[1].1, 16.0), (&others[2].1, 32.0)] {
            let done = task(api).create().await;
            admin.task(&done.id).lease_to(&worker).await.complete("success", used(cost)).await.ok();
            let held = task(api).create().await;
            admin.task(&held.id).lease_to(&worker).await;
            task(api).create().await;
            Crew { api, slug: format!("of-{cost}") }.task().create().await;
        }
        let sum = |rows: Value| rows.as_array().unwrap().iter().map(|row| row["cost_usd"].as_f64().unwrap()).sum::<f64>();
        assert_eq!(sum(bob.get("usage").await.ok()), 7.0);
        assert_eq!(sum(others[0].1.get("usage?by=agent_slug").await.ok()), 8.0);
        assert_eq!(sum(admin.get("usage").await.ok()), 63.0);
        assert_eq!((sum(admin.get("usage?team=web").await.ok()), sum(bob.get("usage?team=web").await.ok())), (7.0, 7.0));
        assert_eq!((bob.get("usage?team=data").await.ok(), ci.get("usage?team=data").await.ok()), (json!([]), json!([])));
        // A submit key sees what its own tasks used.
        assert_eq!((sum(ci.get("usage").await.ok()), sum(ci.get("usage?by=agent_slug").await.ok())), (6.0, 6.0));
        assert_eq!((sum(ci.get("usage?created_by=key:ci").await.ok()), ci.get("usage?created_by=key:ann").await.ok()), (6.0, json!([])));
        let rows = bob.get("usage?by=created_by").await.ok();
        let creators: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["keys"]["created_by"].as_str().unwrap()).collect();
        assert_eq!(creators, ["key:ann", "key:ci"]);

        let queues = bob.get("queues").await.ok();
        let numbers = |agent: Value| {
            let queue = queues.as_array().unwrap().iter().find(|queue| queue["agent_slug"] == agent);
            queue.map(|queue| (queue["queued"].as_i64().unwrap(), queue["active_leases"].as_i64().unwrap()))
        };
        assert_eq!(numbers(json!("coder")), Some((2, 2)), "{queues}");
        assert_eq!((numbers(json!("of-1")), numbers(json!("of-8"))), (Some((1, 0)), None), "{queues}");

        let listed = bob.get("workers").await.ok()[0].clone();
        let shown = bob.get(&format!("workers/{}", worker.name)).await.ok();
        for seen in [&listed, &shown] {
            assert_eq!((&seen["id"], &seen["status"], &seen["active_leases"]), (&json!(worker.name), &json!("online"), &json!(2)), "{seen}");
            assert_eq!((&seen["url"], &seen["ip_addrs"]), (&json!(""), &json!([])), "{seen}");
        }
        assert_eq!(shown["leases"].as_array().unwrap().len(), 2);
        assert_eq!(admin.get(&format!("workers/{}", worker.name)).await.ok()["active_leases"], 5);
    }

    async fn a_members_watch_shows_the_tasks_of_the_team_only(database) {
        let Teams { admin, ann, ci, others, server: _running, .. } = Teams::on(database).await;
        let mut stream = sse::open(&ann, "watch", None).await;
        admin.worker().register().await;
        let mut foreign = Vec::new();
        for (_, other) in &others {
            foreign.push(task(other).create().await.id);
        }
        let of_ci = task(&ci).create().await;
        let first = stream.next().await.expect("the stream goes on");
        assert_eq!((first.kind.as_str(), &first.json()["id"]), ("task", &json!(of_ci.id)), "{foreign:?}");
    }

    async fn the_names_of_a_team_are_its_own(database) {
        let Teams { admin, ann, bob, ci, others, server: _running } = Teams::on(database).await;
        let wanted = |api| task(api).context("talk").with("exclusive_key", json!("repo")).with("idempotency_key", json!("once"));
        let of_ann = wanted(&ann).create().await;
        let shown = of_ann.now().await;
        let names = (&shown["context_id"], &shown["exclusive_key"], &shown["idempotency_key"]);
        assert_eq!(names, (&json!("team:web/talk"), &json!("team:web/repo"), &json!("team:web/once")));
        assert_eq!(wanted(&bob).answer().await.ok()["id"], of_ann.id, "a repeat by another member is the same task");
        for (name, other) in &others {
            let apart = wanted(other).create().await;
            assert_ne!(apart.id, of_ann.id, "{name}");
            // Nor do the names of the team, in full, lead there.
            let posing = wanted(other).context("team:web/talk").with("idempotency_key", json!("team:web/once"));
            if *name == "admin" {
                posing.answer().await.error(409);
            } else {
                assert_ne!(posing.create().await.id, of_ann.id, "{name}");
            }
        }
        // The contexts of the submit key are below its own name, and the members go on there.
        let of_ci = task(&ci).context("build").create().await;
        assert_eq!(of_ci.now().await["context_id"], "ci/build");
        let reply = task(&bob).context("ci/build").create().await;
        assert_eq!(reply.now().await["context_id"], "ci/build");
        assert_eq!(ids(&bob.get("llm-tasks?context_id=ci/build").await.ok()), [&reply.id, &of_ci.id]);
        assert_eq!(bob.get("contexts/ci%2Fbuild").await.ok()["tasks"]["queued"], 2);
        assert_eq!(ids(&bob.get("llm-tasks?context_id=talk").await.ok()), [&of_ann.id]);
        // A context in which the team has no task is none of the team's, whatever its name.
        let foreign = task(&admin).context("ci/other").create().await;
        let own = task(&bob).context("ci/other").create().await;
        assert_eq!(own.now().await["context_id"], "team:web/ci/other");
        assert_eq!(foreign.now().await["context_id"], "ci/other");
    }

    async fn tasks_stay_with_the_team_when_their_key_is_revoked(database) {
        let Teams { admin, ann, bob, server, .. } = Teams::on(database).await;
        let earlier = task(&ann).create().await;
        admin.delete("keys/ann").await.ok();
        ann.get("llm-tasks").await.error(401);
        assert_eq!(ids(&bob.get("llm-tasks").await.ok()), [&earlier.id]);
        // The name begins anew in another team.
        let moved = with_new_key(&admin, &server, "ann", "member", json!({ "team": "data" })).await;
        assert_eq!(moved.get("llm-tasks").await.ok(), json!([]));
        let later = task(&moved).create().await;
        assert_eq!(ids(&moved.get("llm-tasks").await.ok()), [&later.id]);
        assert_eq!(ids(&bob.get("llm-tasks").await.ok()), [&earlier.id]);
    }

    async fn tasks_are_filtered_by_the_key_that_created_them(database) {
        let Teams { admin, ann, bob, others, server: _running, .. } = Teams::on(database).await;
        let (of_ann, of_bob) = (task(&ann).create().await, task(&bob).create().await);
        let of_other = task(&others[0].1).create().await;
        for (caller, owner, found) in [(&bob, "ann", vec![&of_ann.id]), (&bob, "bob", vec![&of_bob.id]), (&admin, "ann", vec![&of_ann.id]), (&bob, "eve", vec![]), (&bob, "nobody", vec![])] {
            assert_eq!(ids(&caller.get(&format!("llm-tasks?owner={owner}")).await.ok()), found.into_iter().cloned().collect::<Vec<_>>(), "{owner}");
        }
        let all = json!({ "filter": { "owner": of_other.now().await["owner"] }, "dry_run": true });
        assert_eq!(bob.post("llm-tasks:cancel", all.clone()).await.ok()["matched"], 0);
        assert_eq!(admin.post("llm-tasks:cancel", all).await.ok()["matched"], 1);
    }

    async fn an_upload_is_its_keys_until_a_task_of_the_team_uses_it(database) {
        let Teams { ann, bob, others, server: _running, .. } = Teams::on(database).await;
        let file = upload(&ann, "name=a", b"text").await.created();
        let id = file["id"].as_str().unwrap();
        bob.get(&format!("artifacts/{id}/content")).await.error(404);
        task(&bob).with("inputs", json!([{ "artifact_id": id }])).answer().await.refuses(&["inputs"]);
        let uploads = async |api: &Api| ids(&api.get("artifacts").await.ok()).join(" ");
        assert_eq!([uploads(&ann).await, uploads(&bob).await, uploads(&others[0].1).await], [id, "", ""]);
        let made = task(&ann).with("inputs", json!([{ "artifact_id": id }])).create().await;
        let later = upload(&ann, "name=b", b"more").await.created()["id"].as_str().unwrap().to_owned();
        assert_eq!(uploads(&ann).await, format!("{later} {id}"), "one that a task uses is there, too");
        assert_eq!(ids(&ann.get(&format!("artifacts?limit=1&cursor={later}")).await.ok()), [id]);
        assert_eq!(bob.get(&made.path("")).await.ok()["inputs"][0]["artifact_id"], id);
        others[0].1.get(&format!("artifacts/{id}/content")).await.error(404);
    }

    async fn leases_are_seen_by_whoever_sees_their_task(database) {
        let Teams { admin, ann, bob, ci, others, server: _running } = Teams::on(database).await;
        let worker = admin.worker().register().await;
        let made = task(&ci).create().await;
        let held = admin.task(&made.id).lease_to(&worker).await;
        let of_task = async |api: &Api| ids(&api.get(&format!("leases?task_id={}", made.id)).await.ok()).join(" ");
        for one in [&admin, &ann, &bob, &ci] {
            assert_eq!(of_task(one).await, held.id);
        }
        for (name, other) in others.iter().filter(|(name, _)| *name != "admin") {
            assert_eq!(of_task(other).await, "", "{name}");
            other.get("leases").await.refuses(&["task_id"]);
        }
    }

    async fn the_list_of_keys_shows_teams_and_the_quotas_of_members(database) {
        let Teams { admin, server, .. } = Teams::on(database).await;
        let dan = with_new_key(&admin, &server, "dan", "member", json!({ "team": "web", "quota": { "max_open_tasks": 1 } })).await;
        task(&dan).create().await;
        assert!(task(&dan).answer().await.error(409).contains("1"));
        admin.post("keys/dan/quota", json!({ "max_open_tasks": 2 })).await.ok();
        task(&dan).create().await;
        let keys = admin.get("keys").await.ok();
        let shown: Vec<_> = keys.as_array().unwrap().iter().map(|key| (key["name"].as_str().unwrap(), &key["scope"], &key["team"])).collect();
        let (member, submit, web, none) = (json!("member"), json!("submit"), json!("web"), Value::Null);
        let expected =
            [("ann", &member, &web), ("bob", &member, &web), ("ci", &submit, &web), ("dan", &member, &web), ("eve", &member, &json!("data")), ("web", &submit, &none)];
        assert_eq!(shown, expected);
        assert_eq!(keys[3]["quota"]["open_tasks"], 2);
        let created = &admin.get("audit?action=key_created").await.ok()[0];
        assert_eq!(created["detail"], "scope member, team web, quota 1 open tasks");
        create(&admin, "solo", "submit", json!({ "team": "solo" })).await;
    }
}
