//! Projects: what they are, clones by agents, and their memory.

use sha2::{Digest as _, Sha256};

use crate::on_both;
use crate::support::pushed::nowhere;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

const KEY: &str = "membridge-admin-key";
const REPO: &str = "https://git.example.com/team/docs.git";

/// As the documented runtime makes it.
fn canonical_id(name: &str) -> String {
    hex::encode(&Sha256::digest(name)[..8])
}

fn project(name: &str) -> Value {
    json!({ "name": name, "repo_url": REPO })
}

async fn created(server: &Server, body: Value) -> Value {
    server.post("projects", body).await.created()
}

fn path(project: &Value, call: &str) -> String {
    format!("projects/{}{call}", project["id"].as_str().expect("an id"))
}

/// The actions about a project, oldest first.
async fn told(server: &Server, project: &Value) -> Vec<String> {
    let audit = server.get("audit?limit=1000").await.ok();
    let of_project = audit.as_array().unwrap().iter().filter(|entry| entry["entity_id"] == project["id"]);
    of_project.rev().map(|entry| entry["action"].as_str().unwrap().to_owned()).collect()
}

on_both! {
    async fn a_project_is_created_shown_listed_and_deleted(server) {
        let crew = server.crew();
        let name = format!("docs {}", crew.slug);
        let made = created(server, json!({ "name": name, "repo_url": REPO, "target_path": "a/b c", "primary_node_id": "w", "x": 1 })).await;
        let expected = json!({
            "id": made["id"], "name": name, "repo_url": REPO, "canonical_id": canonical_id(&name), "target_path": "a/b c", "primary_node_id": "w",
            "branch_prefix": "bloom", "former_branch_prefixes": [], "clone_status": "pending",
            "error_message": null, "created_at": made["created_at"], "updated_at": made["created_at"],
        });
        assert_eq!(made, expected);
        let mut shown = expected.clone();
        shown["nodes"] = json!([]);
        assert_eq!(server.get(&path(&made, "")).await.ok(), shown);
        let second = created(server, project(&format!("{name} 2"))).await;
        // Other tests make projects, too.
        let listed = server.get("projects?limit=1000").await.ok();
        let own: Vec<&Value> = listed.as_array().unwrap().iter().filter(|one| one["name"].as_str().unwrap().starts_with(&name)).collect();
        assert_eq!(own, [&second, &expected], "newest first");
        assert_eq!(server.get("projects?status=synced").await.ok(), json!([]));
        assert_eq!(server.get("projects?status=nonsense").await.ok(), json!([]));
        let again = server.post("projects", project(&name)).await;
        assert_eq!(again.status, 409);
        assert!(again.text.contains("exists: delete it first"), "{}", again.text);
        assert_eq!(server.delete(&path(&made, "")).await.ok(), json!({ "removed": true, "id": made["id"] }));
        for call in ["", "/node-status"] {
            let gone = server.get(&path(&made, call)).await;
            assert_eq!((gone.status, gone.json()["error"].as_str()), (404, Some("Project not found")));
        }
        for call in ["/clone", "/propagate", "/sync-memory"] {
            assert_eq!(server.poke(&path(&made, call)).await.status, 404, "{call}");
        }
        assert_eq!(server.delete("projects/nonsense").await.status, 404);
        assert_eq!(told(server, &made).await, ["project_created", "project_deleted"]);
        created(server, project(&name)).await;
    }

    async fn the_prefix_of_branches_is_changed(server) {
        let made = created(server, json!({ "name": unique("prefixed"), "repo_url": REPO, "branch_prefix": "team/bots" })).await;
        assert_eq!(made["branch_prefix"], json!("team/bots"));
        let edit = async |prefix: &str| server.patch(&path(&made, ""), json!({ "branch_prefix": prefix })).await;
        let prefixes = |shown: &Value| (shown["branch_prefix"].clone(), shown["former_branch_prefixes"].clone());
        for (prefix, former) in [("a", json!(["team/bots"])), ("a", json!(["team/bots"])), ("team/bots", json!(["a"]))] {
            let edited = edit(prefix).await.ok();
            assert_eq!(prefixes(&edited), (json!(prefix), former));
            assert_eq!(prefixes(&server.get(&path(&made, "")).await.ok()), prefixes(&edited));
        }
        let long = "p".repeat(101);
        for wrong in ["", "-b", "a..b", "a b", "a~", "a^", "a:", "a?", "a*", "a[", "a\\", "@", "@{", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a.lock", "a\u{7f}", "a\u{9b}", "a\u{202e}b", "\u{2066}a", "refs", "refs/heads", "HEAD", "HEAD/a", "origin/a", &long, &"\u{1f600}".repeat(60)] {
            edit(wrong).await.refuses(&["branch_prefix"]);
            server.post("projects", json!({ "name": unique("p"), "repo_url": REPO, "branch_prefix": wrong })).await.refuses(&["branch_prefix"]);
        }
        server.patch(&path(&made, ""), json!({})).await.refuses(&["branch_prefix"]);
        assert_eq!(server.get(&path(&made, "")).await.ok()["branch_prefix"], json!("team/bots"));
        assert_eq!(told(server, &made).await, ["project_created", "project_edited", "project_edited"]);
        for n in 0..12 {
            edit(&format!("p{n}")).await.ok();
        }
        let shown = server.get(&path(&made, "")).await.ok();
        assert_eq!(shown["former_branch_prefixes"].as_array().map(Vec::len), Some(10), "{shown}");
        for fine in ["p".repeat(100), "ä".into(), "heads".into()] {
            edit(&fine).await.ok();
        }
        server.delete(&path(&made, "")).await.ok();
        edit("gone").await.error(404);
    }

    async fn what_a_project_can_not_be(server) {
        let wrong = [
            ("name", json!({ "name": "", "repo_url": REPO })), ("name", json!({ "repo_url": REPO })),
            ("name", json!({ "name": ".git", "repo_url": REPO })), ("name", json!({ "name": "a/b", "repo_url": REPO })),
            ("name", json!({ "name": "n".repeat(257), "repo_url": REPO })), ("repo_url", json!({ "name": "p" })),
            ("repo_url", json!({ "name": "p", "repo_url": "http://git.example.com/r" })),
            ("repo_url", json!({ "name": "p", "repo_url": "file://host/etc" })),
            ("repo_url", json!({ "name": "p", "repo_url": "file:///" })),
            ("repo_url", json!({ "name": "p", "repo_url": "/srv/git/site" })),
            ("repo_url", json!({ "name": "p", "repo_url": "ssh://me:secret@git.example.com/r" })),
            ("repo_url", json!({ "name": "p", "repo_url": "ssh://-oProxyCommand=x/r" })),
            ("repo_url", json!({ "name": "p", "repo_url": "ssh://git.example.com" })),
            ("repo_url", json!({ "name": "p", "repo_url": "https://me:secret@git.example.com/r" })),
            ("repo_url", json!({ "name": "p", "repo_url": "git@-oProxyCommand=x:r" })),
            ("repo_url", json!({ "name": "p", "repo_url": "git@host:-r" })),
            ("repo_url", json!({ "name": "p", "repo_url": "ext::sh -c id" })),
            ("repo_url", json!({ "name": "p", "repo_url": "--upload-pack=id" })),
            ("target_path", json!({ "name": "p", "repo_url": REPO, "target_path": "../x" })),
            ("target_path", json!({ "name": "p", "repo_url": REPO, "target_path": "~/../x" })),
            ("target_path", json!({ "name": "p", "repo_url": REPO, "target_path": "~me/x" })),
            ("target_path", json!({ "name": "p", "repo_url": REPO, "target_path": "/" })),
            ("target_path", json!({ "name": "p", "repo_url": REPO, "target_path": "a//b" })),
        ];
        for (field, body) in wrong {
            let refused = server.post("projects", body.clone()).await;
            assert_eq!(refused.status, 400, "{body}");
            assert!(refused.json()["error"]["fieldErrors"][field].is_array(), "{body}: {}", refused.text);
        }
    }

    async fn repositories_have_urls_of_these_forms(server) {
        let crew = server.crew();
        let urls = ["https://h/r", "git@h:team/r.git", "ssh://git@h:2222/team/r.git", "ssh://h/r", "file:///srv/git/site%201"];
        for (n, url) in urls.into_iter().enumerate() {
            let made = created(server, json!({ "name": format!("{} {n}", crew.slug), "repo_url": url })).await;
            assert_eq!(made["repo_url"], url);
        }
    }

    async fn a_worker_clones_a_project(server) {
        let stub = Stub::start().await;
        let worker = server.crew().worker_at(&stub.url).register().await;
        let body = json!({ "name": worker.name, "repo_url": REPO, "target_path": "x", "primary_node_id": worker.name });
        let made = created(server, body).await;
        stub.once("/clone", Reply::new(409, r#"{"error":"The target already exists"}"#));
        let refused = server.poke(&path(&made, "/clone")).await;
        let text = r#"Agent returned 409: {"error":"The target already exists"}"#;
        assert_eq!((refused.status, refused.json()["error"].as_str()), (502, Some(text)));
        let shown = server.get(&path(&made, "")).await.ok();
        assert_eq!((&shown["clone_status"], &shown["error_message"]), (&json!("failed"), &json!(text)));
        let node = json!({
            "id": shown["nodes"][0]["id"], "project_id": made["id"], "node_id": worker.name, "clone_status": "failed", "repo_path": null,
            "clone_path": null, "error_message": text, "last_sync_at": null, "updated_at": shown["updated_at"],
        });
        assert_eq!(shown["nodes"], json!([node]));
        assert!(node["id"].as_str().unwrap().parse::<uuid::Uuid>().is_ok(), "{node}");
        stub.always("/clone", Reply::new(200, r#"{"status":"cloned","path":"/w/projects/x"}"#));
        let cloned = server.post(&path(&made, "/clone"), json!({ "node_id": null })).await.ok();
        let result = json!({ "status": "cloned", "path": "/w/projects/x" });
        assert_eq!(cloned, json!({ "status": "cloned", "node": worker.name, "result": result }));
        let sent: Value = serde_json::from_str(&stub.seen("/clone")[1].body).unwrap();
        assert_eq!(sent, json!({ "repo_url": REPO, "project_name": worker.name, "target_path": "x" }));
        let status = server.get(&path(&made, "/node-status")).await.ok();
        let of_worker = status.as_array().unwrap().iter().find(|node| node["node_id"] == worker.name.as_str()).unwrap();
        let project = server.get(&path(&made, "")).await.ok();
        assert_eq!((&project["clone_status"], &project["error_message"]), (&json!("cloned"), &Value::Null));
        let of_node = json!({
            "id": node["id"], "project_id": made["id"], "node_id": worker.name, "clone_status": "cloned", "repo_path": "/w/projects/x",
            "clone_path": "/w/projects/x", "error_message": null, "last_sync_at": project["updated_at"], "updated_at": project["updated_at"],
            "worker_status": "online",
        });
        assert_eq!(of_worker, &of_node);
        stub.once("/clone", Reply::new(507, "full"));
        assert_eq!(server.poke(&path(&made, "/clone")).await.status, 502);
        let failed = &server.get(&path(&made, "")).await.ok()["nodes"][0];
        assert_eq!((&failed["clone_status"], &failed["last_sync_at"]), (&json!("failed"), &project["updated_at"]), "it was there once");
        assert_eq!(told(server, &made).await, ["project_created", "project_cloned", "project_cloned", "project_cloned"]);
    }

    async fn a_clone_needs_a_worker_with_a_url(server) {
        let worker = server.crew().worker().register().await;
        let made = created(server, project(&worker.name)).await;
        let refused = server.poke(&path(&made, "/clone")).await;
        assert_eq!((refused.status, refused.json()["error"].as_str()), (400, Some("No target node specified")));
        let by_itself = format!("Worker \"{}\" takes its tasks by itself (no URL): it clones the project with its first task", worker.name);
        for (node, text) in [("nobody", "Worker \"nobody\" not found or has no URL"), (worker.name.as_str(), by_itself.as_str())] {
            let refused = server.post(&path(&made, "/clone"), json!({ "node_id": node })).await;
            assert_eq!((refused.status, refused.json()["error"].as_str()), (502, Some(text)));
            let shown = server.get(&path(&made, "")).await.ok();
            assert_eq!((&shown["clone_status"], &shown["error_message"]), (&json!("failed"), &json!(text)), "it is kept");
            assert_eq!(shown["primary_node_id"], "nobody", "the first that was named");
            let kept = shown["nodes"].as_array().unwrap().iter().find(|one| one["node_id"] == node).unwrap();
            assert_eq!((&kept["clone_status"], &kept["error_message"]), (&json!("failed"), &json!(text)));
        }
        let again = server.poke(&path(&made, "/clone")).await;
        assert_eq!(again.json()["error"], "Worker \"nobody\" not found or has no URL", "as the primary node");
        assert_eq!(server.post(&path(&made, "/clone"), json!({ "node_id": "n".repeat(300) })).await.status, 400);
        let lost = server.crew().worker_at(&nowhere()).register().await;
        let refused = server.post(&path(&made, "/clone"), json!({ "node_id": lost.name })).await;
        assert_eq!(refused.status, 502);
        assert_eq!(server.get(&path(&made, "")).await.ok()["clone_status"], "failed");
    }

    async fn a_run_that_clones_a_project_ends_its_failure(server) {
        let crew = server.crew();
        let worker = crew.worker().able("git", json!(true)).register().await;
        let made = created(server, project(&worker.name)).await;
        server.post(&path(&made, "/clone"), json!({ "node_id": worker.name })).await.error(502);
        assert_eq!(server.get(&path(&made, "")).await.ok()["clone_status"], "failed");
        let task = crew.task().with("project", made["name"].clone()).create().await;
        let lease = task.lease_to(&worker).await;
        let done = json!({ "status": "success", "output": "o", "metrics": { "duration_ms": 1 }, "lease_id": lease.id, "branch": "bloom/c" });
        task.complete(done).await.ok();
        let shown = eventually("the clone of the run is noted", || async {
            Some(server.get(&path(&made, "")).await.ok()).filter(|project| project["nodes"][0]["clone_status"] == json!("cloned"))
        })
        .await;
        assert_eq!((&shown["clone_status"], &shown["error_message"]), (&json!("cloned"), &Value::Null), "{shown}");
        assert_eq!(shown["nodes"][0]["error_message"], Value::Null);
    }

    async fn a_project_is_propagated_to_those_that_lack_it(server) {
        let (first, second) = (Stub::start().await, Stub::start().await);
        let a = server.crew().worker_at(&first.url).register().await;
        let b = server.crew().worker_at(&second.url).register().await;
        let made = created(server, project(&a.name)).await;
        first.always("/clone", Reply::new(200, "{}"));
        second.once("/clone", Reply::new(507, "full"));
        let both = json!({ "node_ids": [a.name, b.name] });
        let told_of = server.post(&path(&made, "/propagate"), both.clone()).await.ok();
        assert_eq!(told_of["status"], "partial");
        let mut results = told_of["results"].as_array().unwrap().clone();
        results.sort_by_key(|one| one["node_id"] != a.name.as_str());
        let failed = json!({ "node_id": b.name, "status": "failed", "error": "Agent returned 507: full" });
        assert_eq!(results, [json!({ "node_id": a.name, "status": "cloned" }), failed]);
        second.always("/clone", Reply::new(200, "{}"));
        let told_of = server.post(&path(&made, "/propagate"), both.clone()).await.ok();
        assert_eq!(told_of, json!({ "status": "synced", "results": [{ "node_id": b.name, "status": "cloned" }] }));
        assert_eq!(first.seen("/clone").len(), 1, "who has it is not asked again");
        let told_of = server.post(&path(&made, "/propagate"), both).await.ok();
        assert_eq!(told_of, json!({ "status": "nothing_to_propagate", "message": "All nodes already have this project" }));
        assert_eq!(server.get(&path(&made, "")).await.ok()["clone_status"], "synced");
        assert_eq!(told(server, &made).await, ["project_created", "project_propagated", "project_propagated"]);
    }

    async fn a_propagation_in_which_all_fail_has_failed(server) {
        let stub = Stub::start().await;
        let worker = server.crew().worker_at(&stub.url).register().await;
        let made = created(server, project(&worker.name)).await;
        stub.always("/clone", Reply::new(507, "full"));
        let told_of = server.post(&path(&made, "/propagate"), json!({ "node_ids": [worker.name, "nobody"] })).await.ok();
        let missing = "Worker \"nobody\" not found or has no URL";
        let of = |node: &str, error: &str| json!({ "node_id": node, "status": "failed", "error": error });
        let mut results = vec![of(&worker.name, "Agent returned 507: full"), of("nobody", missing)];
        results.sort_by_key(|one| one["node_id"].as_str().unwrap().to_owned());
        assert_eq!(told_of, json!({ "status": "partial", "results": results }));
        let shown = server.get(&path(&made, "")).await.ok();
        assert_eq!((&shown["clone_status"], &shown["primary_node_id"]), (&json!("failed"), &Value::Null));
        assert!(shown["error_message"].as_str().is_some_and(|text| text.contains(": ")), "{shown}");
        assert_eq!(shown["nodes"].as_array().unwrap().len(), 2);
    }

    async fn a_target_path_may_be_a_wish(server) {
        let stub = Stub::start().await;
        stub.always("/clone", Reply::new(200, "{}"));
        let worker = server.crew().worker_at(&stub.url).register().await;
        for (n, wish) in ["~/projects/x-1", "/srv/sites/x 2", "a/b"].into_iter().enumerate() {
            let name = format!("{} {n}", worker.name);
            let made = created(server, json!({ "name": name, "repo_url": REPO, "target_path": wish, "primary_node_id": worker.name })).await;
            assert_eq!(made["target_path"], wish);
            assert_eq!(server.poke(&path(&made, "/clone")).await.ok()["status"], "cloned");
            let sent: Value = serde_json::from_str(&stub.seen("/clone")[n].body).unwrap();
            assert_eq!(sent["target_path"], wish, "the agent maps it");
        }
    }

    async fn capabilities_that_are_not_known_are_kept(server) {
        let worker = server.crew().worker().register().await;
        // Without `agents`, it would take the tasks of other tests.
        let register = async |mut capabilities: Value| {
            capabilities["agents"] = json!([worker.name]);
            server.post("workers", json!({ "name": worker.name, "capabilities": capabilities })).await
        };
        let shown = register(json!({ "git": true, "gpu": { "count": 2 }, "none": null })).await.ok();
        assert_eq!((&shown["capabilities"]["git"], &shown["capabilities"]["gpu"]), (&json!(true), &json!({ "count": 2 })));
        assert!(!shown["capabilities"].as_object().unwrap().contains_key("none"));
        server.post("workers", json!({ "name": worker.name })).await.ok();
        assert_eq!(worker.now().await["capabilities"]["gpu"], json!({ "count": 2 }), "they stay if none are given");
        let many: serde_json::Map<String, Value> = (0..33).map(|n| (format!("c{n}"), json!(1))).collect();
        for wrong in [json!(many), json!({ "long": "x".repeat(5_000) }), json!({ "n".repeat(65): 1 }), json!({ "a": "\u{0}" })] {
            let refused = register(wrong.clone()).await;
            assert_eq!(refused.status, 400, "{wrong}");
            assert!(refused.json()["error"]["fieldErrors"]["capabilities"].is_array(), "{}", refused.text);
        }
        assert_eq!(register(json!({})).await.ok()["capabilities"]["gpu"], Value::Null);
    }
}

on_both! { alone:
    async fn the_memory_is_moved_by_the_control_plane(database) {
        let stub = Stub::start().await;
        let server = Server::on(database).env("MEMBRIDGE_SERVER_URL", &stub.url).env("MEMBRIDGE_ADMIN_KEY", KEY).start();
        let made = created(&server, project("docs")).await;
        let call = path(&made, "/sync-memory");
        let refused = server.poke(&call).await;
        assert_eq!((refused.status, refused.json()["error"].as_str()), (400, Some("No target node specified")));
        stub.once("/sync/push", Reply::new(422, r#"{"detail":[]}"#));
        let refused = server.post(&call, json!({ "node_id": "w" })).await;
        assert_eq!((refused.status, refused.json()["error"].as_str()), (502, Some(r#"Membridge returned 422: {"detail":[]}"#)));
        stub.always("/sync/push", Reply::new(200, r#"{"ok":true}"#));
        stub.always("/sync/pull", Reply::new(200, "null"));
        let pushed = server.post(&call, json!({ "node_id": "w" })).await.ok();
        assert_eq!(pushed, json!({ "status": "ok", "direction": "push", "node": "w", "result": { "ok": true } }));
        let pulled = server.post(&call, json!({ "node_id": "w", "direction": "pull" })).await.ok();
        assert_eq!(pulled, json!({ "status": "ok", "direction": "pull", "node": "w", "result": null }));
        assert_eq!(server.post(&call, json!({ "node_id": "w", "direction": "up" })).await.status, 400);
        assert_eq!(server.post(&path(&made, "/clone"), json!({ "node_id": "w" })).await.status, 502);
        assert_eq!(server.poke(&call).await.ok()["node"], "w", "the node that was named first");
        let seen = &stub.seen("/sync/push")[1];
        assert_eq!(seen.headers["x-membridge-admin"], KEY);
        assert_eq!(serde_json::from_str::<Value>(&seen.body).unwrap(), json!({ "project": "docs", "agent": "w" }));
        assert_eq!(told(&server, &made).await, ["project_created", "memory_sync_push", "memory_sync_pull", "project_cloned", "memory_sync_push"]);
    }

    async fn there_is_a_limit_of_projects_and_pages(database) {
        let server = Server::on(database).start();
        for n in 0..3 {
            created(&server, project(&format!("p{n}"))).await;
        }
        let first = server.get("projects?limit=2").await;
        let next = first.next_page().expect("a second page");
        assert_eq!(first.ok().as_array().unwrap().len(), 2);
        let rest = server.get(&next).await.ok();
        assert_eq!(rest.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect::<Vec<_>>(), ["p0"]);
        assert_eq!(server.get("projects?cursor=x").await.status, 400);
    }
}
