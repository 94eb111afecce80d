//! Memories of projects: pushed by the leader, kept in versions, handed out to others.

use std::path::{Path, PathBuf};

use super::*;
use crate::on_both;
use crate::support::agent::{Agent, AgentPlan};
use crate::support::checker::Link;
use crate::support::pushed::{Mute, nowhere};
use crate::support::stub::{Reply, Stub};

/// A snapshot whose content is `mem`, as an agent answers it.
const SNAPSHOT: &str =
    concat!(r#"{"sha256":"6fe2e0f6071ac2bb8d0b1ef26d1b691e625ba690a06edfd245847a8385aee999","#, r#""bytes":3,"content":"bWVt"}"#,);

/// An agent that keeps the memory of the project in this directory, and is registered at the control plane alone.
fn agent(plane: &Api, name: &str, project: &str, dir: &Path) -> Agent {
    let plan = AgentPlan::at(&nowhere(), name).echo().env("MEMBRIDGE_AGENT_KEY", AGENT_KEY).env("MEMBRIDGE_ADMIN_KEY", KEY);
    let memory = format!("{project}={}", dir.display());
    plan.arg(&["--listen", "127.0.0.1:0", "--membridge", plane.base(), "--memory", &memory]).start()
}

fn files(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => left.push(path),
                path => {
                    let name = path.strip_prefix(dir).unwrap().display().to_string();
                    found.push((name, std::fs::read_to_string(path).unwrap()));
                }
            }
        }
    }
    found.sort();
    found
}

fn directories() -> (PathBuf, PathBuf) {
    let dir = janitor::new_path("memory");
    std::fs::create_dir_all(dir.join("one/sub")).unwrap();
    std::fs::write(dir.join("one/a.md"), "the door is green").unwrap();
    std::fs::write(dir.join("one/sub/b.md"), "the roof is red").unwrap();
    // A link leads to the directory of the second one.
    std::fs::create_dir(dir.join("disk")).unwrap();
    std::os::unix::fs::symlink(dir.join("disk"), dir.join("two")).unwrap();
    (dir.join("one"), dir.join("two"))
}

async fn nodes(plane: &Api, project: &str, wanted: usize) -> Vec<Value> {
    let path = format!("/projects/{}/nodes", canonical_id(project));
    eventually("the nodes are known", || async {
        let answer = plane.get(&path).await;
        let nodes = if answer.status == 200 { answer.json().as_array().cloned().unwrap() } else { Vec::new() };
        (nodes.len() == wanted).then_some(nodes)
    })
    .await
}

/// A project that a stub leads, which answers as an agent does.
async fn led_by(plane: &Api, project: &str, url: &str) -> String {
    let name = unique("agent");
    plane.post("/agents", json!({ "name": name, "url": url })).await.expect(201);
    beat(plane, &name, project, json!({})).await;
    select(plane, project, json!({ "primary_node_id": name })).await.ok();
    name
}

