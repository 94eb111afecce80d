//! Each route of the control plane, with its errors.

use super::*;
use crate::on_both;
use crate::support::direct;

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[track_caller]
fn refused(answer: Answer, status: u16, text: &str) {
    let body = answer.expect(status).json();
    let detail = body["detail"].as_str().unwrap_or_else(|| panic!("no detail: {body}"));
    assert!(detail.contains(text), "{detail}");
}

/// The place and the type of each mistake that a 422 lists.
#[track_caller]
fn mistakes(answer: Answer) -> Vec<(String, String)> {
    let body = answer.expect(422).json();
    let told = |mistake: &Value| {
        assert!(!mistake["msg"].as_str().unwrap().is_empty());
        (mistake["loc"].to_string(), mistake["type"].as_str().unwrap().to_owned())
    };
    body["detail"].as_array().unwrap().iter().map(told).collect()
}

on_both! { alone:
    async fn agents_are_registered_listed_and_removed(database) {
        let plane = shared_plane(database);
        let name = unique("agent");
        let body = json!({
            "name": name, "url": "http://192.0.2.7:7000/", "status": "syncing", "capabilities": { "claude_cli": true, "max_concurrency": 2, "git": true },
            "agent_version": "9", "unknown": [],
        });
        let made = plane.post("/agents", body.clone()).await.expect(201).json();
        assert_eq!((&made["name"], &made["url"], &made["status"]), (&json!(name), &json!("http://192.0.2.7:7000"), &json!("syncing")));
        assert_eq!(made["last_seen"], json!(null));
        let seconds = made["registered_at"].as_f64().unwrap();
        assert!((seconds * 1000.0 - now_ms() as f64).abs() < 60_000.0, "{seconds} are seconds");
        refused(plane.post("/agents", body).await, 409, "registered already");
        let listed = plane.get("/agents").await.ok();
        let shown = listed.as_array().unwrap().iter().find(|agent| agent["name"] == name.as_str()).unwrap().clone();
        assert_eq!(shown, made);
        assert_eq!(shown["capabilities"], json!({ "claude_cli": true, "max_concurrency": 2, "git": true }));
        let removed = plane.delete(&format!("/agents/{name}")).await.expect(204);
        assert_eq!(removed.text, "");
        refused(plane.delete(&format!("/agents/{name}")).await, 404, "Agent not found");
        assert!(!names(&plane.get("/agents").await.ok()).contains(&name.as_str()));
        let body = json!({ "name": name, "instance": "3a", "status": "online" });
        let made = plane.post("/agents", body.clone()).await.expect(201).json();
        assert_eq!(plane.post("/agents", body).await.expect(201).json(), made, "an agent asks so whether its registration is kept");
        refused(plane.post("/agents", json!({ "name": name, "instance": "3b", "status": "online" })).await, 409, "registered already");
        plane.delete(&format!("/agents/{name}")).await.expect(204);
        let least = plane.post("/agents", json!({ "name": name })).await.expect(201).json();
        assert_eq!((&least["url"], &least["status"]), (&json!(""), &json!("online")));
    }

    async fn wrong_bodies_are_told_field_by_field(database) {
        let plane = shared_plane(database);
        let of = |field: &str, kind: &str| (json!(["body", field]).to_string(), kind.to_owned());
        assert_eq!(mistakes(plane.post_bytes("/agents", "{").await), [(json!(["body"]).to_string(), "json_invalid".to_owned())]);
        assert_eq!(mistakes(plane.poke("/agents").await), [(json!(["body"]).to_string(), "missing".to_owned())]);
        assert_eq!(mistakes(plane.post("/agents", json!([])).await), [(json!(["body"]).to_string(), "dict_type".to_owned())]);
        let wrong = json!({ "url": 7, "status": "resting", "capabilities": [], "ip_addrs": ["1", 2] });
        let expected = [
            of("name", "missing"), of("url", "string_type"), of("status", "enum"), of("capabilities", "dict_type"),
            (json!(["body", "ip_addrs", 1]).to_string(), "string_type".to_owned()),
        ];
        assert_eq!(mistakes(plane.post("/agents", wrong).await), expected);
        for (body, field, kind) in [
            (json!({ "name": "" }), "name", "string_too_short"),
            (json!({ "name": "x".repeat(129) }), "name", "string_too_long"),
            (json!({ "name": "a\u{0}b" }), "name", "string_nul"),
            (json!({ "name": ".." }), "name", "value_error"),
            (json!({ "name": "x", "url": "ftp://h" }), "url", "url_parsing"),
            (json!({ "name": "x", "url": "http://me:secret@h" }), "url", "url_parsing"),
            (json!({ "name": "x", "url": "http://h\n.x" }), "url", "url_parsing"),
            (json!({ "name": "x", "url": " http://h" }), "url", "url_parsing"),
            (json!({ "name": "x", "capabilities": { "x": "y".repeat(70_000) } }), "capabilities", "value_error"),
        ] {
            assert_eq!(mistakes(plane.post("/agents", body).await), [of(field, kind)]);
        }
        let heartbeat = plane.post("/agent/heartbeat", json!({ "node_id": "n", "obs_count": -1, "db_sha": false })).await;
        assert_eq!(mistakes(heartbeat), [of("canonical_id", "missing"), of("obs_count", "int_range"), of("db_sha", "string_type")]);
        assert_eq!(mistakes(plane.post("/projects", json!({ "name": null })).await), [of("name", "missing")]);
        let selection = json!({ "lease_seconds": 0, "term": "1" });
        let expected = [of("primary_node_id", "missing"), of("lease_seconds", "int_range"), of("term", "int_type")];
        assert_eq!(mistakes(plane.post("/projects/x/leadership/select", selection).await), expected);
        let expected = [of("project", "missing"), of("agent", "missing"), of("dryrun", "bool_type")];
        assert_eq!(mistakes(plane.post("/sync/push", json!({ "dryrun": 1 })).await), expected);
        refused(plane.post("/agents", json!({ "name": "y".repeat(300_000) })).await, 413, "too large");
    }

    async fn projects_are_registered_listed_and_removed(database) {
        let plane = shared_plane(database);
        let name = unique("project");
        let made = plane.post("/projects", json!({ "name": name })).await.expect(201).json();
        assert_eq!(keys(&made), ["canonical_id", "created_at", "last_seen", "name", "nodes_count", "source"]);
        assert_eq!(made["canonical_id"], canonical_id(&name).as_str());
        assert_eq!((&made["source"], &made["nodes_count"], &made["last_seen"]), (&json!("manual"), &json!(0), &json!(null)));
        refused(plane.post("/projects", json!({ "name": name })).await, 409, "exists: delete it first");
        beat(&plane, "node", &name, json!({})).await;
        let listed = plane.get("/projects").await.ok();
        let shown = listed.as_array().unwrap().iter().find(|project| project["name"] == name.as_str()).unwrap().clone();
        assert_eq!((&shown["nodes_count"], &shown["source"]), (&json!(1), &json!("manual")));
        assert!(shown["last_seen"].is_f64());
        plane.delete(&format!("/projects/{name}")).await.expect(204);
        refused(plane.delete(&format!("/projects/{name}")).await, 404, "Project not found");
        for path in ["nodes", "leadership"] {
            refused(plane.get(&format!("/projects/{}/{path}", canonical_id(&name))).await, 404, "Project not found");
        }
        let anew = plane.post("/projects", json!({ "name": name })).await.expect(201).json();
        assert_eq!(anew["nodes_count"], 0, "its nodes went with it");
    }

    async fn a_heartbeat_makes_the_node_and_its_project_known(database) {
        let plane = shared_plane(database);
        let (project, node) = (unique("project"), unique("node"));
        let id = canonical_id(&project);
        plane.post("/agents", json!({ "name": node })).await.expect(201);
        let answer = beat(&plane, &node, &project, json!({ "obs_count": 3, "db_sha": "abc", "ip_addrs": ["192.0.2.1"] })).await;
        assert_eq!(answer, json!({ "ok": true, "role": "unknown", "canonical_id": id }));
        let nodes = plane.get(&format!("/projects/{id}/nodes")).await.ok();
        let shown = &nodes[0];
        let expected = ["canonical_id", "db_sha", "ip_addrs", "last_seen", "node_id", "obs_count", "project_id", "registered_at", "role"];
        assert_eq!(keys(shown), expected);
        assert_eq!((&shown["obs_count"], &shown["db_sha"], &shown["ip_addrs"]), (&json!(3), &json!("abc"), &json!(["192.0.2.1"])));
        let again = beat(&plane, &node, &project, json!({ "obs_count": 4 })).await;
        assert_eq!(again["ok"], true);
        let later = plane.get(&format!("/projects/{id}/nodes")).await.ok()[0].clone();
        assert_eq!((&later["obs_count"], &later["db_sha"]), (&json!(4), &json!("abc")), "what is absent keeps its value");
        assert_eq!(later["registered_at"], shown["registered_at"]);
        assert!(later["last_seen"].as_f64() >= shown["last_seen"].as_f64());
        let listed = plane.get("/projects").await.ok();
        let found = listed.as_array().unwrap().iter().find(|known| known["canonical_id"] == id.as_str()).unwrap().clone();
        assert_eq!((&found["source"], &found["name"]), (&json!("heartbeat"), &json!(project)));
        let agents = plane.get("/agents").await.ok();
        let agent = agents.as_array().unwrap().iter().find(|agent| agent["name"] == node.as_str()).unwrap().clone();
        assert!(agent["last_seen"].is_f64() && agent["obs_count"] == 4, "{agent}");
        let named = plane.post("/projects", json!({ "name": project })).await.expect(201).json();
        assert_eq!((&named["source"], &named["nodes_count"]), (&json!("manual"), &json!(1)), "a person may register it, too");
    }

    async fn nodes_that_are_silent_for_long_are_removed(database) {
        let server = plan(database).start();
        let plane = admin(server.base());
        for node in ["leader", "old", "silent"] {
            beat(&plane, node, "house", json!({})).await;
        }
        select(&plane, "house", json!({ "primary_node_id": "leader", "lease_seconds": 2_000_000 })).await.ok();
        let shown = async || {
            let nodes = plane.get(&format!("/projects/{}/nodes", canonical_id("house"))).await.ok();
            nodes.as_array().unwrap().iter().map(|node| node["node_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        direct::execute(&url_of(&server), &format!("UPDATE membridge_nodes SET last_seen = last_seen - {}", 8 * 86_400_000_i64)).await;
        beat(&plane, "old", "house", json!({})).await;
        assert_eq!(shown().await, ["leader", "old", "silent"]);
        beat(&plane, "new", "house", json!({})).await;
        assert_eq!(shown().await, ["leader", "new", "old"], "a new node takes their room; who leads stays");
        assert_eq!(leadership(&plane, "house").await["preferred_primary"], "leader");
        assert_eq!(leadership(&plane, "house").await["node_count"], 3);
    }

    async fn unknown_paths_methods_and_jobs_are_told(database) {
        let plane = shared_plane(database);
        refused(plane.get("/nothing").await, 404, "Not Found");
        refused(plane.poke("/projects/x/nodes").await, 405, "Method Not Allowed");
        refused(plane.get(&format!("/jobs/{NO_ID}")).await, 404, "Job not found");
        refused(plane.get("/jobs/nonsense").await, 404, "Job not found");
        for path in ["/projects/%00/nodes", "/projects/x%00/leadership"] {
            refused(plane.get(path).await, 404, "Not Found");
        }
        refused(plane.delete("/agents/%00").await, 404, "Not Found");
        refused(sync(&plane, "push", "no such project", "a").await, 404, "Project not found");
        let project = unique("project");
        plane.post("/projects", json!({ "name": project })).await.expect(201);
        refused(sync(&plane, "pull", &project, "nobody").await, 404, "Agent not found");
    }
}
