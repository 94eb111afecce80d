//! Lists: newest first, paged and filtered.

use crate::files::upload;
use crate::on_both;
use crate::support::*;

fn ids(list: &Value) -> Vec<String> {
    list.as_array().expect("a bare array").iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

/// Follows `Link: rel="next"` to the last page; returns the ids of each page.
async fn pages(api: &Api, path: &str) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut next = Some(format!("/api/runtime/{path}"));
    while let Some(path) = next {
        let answer = api.get(&path).await.expect(200);
        next = answer.next_page();
        pages.push(ids(&answer.json()));
        assert!(pages.len() < 1000, "the pages do not end");
    }
    pages
}

on_both! { alone:
    async fn every_list_is_newest_first_and_comes_in_pages(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(32).register().await;
        let mut tasks = Vec::new();
        for i in 0..7 {
            let task = crew.task().create().await;
            task.lease_to(&worker).await;
            if i % 2 == 0 {
                task.succeed("x").await;
            }
            tasks.insert(0, task.id);
        }
        assert_eq!(pages(&server, "llm-tasks?limit=3").await, [&tasks[..3], &tasks[3..6], &tasks[6..]]);
        let named = format!("llm-tasks?ids={},{NO_ID},{},{}", tasks[5], tasks[1], tasks[2]);
        assert_eq!(pages(&server, &format!("{named}&limit=2")).await, [&tasks[1..3], &tasks[5..6]], "by their ids");
        assert_eq!(ids(&server.get(&format!("{named}&status=leased")).await.ok()), [tasks[1].clone(), tasks[5].clone()]);
        for wrong in ["x", &format!("{NO_ID},"), &[NO_ID; 101].join(",")] {
            server.get(&format!("llm-tasks?ids={wrong}")).await.refuses(&["ids"]);
        }
        let paged = pages(&server, "llm-tasks?limit=7").await.concat();
        assert_eq!(paged, tasks);
        for (path, rows) in [("leases", 7), ("artifacts", 4), ("audit", 1 + 7 + 7 + 4)] {
            let whole = ids(&server.get(path).await.ok());
            assert_eq!(whole.len(), rows, "{path}");
            let paged = pages(&server, &format!("{path}?limit=2")).await;
            assert!(paged.iter().all(|page| page.len() <= 2));
            assert_eq!(paged.concat(), whole, "{path}: each row is on one page");
        }
        assert_eq!(ids(&server.get("runs").await.ok()), tasks);
    }

    async fn a_limit_is_taken_leniently(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        for _ in 0..2 {
            let tasks = (0..550).map(|_| crew.task().json()).collect::<Vec<_>>();
            server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        let rows = async |query: &str| server.get(&format!("llm-tasks{query}")).await.ok().as_array().unwrap().len();
        assert_eq!(rows("").await, 100);
        assert_eq!(rows("?limit=1").await, 1);
        assert_eq!(rows("?limit=1000").await, 1000);
        assert_eq!(rows("?limit=5000").await, 1000);
        assert_eq!(rows("?limit=99999999999999999999").await, 1000);
        for nonsense in ["abc", "", "-1", "0", "1.5", "%00"] {
            let answer = server.get(&format!("llm-tasks?limit={nonsense}")).await;
            if nonsense == "%00" && answer.status == 400 {
                continue;
            }
            assert_eq!(answer.ok().as_array().unwrap().len(), 100, "{nonsense:?}");
        }
        assert_eq!(server.get("runs").await.ok().as_array().unwrap().len(), 50);
        assert_eq!(server.get("audit").await.ok().as_array().unwrap().len(), 100);
        assert_eq!(server.get("audit?limit=150").await.ok().as_array().unwrap().len(), 150);
    }

    async fn leases_are_filtered_by_status_and_outcome(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let lease = async |ttl: i64| { let task = crew.task().create().await; task.lease_for(&worker, ttl).await };
        let (active, released, expired, failed) = (lease(300).await, lease(300).await, lease(1).await, lease(300).await);
        released.complete("success", json!({})).await.ok();
        expired.reaches("expired").await;
        let lost = crew.worker().register().await;
        failed.complete("error", json!({})).await.ok();
        let doomed = crew.task().create().await.lease_to(&lost).await;
        server.delete(&lost.path("")).await.ok();
        for (status, wanted) in [("active", vec![&active]), ("expired", vec![&expired]), ("released", vec![&failed, &released]), ("failed", vec![&doomed])] {
            let listed = server.get(&format!("leases?status={status}")).await.ok();
            let mut wanted = wanted.iter().map(|lease| lease.id.clone()).collect::<Vec<_>>();
            wanted.sort_unstable_by(|a, b| b.cmp(a));
            assert_eq!(ids(&listed), wanted, "{status}");
            assert!(listed.as_array().unwrap().iter().all(|lease| lease["status"] == status));
        }
        for (filters, wanted) in [
            ("outcome=success".to_owned(), vec![&released]),
            (format!("outcome=error&worker_id={}", worker.name), vec![&failed]),
            (format!("outcome=success&task_id={}", released.task.id), vec![&released]),
            ("outcome=error&status=released".to_owned(), vec![&failed]),
            ("outcome=error&status=active".to_owned(), vec![]),
            ("outcome=error&status=expired".to_owned(), vec![]),
            ("outcome=interrupted".to_owned(), vec![&doomed, &expired]),
            (format!("outcome=interrupted&worker_id={}", worker.name), vec![&expired]),
            ("reason=worker_lost".to_owned(), vec![&doomed, &expired]),
            ("reason=worker_lost&status=failed".to_owned(), vec![&doomed]),
            ("reason=agent_error&outcome=error".to_owned(), vec![&failed]),
            ("reason=timeout".to_owned(), vec![]),
            ("reason=agent_error&status=active".to_owned(), vec![]),
            (format!("created_after={}&status=active", active.json["started_at"]), vec![]),
            (format!("created_before={}", active.json["started_at"]), vec![]),
            (format!("created_before={}&outcome=interrupted", doomed.json["started_at"].as_i64().unwrap() + 1), vec![&doomed, &expired]),
            (format!("created_after={}", doomed.json["started_at"]), vec![]),
        ] {
            let listed = server.get(&format!("leases?{filters}")).await.ok();
            let mut wanted = wanted.iter().map(|lease| lease.id.clone()).collect::<Vec<_>>();
            wanted.sort_unstable_by(|a, b| b.cmp(a));
            assert_eq!(ids(&listed), wanted, "{filters}");
        }
        server.get("leases?outcome=failed").await.refuses(&["outcome"]);
        server.get("leases?reason=late").await.refuses(&["reason"]);
        server.get("leases?created_after=yesterday").await.refuses(&["created_after"]);
        server.get("leases?status=nonsense&task_id=x").await.refuses(&["task_id"]);
        assert_eq!(server.get("leases?status=nonsense").await.ok(), json!([]));
        assert_eq!(server.get("leases?status=").await.ok().as_array().unwrap().len(), 5);
    }

    async fn stats_are_the_true_counts(database) {
        let server = Server::on(database).start();
        let none = server.get("stats").await.ok();
        assert_eq!((&none["tasks"]["total"], &none["leases"]["total"], &none["workers"]["total"]), (&json!(0), &json!(0), &json!(0)));
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        crew.worker().with("status", json!("offline")).register().await;
        for _ in 0..2 {
            crew.task().create().await;
        }
        crew.task().create().await.cancel().await.ok();
        for end in ["leased", "running", "completed", "failed"] {
            let task = crew.task().create().await;
            task.lease_to(&worker).await;
            match end {
                "running" => drop(task.heartbeat(json!({})).await.ok()),
                "completed" => drop(task.succeed("x").await),
                "failed" => drop(task.fail("x").await),
                _ => {}
            }
        }
        let stats = server.get("stats").await.ok();
        assert_eq!(stats["tasks"]["total"], 7);
        for (status, count) in [("queued", 2), ("cancelled", 1), ("leased", 1), ("running", 1), ("completed", 1), ("failed", 1)] {
            assert_eq!(stats["tasks"]["by_status"][status], json!(count), "{status}: {stats}");
        }
        assert_eq!(stats["leases"], json!({ "total": 4, "active": 2 }));
        assert_eq!(stats["workers"], json!({ "total": 2, "online": 1 }));
    }
}

on_both! {
    async fn tasks_are_filtered(server) {
        let (crew, other) = (server.crew(), server.crew());
        let worker = crew.worker().slots(4).register().await;
        let context = unique("context");
        let plain = crew.task().context(&context).with("labels", json!({ "team": "blue", "size": "a=b" })).create().await;
        let held = crew.task().with("labels", json!({ "team": "blue" })).create().await;
        held.lease_to(&worker).await;
        let foreign = other.task().context(&context).create().await;
        let project = unique("project");
        server.post("projects", json!({ "name": project, "repo_url": "https://git.example.com/a.git" })).await.created();
        let in_project = server.crew().task().with("project", json!(project)).create().await;
        let slug = &crew.slug;
        let found = async |query: String| ids(&server.get(&format!("llm-tasks?{query}")).await.ok());
        assert_eq!(found(format!("agent_slug={slug}")).await, [held.id.as_str(), plain.id.as_str()]);
        assert_eq!(found(format!("agent_slug={slug}&status=queued")).await, [plain.id.as_str()]);
        assert_eq!(found(format!("agent_slug={slug}&status=leased")).await, [held.id.as_str()]);
        assert_eq!(found(format!("agent_slug={slug}&status=nonsense")).await, Vec::<String>::new());
        assert_eq!(found(format!("agent_slug={slug}&status=")).await.len(), 2);
        assert_eq!(found(format!("context_id={context}")).await, [foreign.id.as_str(), plain.id.as_str()]);
        assert_eq!(found(format!("context_id={context}&agent_slug={slug}")).await, [plain.id.as_str()]);
        assert_eq!(found(format!("worker_id={}", worker.name)).await, [held.id.as_str()]);
        assert_eq!(found(format!("agent_slug={slug}&label=team=blue")).await.len(), 2);
        assert_eq!(found(format!("agent_slug={slug}&label=team%3Dblue&label=size=a=b")).await, [plain.id.as_str()]);
        assert_eq!(found(format!("agent_slug={slug}&label=team=red")).await.len(), 0);
        assert_eq!(found(format!("project={project}")).await, [in_project.id.as_str()]);
        assert_eq!(found(format!("project={project}&status=queued&finished_after=0")).await.len(), 0);
        assert_eq!(found(format!("project={project}&agent_slug={slug}")).await.len(), 0);
        assert_eq!(found("project=nothing-of-this-name".to_owned()).await.len(), 0);
        let named = json!({ "filter": { "project": project }, "dry_run": true });
        assert_eq!(server.post("llm-tasks:cancel", named).await.ok()["matched"], 1);
        let at = held.now().await["created_at"].as_i64().unwrap();
        assert_eq!(found(format!("agent_slug={slug}&created_after={}&created_before={}", at - 60_000, at + 60_000)).await.len(), 2);
        assert_eq!(found(format!("agent_slug={slug}&created_after={}", at + 1000)).await.len(), 0);
        assert_eq!(found(format!("agent_slug={slug}&created_before={}", at - 60_000)).await.len(), 0);
        assert_eq!(held.now().await["finished_at"], json!(null));
        held.succeed("x").await;
        assert_eq!(found(format!("worker_id={}", worker.name)).await, [held.id.as_str()], "a finished task keeps its worker");
        let ended = held.now().await["finished_at"].as_i64().unwrap();
        for (query, number) in [
            (format!("agent_slug={slug}&finished_after={}", ended - 1), 1),
            (format!("agent_slug={slug}&finished_after={ended}"), 0),
            (format!("status=completed&agent_slug={slug}&finished_after={}", ended - 1), 1),
            (format!("status=failed&agent_slug={slug}&finished_after={}", ended - 1), 0),
            (format!("worker_id={}&finished_after={}", worker.name, ended - 1), 1),
            (format!("context_id={context}&finished_after=0"), 0),
            (format!("label=team=blue&agent_slug={slug}&finished_after={}", ended - 1), 1),
            (format!("ids={},{}&finished_after=0", held.id, plain.id), 1),
        ] {
            assert_eq!(found(query.clone()).await.len(), number, "{query}");
        }
        server.get("llm-tasks?finished_after=soon").await.refuses(&["finished_after"]);
        let count = async |after: i64| {
            let filter = json!({ "filter": { "agent_slug": slug, "finished_after": after }, "dry_run": true });
            server.post("llm-tasks:requeue", filter).await.ok()["matched"].clone()
        };
        assert_eq!(count(0).await, json!(0), "a task that waits has not ended");
        server.post(&plain.path("/cancel"), json!({})).await.ok();
        assert_eq!((count(0).await, count(now_ms() + 3_600_000).await), (json!(1), json!(0)));
    }

    async fn pages_keep_their_filter(server) {
        let crew = server.crew();
        let mut wanted = Vec::new();
        for _ in 0..5 {
            wanted.insert(0, crew.task().with("labels", json!({ "a b": "c&d" })).create().await.id);
            server.crew().task().create().await;
        }
        let found = pages(server, &format!("llm-tasks?agent_slug={}&label=a%20b=c%26d&limit=2", crew.slug)).await;
        assert_eq!(found.concat(), wanted);
    }

    async fn the_last_page_has_no_next(server) {
        let crew = server.crew();
        crew.task().create().await;
        let answer = server.get(&format!("llm-tasks?agent_slug={}&limit=2", crew.slug)).await.expect(200);
        assert_eq!(answer.next_page(), None);
    }

    async fn a_bad_cursor_is_refused(server) {
        for list in ["llm-tasks", "leases", "artifacts", "audit"] {
            let answer = server.get(&format!("{list}?cursor=nonsense")).await.expect(400);
            assert!(!answer.json()["error"].is_null());
        }
    }

    async fn artifacts_are_found_by_their_task(server) {
        let (task, _) = server.crew().leased_task().await;
        let made = task.succeed("x").await["artifact"].clone();
        assert_eq!(server.get(&format!("artifacts?task_id={}", task.id)).await.ok(), json!([made]));
        assert_eq!(server.get(&format!("artifacts?task_id={NO_ID}")).await.ok(), json!([]));
        let all = server.get("artifacts?limit=1000").await.ok();
        assert!(all.as_array().unwrap().contains(&made));
    }

    async fn artifacts_are_found_by_their_kind(server) {
        let (task, lease) = server.crew().leased_task().await;
        let query = format!("task_id={}&lease_id={}&name=a.txt&type=OUTPUT", task.id, lease.id);
        let file = upload(server, &query, b"a").await.created();
        let answer = task.succeed("x").await["artifact"].clone();
        let of_kind = async |kind: &str| server.get(&format!("artifacts?task_id={}&kind={kind}", task.id)).await.ok();
        assert_eq!((of_kind("answer").await, of_kind("file").await), (json!([answer]), json!([file])));
        assert_eq!(of_kind("").await.as_array().unwrap().len(), 2);
        // Also without a task, where pages begin after a cursor.
        for (kind, made) in [("answer", &answer), ("file", &file)] {
            let rows = server.get(&format!("artifacts?kind={kind}&limit=1000")).await.ok();
            let rows = rows.as_array().unwrap();
            assert!(rows.contains(made) && rows.iter().all(|row| row["name"].is_string() == (kind == "file")), "{kind}: {rows:?}");
            assert_eq!(pages(server, &format!("artifacts?kind={kind}&task_id={}&limit=1", task.id)).await.concat(), [made["id"].as_str().unwrap()]);
        }
        server.get("artifacts?kind=answer,file").await.refuses(&["kind"]);
    }
}