on_both! { alone:
    async fn what_the_leader_remembers_reaches_the_others(database) {
        let server = plan(database).start();
        let plane = admin(server.base());
        let (one, two) = directories();
        let leader = agent(&plane, "one", "house", &one);
        let other = agent(&plane, "two", "house", &two);
        let known = nodes(&plane, "house", 2).await;
        assert_eq!((&known[0]["obs_count"], &known[1]["obs_count"]), (&json!(2), &json!(0)), "{known:?}");
        let before = sync(&plane, "push", "house", "one").await.expect(409).json();
        assert!(before["detail"].as_str().unwrap().contains("select a leader"), "{before}");
        sync(&plane, "pull", "house", "two").await.expect(404);

        select(&plane, "house", json!({ "primary_node_id": "one" })).await.ok();
        let dry = plane.post("/sync/push", json!({ "project": "house", "agent": "one", "dryrun": true })).await.ok();
        assert_eq!((&dry["dryrun"], &dry["status"]), (&json!(true), &json!("completed")));
        assert_eq!(leadership(&plane, "house").await["memory_version"], 0, "a dry run stores nothing");
        let pushed = sync(&plane, "push", "house", "one").await.ok();
        let expected = ["action", "agent", "canonical_id", "created_at", "detail", "dryrun", "finished_at", "id", "memory", "project", "request_id",
            "returncode", "status", "stderr", "stdout"];
        let mut keys: Vec<_> = pushed.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        assert_eq!(keys, expected);
        assert_eq!((&pushed["status"], &pushed["returncode"], &pushed["action"]), (&json!("completed"), &json!(0), &json!("push")));
        assert_eq!(pushed["memory"]["version"], 1);
        assert_eq!(pushed["memory"]["sha256"], known[0]["db_sha"], "the heartbeat tells the digest of the same files");
        let job = plane.get(&format!("/jobs/{}", pushed["id"].as_str().unwrap())).await.ok();
        assert_eq!((&job["detail"], &job["id"]), (&pushed["detail"], &pushed["id"]));
        assert_eq!(sync(&plane, "push", "house", "one").await.ok()["memory"]["version"], 1, "the same files are no new version");

        let versions = leadership(&plane, "house").await["memory_versions"].clone();
        assert_eq!((versions.as_array().unwrap().len(), &versions[0]["version"], &versions[0]["node_id"]), (1, &json!(1), &json!("one")));
        assert_eq!((&versions[0]["sha256"], &versions[0]["size"]), (&pushed["memory"]["sha256"], &pushed["memory"]["size"]));
        let listed = plane.get("/projects").await.ok()[0].clone();
        assert_eq!((&listed["preferred_primary"], &listed["memory_version"]), (&json!("one"), &json!(1)));
        assert_eq!(listed["memory_stored_at"], versions[0]["created_at"]);

        let refused = sync(&plane, "push", "house", "two").await.expect(409).json();
        assert!(refused["detail"].as_str().unwrap().contains("only the leader may push"), "{refused}");
        sync(&plane, "pull", "house", "two").await.ok();
        assert_eq!(files(&two), files(&one));
        assert!(two.is_symlink());
        std::fs::write(two.join("c.md"), "only here").unwrap();
        std::fs::remove_file(one.join("a.md")).unwrap();
        assert_eq!(sync(&plane, "push", "house", "one").await.ok()["memory"]["version"], 2);

        // All of it is still there after a crash.
        let [agents, projects, jobs] = ["/agents", "/projects", "/jobs"];
        let jobs_before = plane.get(jobs).await.ok();
        server.kill9();
        server.start_again();
        assert_eq!(plane.get(jobs).await.ok(), jobs_before);
        let statuses: Vec<_> = jobs_before.as_array().unwrap().iter().map(|job| job["status"].as_str().unwrap().to_owned()).collect();
        assert_eq!(statuses.iter().filter(|status| *status == "failed").count(), 3, "{jobs_before}");
        assert_eq!(plane.get(agents).await.ok().as_array().unwrap().len(), 2);
        assert_eq!(plane.get(projects).await.ok()[0]["name"], "house");
        let shown = leadership(&plane, "house").await;
        assert_eq!((&shown["preferred_primary"], &shown["term"], &shown["memory_version"]), (&json!("one"), &json!(1), &json!(2)));
        sync(&plane, "pull", "house", "two").await.ok();
        assert_eq!(files(&two), [("sub/b.md".to_owned(), "the roof is red".to_owned())], "what the newest version lacks is gone");

        leader.kill9();
        let gone = sync(&plane, "push", "house", "one").await.expect(502).json();
        assert!(gone["detail"].as_str().unwrap().contains("can't connect"), "{gone}");
        assert_eq!(plane.get(jobs).await.ok()[0]["returncode"], 1);
        other.stop();
        let listed = plane.get(agents).await.ok();
        let names: Vec<_> = listed.as_array().unwrap().iter().map(|agent| agent["name"].clone()).collect();
        assert_eq!(names, ["one"], "an agent that stops takes its registration back");
        leader.start_again();
        eventually("it is registered again, at another port", || async {
            (sync(&plane, "push", "house", "one").await.status == 200).then_some(())
        })
        .await;
    }

    async fn a_push_stores_nothing_if_the_leader_changes_meanwhile(database) {
        let plane = shared_plane(database);
        let project = unique("project");
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{SNAPSHOT}", SNAPSHOT.len());
        let slow = Mute::start(answer.leak()).await;
        let leader = led_by(&plane, &project, &slow.url).await;
        beat(&plane, "other", &project, json!({})).await;
        let (pushing, leader_name, of_project) = (plane.clone(), leader.clone(), project.clone());
        let pushed = tokio::spawn(async move { sync(&pushing, "push", &of_project, &leader_name).await });
        slow.has_a_request().await;
        select(&plane, &project, json!({ "primary_node_id": "other" })).await.ok();
        // Chosen again, but in another term.
        select(&plane, &project, json!({ "primary_node_id": leader })).await.ok();
        slow.let_go();
        let refused = pushed.await.unwrap().expect(409).json();
        assert!(refused["detail"].as_str().unwrap().contains("its term is 3, not 1"), "{refused}");
        assert_eq!(leadership(&plane, &project).await["memory_version"], 0);
    }

    async fn a_control_plane_that_dies_in_a_push_has_stored_all_or_nothing(database) {
        let server = plan(database).start();
        let plane = admin(server.base());
        let slow = Mute::start("").await;
        let leader = led_by(&plane, "house", &slow.url).await;
        let (pushing, name) = (plane.clone(), leader.clone());
        let body = json!({ "project": "house", "agent": name });
        let pushed = tokio::spawn(async move { pushing.try_post("/sync/push", body).await.is_err() });
        slow.has_a_request().await;
        server.kill9();
        assert!(pushed.await.unwrap(), "no answer without a commit");
        server.start_again();
        assert_eq!(leadership(&plane, "house").await["memory_version"], 0);
        assert_eq!(plane.get("/jobs").await.ok(), json!([]));
    }

    async fn only_so_many_versions_are_kept(database) {
        let server = plan(database).start();
        let plane = admin(server.base());
        let stub = Stub::start().await;
        let leader = led_by(&plane, "house", &stub.url).await;
        let path = format!("/memory/{}", canonical_id("house"));
        for n in 0..13_u8 {
            let content = [b'a' + n];
            let mut tools = std::process::Command::new("sh");
            tools.args(["-c", "printf %s $0 | sha256sum; printf %s $0 | base64", std::str::from_utf8(&content).unwrap()]);
            let said = String::from_utf8(tools.output().unwrap().stdout).unwrap();
            let (sha256, content) = (&said[..64], said.lines().nth(1).unwrap());
            let body = json!({ "sha256": sha256, "bytes": 1, "content": content }).to_string();
            stub.always(&path, Reply::new(200, body.leak()));
            assert_eq!(sync(&plane, "push", "house", &leader).await.ok()["memory"]["version"], n + 1);
        }
        let kept = Link::open(&url_of(&server)).await.rows("SELECT CAST(version AS TEXT) FROM membridge_memories m ORDER BY m.version").await;
        let kept: Vec<_> = kept.into_iter().map(|row| row[0].clone().unwrap()).collect();
        assert_eq!(kept, (4..=13).map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(stub.seen(&path)[0].headers.get("x-membridge-agent").unwrap(), AGENT_KEY);
    }

    async fn a_damaged_snapshot_is_refused(database) {
        let plane = shared_plane(database);
        let stub = Stub::start().await;
        let project = unique("project");
        let leader = led_by(&plane, &project, &stub.url).await;
        let path = format!("/memory/{}", canonical_id(&project));
        for (answer, told) in [
            (SNAPSHOT.replace("bWVt", "bWVu"), "damaged"),
            (SNAPSHOT.replace(":3,", ":4,"), "damaged"),
            (SNAPSHOT.replace("bWVt", "?"), "not base64"),
            ("{}".to_owned(), "not a snapshot"),
        ] {
            stub.always(&path, Reply::new(200, answer.leak()));
            let refused = sync(&plane, "push", &project, &leader).await.expect(502).json();
            assert!(refused["detail"].as_str().unwrap().contains(told), "{refused}");
        }
        stub.always(&path, Reply::new(404, r#"{"error":"This agent keeps no memory"}"#));
        let refused = sync(&plane, "push", &project, &leader).await.expect(502).json();
        assert!(refused["detail"].as_str().unwrap().starts_with("Agent returned 404: "), "{refused}");
        assert_eq!(leadership(&plane, &project).await["memory_version"], 0);
    }

    async fn an_agent_with_another_key_is_told_with_the_settings(database) {
        let stub = Stub::start().await;
        stub.always(&format!("/memory/{}", canonical_id("house")), Reply::new(401, r#"{"error":"Unauthorized"}"#));
        for (key, told) in [(AGENT_KEY, "MEMBRIDGE_AGENT_KEY is another key than the agent's"), ("", "MEMBRIDGE_AGENT_KEY is not set")] {
            let server = plan(database).env("MEMBRIDGE_AGENT_KEY", key).start();
            let plane = admin(server.base());
            let leader = led_by(&plane, "house", &stub.url).await;
            let refused = sync(&plane, "push", "house", &leader).await.expect(502).json();
            let detail = refused["detail"].as_str().unwrap();
            assert!(detail.starts_with("Agent returned 401: ") && detail.contains(told) && detail.contains("--agent-key-file"), "{detail}");
        }
    }
}
