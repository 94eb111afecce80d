//! Tasks of projects: which workers get them, what these learn, and what they tell.

use crate::keys::{ADMIN, keyed, with_new_key};
use crate::on_both;
use crate::support::fixtures::NewTask;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

const URL: &str = "https://git.example.com/team/docs.git";
const COMMIT: &str = "9fceb02d0ae598e95dc970b74767f19372d61af8";

/// A new project with a name that is unique.
async fn project(api: &Api) -> Value {
    api.post("projects", json!({ "name": unique("project"), "repo_url": URL })).await.created()
}

fn named(project: &Value) -> &str {
    project["name"].as_str().expect("a name")
}

/// A task of this project.
fn of<'a>(crew: &Crew<'a>, project: &Value) -> NewTask<'a> {
    crew.task().with("project", project["name"].clone())
}

on_both! {
    async fn a_task_names_its_project_by_name_or_id(server) {
        let (crew, project) = (server.crew(), project(server).await);
        for name in [&project["name"], &project["id"]] {
            let made = crew.task().with("project", name.clone()).with("ref", json!("main")).answer().await.created();
            assert_eq!((&made["project"], &made["ref"], &made["push"]), (&project["name"], &json!("main"), &json!("never")));
        }
        let batch = json!({ "tasks": [of(&crew, &project).with("push", json!("branch")).json(), crew.task().json()] });
        let made = server.post("llm-tasks:batch", batch).await.created();
        assert_eq!((&made["tasks"][0]["push"], &made["tasks"][1]["project"]), (&json!("branch"), &Value::Null));
    }

    async fn what_git_would_not_take_is_refused(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let before = server.get("stats").await.ok()["tasks"]["total"].clone();
        for wrong in ["", "-b", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "@", "@{1}", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a.lock/b", "a\u{7f}"] {
            of(&crew, &project).with("ref", json!(wrong)).answer().await.refuses(&["ref"]);
        }
        of(&crew, &project).with("ref", json!("r".repeat(256))).answer().await.refuses(&["ref"]);
        of(&crew, &project).with("push", json!("always")).answer().await.refuses(&["push"]);
        for (key, value) in [("ref", json!("main")), ("push", json!("branch"))] {
            crew.task().with(key, value).answer().await.refuses(&[key]);
        }
        for unknown in [json!("no project of this name"), json!(NO_ID)] {
            crew.task().with("project", unknown.clone()).answer().await.refuses(&["project"]);
            let batch = json!({ "tasks": [crew.task().json(), crew.task().with("project", unknown).json()] });
            let refused = server.post("llm-tasks:batch", batch).await;
            assert!(refused.text.contains("project: No project has the name or id"), "{}", refused.text);
            refused.refuses(&["tasks"]);
        }
        for fine in ["main", "feature/a-b_c", "v1.2.3", COMMIT, "ä", "a@b", "HEAD"] {
            of(&crew, &project).with("ref", json!(fine)).answer().await.created();
        }
        assert!(server.get("stats").await.ok()["tasks"]["total"].as_i64() >= before.as_i64());
    }

    async fn only_workers_that_serve_the_project_get_the_task(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let task = of(&crew, &project).create().await;
        let plain = crew.worker().register().await;
        assert_eq!(task.waits_for().await, "project");
        let message = task.now().await["waiting"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(named(&project)), "{message}");
        let other = crew.worker().able("git", json!(true)).able("projects", json!(["another project"])).register().await;
        for worker in [&plain, &other] {
            assert_eq!(worker.claim(1).await.len(), 0);
            task.lease(json!({ "worker_id": worker.name })).await.error(503);
        }
        task.lease(json!({})).await.error(503);
        assert_eq!(task.waits_for().await, "project");
        let all = crew.worker().able("git", json!(true)).register().await;
        assert_eq!(task.waits_for().await, "", "it only waits for its turn");
        assert_eq!(all.claim(1).await[0]["task"]["id"], json!(task.id));
        let own = crew.worker().able("projects", json!([named(&project)])).register().await;
        let second = of(&crew, &project).create().await;
        second.lease_to(&own).await;
        // Each gets tasks without a project, too.
        for worker in [&plain, &other] {
            let task = crew.task().create().await;
            assert_eq!(worker.claim(1).await[0]["task"]["id"], json!(task.id));
        }
    }

    async fn a_claim_of_a_worker_waits_for_what_it_serves(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let worker = crew.worker().register().await;
        let (api, path) = ((**server).clone(), worker.path("/claim"));
        let claim = beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await.ok() });
        of(&crew, &project).create().await;
        let task = crew.task().create().await;
        assert_eq!(claim.await.unwrap()["leases"][0]["task"]["id"], json!(task.id));
        worker.api.task(&task.id).succeed("x").await;
        // A registration that says more wakes the claim.
        let (api, path) = ((**server).clone(), worker.path("/claim"));
        let claim = beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await.ok() });
        let able = json!({ "agents": [crew.slug], "git": true });
        server.post("workers", json!({ "name": worker.name, "capabilities": able })).await.ok();
        assert_eq!(claim.await.unwrap()["leases"][0]["task"]["project"], project["name"]);
    }

    async fn many_tasks_of_a_project_keep_no_worker_from_the_others(server) {
        let (crew, project) = (server.crew(), project(server).await);
        for _ in 0..3 {
            let tasks: Vec<_> = (0..900).map(|_| of(&crew, &project).with("priority", json!(9)).json()).collect();
            server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        let behind = crew.task().with("priority", json!(0)).create().await;
        let worker = crew.worker().slots(2).register().await;
        let claimed = worker.claim(2).await;
        assert_eq!(claimed.iter().map(|entry| &entry["task"]["id"]).collect::<Vec<_>>(), [&json!(behind.id)]);
        assert_eq!(worker.claim(2).await.len(), 0);
        let own = crew.worker().slots(2).able("projects", json!([named(&project)])).register().await;
        assert_eq!(own.claim(2).await.len(), 2);
    }

    async fn pushes_and_dispatch_calls_keep_to_it(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let willing = async || {
            let stub = Stub::start().await;
            stub.always("/health", Reply::new(200, "{}"));
            stub.always("/execute-task", Reply::new(202, r#"{"accepted":true}"#));
            stub
        };
        let (plain, able) = (willing().await, willing().await);
        let without = crew.pushed_worker(&plain.url).slots(4).register().await;
        let task = of(&crew, &project).create().await;
        task.dispatch(json!({ "worker_id": without.name })).await.error(503);
        task.dispatch(json!({})).await.error(503);
        crew.pushed_worker(&able.url).slots(4).able("git", json!(true)).register().await;
        let pushed = able.has_got(1).await;
        assert_eq!(pushed[0]["task_id"], json!(task.id));
        let second = of(&crew, &project).create().await;
        assert_eq!(able.has_got(2).await[1]["task_id"], json!(second.id));
        assert!(plain.pushed().is_empty());
    }

    async fn the_worker_learns_where_the_repository_is_and_nobody_else(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let worker = crew.worker().able("git", json!(true)).register().await;
        let task = of(&crew, &project).with("ref", json!("main")).create().await;
        server.delete(&format!("projects/{}", project["id"].as_str().unwrap())).await.ok();
        let claimed = worker.claim(1).await;
        let repository = json!({
            "project_id": project["id"], "project": project["name"], "url": URL, "branch_prefix": "bloom", "former_branch_prefixes": [],
        });
        assert_eq!(claimed[0]["lease"]["repository"], repository, "the task goes on without its project");
        assert_eq!((&claimed[0]["task"]["project"], &claimed[0]["task"]["ref"]), (&project["name"], &json!("main")));
        let lease = lease_ids(&claimed).remove(0);
        let renewed = task.heartbeat(json!({ "lease_id": lease, "with_task": true })).await.ok();
        assert_eq!(renewed["lease"]["repository"], repository);
        let read = [
            server.get(&task.path("")).await.ok(),
            server.get(&format!("leases?task_id={}", task.id)).await.ok(),
            server.get(&worker.path("")).await.ok(),
        ];
        assert!(read.iter().all(|shown| !shown.to_string().contains(URL)), "{read:?}");
        // A task without a project has no repository.
        task.succeed("x").await;
        crew.task().create().await;
        assert_eq!(worker.claim(1).await[0]["lease"].get("repository"), None);
    }

    async fn the_worker_learns_the_prefix_of_branches_that_counts_now(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let worker = crew.worker().slots(2).able("git", json!(true)).register().await;
        let (first, second) = (of(&crew, &project).create().await, of(&crew, &project).create().await);
        let path = format!("projects/{}", project["id"].as_str().unwrap());
        server.patch(&path, json!({ "branch_prefix": "bots" })).await.ok();
        let told = |lease: &Value| (lease["repository"]["branch_prefix"].clone(), lease["repository"]["former_branch_prefixes"].clone());
        let bots = (json!("bots"), json!(["bloom"]));
        assert_eq!(told(&worker.claim(1).await[0]["lease"]), bots);
        let leased = second.lease(json!({ "worker_id": worker.name })).await.created();
        assert_eq!(told(&leased["lease"]), bots);
        first.succeed("x").await;
    }

    async fn a_completion_tells_the_branch_and_the_commit(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let worker = crew.worker().able("git", json!(true)).register().await;
        let task = of(&crew, &project).create().await;
        let lease = task.lease_to(&worker).await;
        let ended = |branch: Value, commit: Value| {
            json!({ "status": "success", "output": "o", "metrics": { "duration_ms": 1 }, "lease_id": lease.id, "branch": branch, "commit": commit })
        };
        for (branch, commit, wrong) in [
            (json!(""), json!(null), "branch"), (json!("b".repeat(256)), json!(null), "branch"),
            (json!("b"), json!("C0FFEE"), "commit"), (json!("b"), json!(COMMIT.to_uppercase()), "commit"), (json!("b"), json!(&COMMIT[1..]), "commit"),
        ] {
            task.complete(ended(branch, commit)).await.refuses(&[wrong]);
        }
        let done = task.complete(ended(json!("bloom/c"), json!(COMMIT))).await.ok();
        assert_eq!((&done["result"]["branch"], &done["result"]["commit"]), (&json!("bloom/c"), &json!(COMMIT)));
        let result = server.get(&task.path("/result")).await.ok();
        assert_eq!(result, done["result"]);
        // A completion of an older agent has neither; the reason of a newer one is kept.
        let second = of(&crew, &project).create().await;
        second.lease_to(&worker).await;
        let failed = json!({ "status": "error", "error_message": "no such ref", "reason": "project", "metrics": { "duration_ms": 1 } });
        let done = second.complete(failed).await.ok();
        assert_eq!((&done["result"]["branch"], &done["task"]["failure"]["reason"]), (&Value::Null, &json!("project")));
        assert_eq!(second.now().await["failure"]["reason"], json!("project"));
    }

    async fn a_project_that_runs_have_used_is_cloned(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let worker = crew.worker().able("git", json!(true)).register().await;
        let path = format!("projects/{}", project["id"].as_str().unwrap());
        let ended = async |branch: Value| {
            let task = of(&crew, &project).create().await;
            let lease = task.lease_to(&worker).await;
            let done = json!({ "status": "success", "output": "o", "metrics": { "duration_ms": 1 }, "lease_id": lease.id, "branch": branch });
            task.complete(done).await.ok();
        };
        // A run that could not begin has no branch.
        ended(json!(null)).await;
        ended(json!("bloom/c")).await;
        let shown = eventually("it is noted", || async {
            Some(server.get(&path).await.ok()).filter(|project| project["clone_status"] == json!("cloned"))
        })
        .await;
        let nodes = shown["nodes"].as_array().unwrap();
        assert_eq!((nodes.len(), &nodes[0]["node_id"], &nodes[0]["clone_status"]), (1, &json!(worker.name), &json!("cloned")));
        assert!(nodes[0]["last_sync_at"].is_i64() && nodes[0]["error_message"].is_null(), "{shown}");
        assert_eq!(shown["primary_node_id"], json!(null), "nobody has chosen a worker");
        // Workers that can't be called change nothing at a project that works.
        for node in ["nobody-of-this-name", &worker.name] {
            server.post(&format!("{path}/clone"), json!({ "node_id": node })).await.error(502);
            assert_eq!(server.get(&path).await.ok(), shown);
            let told_of = server.post(&format!("{path}/propagate"), json!({ "node_ids": [worker.name] })).await.ok();
            assert_eq!(told_of["status"], "nothing_to_propagate");
        }
        let other = crew.worker().able("git", json!(true)).register().await;
        let task = of(&crew, &project).create().await;
        let lease = task.lease_to(&other).await;
        let done = json!({ "task_id": task.id, "lease_id": lease.id, "status": "success", "output": "o", "metrics": { "duration_ms": 1 }, "branch": "bloom/c" });
        server.post(&other.path("/complete"), json!({ "completions": [done] })).await.ok();
        let shown = eventually("the second is noted", || async {
            Some(server.get(&path).await.ok()).filter(|project| project["nodes"].as_array().unwrap().len() == 2)
        })
        .await;
        assert_eq!((&shown["clone_status"], &shown["error_message"]), (&json!("cloned"), &json!(null)), "{shown}");
    }

    async fn a_project_that_no_run_could_clone_has_failed(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let worker = crew.worker().able("git", json!(true)).register().await;
        let path = format!("projects/{}", project["id"].as_str().unwrap());
        let task = of(&crew, &project).create().await;
        let lease = task.lease_to(&worker).await;
        let why = "the project's repository can't be fetched: not found";
        let failed = json!({
            "lease_id": lease.id, "status": "error", "error_message": why, "reason": "project", "retryable": true,
            "metrics": { "duration_ms": 1 },
        });
        task.complete(failed).await.ok();
        let shown = eventually("it is noted", || async {
            Some(server.get(&path).await.ok()).filter(|project| project["clone_status"] == json!("failed"))
        })
        .await;
        assert_eq!(shown["error_message"], json!(format!("{}: {why}", worker.name)));
        assert_eq!(shown["nodes"][0]["error_message"], json!(why));
    }

    async fn a_session_goes_elsewhere_if_its_worker_serves_the_project_no_more(server) {
        let (crew, project) = (server.crew(), project(server).await);
        let first = crew.worker().able("git", json!(true)).register().await;
        let context = unique("context");
        let task = of(&crew, &project).context(&context).create().await;
        assert_eq!(first.claim(1).await.len(), 1);
        task.succeed("x").await;
        let next = of(&crew, &project).context(&context).create().await;
        assert_eq!(next.waits_for().await, "session_worker");
        let other = crew.worker().able("git", json!(true)).register().await;
        assert_eq!(other.claim(1).await.len(), 0, "it is kept for the worker that has its session");
        let able = json!({ "agents": [crew.slug], "git": false });
        server.post("workers", json!({ "name": first.name, "capabilities": able })).await.ok();
        assert_eq!(other.claim_within(1, 20).await[0]["task"]["id"], json!(next.id));
    }

    async fn a_worker_asks_which_contexts_are_gone(server) {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let (kept, removed, never) = (unique("kept"), unique("removed"), unique("never"));
        crew.task().context(&kept).create().await;
        let task = crew.task().context(&removed).create().await;
        let ask = async |contexts: Value| server.post(&worker.path("/contexts"), json!({ "context_ids": contexts })).await;
        let all = json!([kept, removed, never]);
        assert_eq!(ask(all.clone()).await.ok(), json!({ "gone": [never] }));
        task.cancel().await.ok();
        assert_eq!(ask(all.clone()).await.ok(), json!({ "gone": [never] }), "a task that has ended still belongs to it");
        server.delete(&task.path("")).await.ok();
        let gone = ask(all).await.ok()["gone"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(gone, [never, removed].into());
        assert_eq!(ask(json!([])).await.ok(), json!({ "gone": [] }));
        ask(json!(vec!["c"; 501])).await.refuses(&["context_ids"]);
        ask(json!([""])).await.refuses(&["context_ids"]);
        server.post("workers/nobody-of-this-name/contexts", json!({ "context_ids": [] })).await.fails(404, "Worker not found");
    }
}

on_both! { alone:
    async fn keys_see_what_they_may(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let project = project(&admin).await;
        let submit = with_new_key(&admin, &server, "ci", "submit", json!({})).await;
        let task = submit.post("llm-tasks", of(&submit.crew(), &project).json()).await.created();
        assert_eq!(task["project"], project["name"]);
        submit.get("projects").await.error(403);
        let own = with_new_key(&admin, &server, "w1", "worker", json!({ "worker": "w1" })).await;
        own.post("workers", json!({ "name": "w1" })).await.created();
        own.post("workers/w1/contexts", json!({ "context_ids": ["a"] })).await.ok();
        own.post("workers/w2/contexts", json!({ "context_ids": ["a"] })).await.error(403);
        submit.post("workers/w1/contexts", json!({ "context_ids": ["a"] })).await.error(403);
    }
}
