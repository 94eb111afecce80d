//! Files that runs get and leave.

use super::*;
use crate::on_both;
use crate::support::claude::Anthropic;
use crate::support::client::Api;
use crate::support::repository::{Repository, git};
use crate::support::{Database, Server};

/// Uploads a file, and returns its artifact.
async fn upload(server: &Api, name: &str, bytes: &[u8]) -> Value {
    server.post_bytes(&format!("artifacts?name={name}"), bytes.to_owned()).await.expect(201).json()
}

/// The names of the task's files of this type.
async fn files(task: &Task<'_>, kind: &str) -> Vec<String> {
    let artifacts = task.api.get(&format!("artifacts?task_id={}", task.id)).await.ok();
    let files = artifacts.as_array().unwrap().iter().filter(|artifact| artifact["type"] == json!(kind));
    let mut names: Vec<String> = files.map(|artifact| artifact["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

async fn content(task: &Task<'_>, name: &str) -> String {
    let artifacts = task.api.get(&format!("artifacts?task_id={}", task.id)).await.ok();
    let one = artifacts.as_array().unwrap().iter().find(|artifact| artifact["name"] == json!(name)).expect("the artifact").clone();
    task.api.get(&format!("artifacts/{}/content", one["id"].as_str().unwrap())).await.expect(200).text.clone()
}

on_both! { alone:
    async fn a_run_gets_files_and_leaves_some(database) {
        let server = Server::on(database).env("RUNTIME_API_KEY", "admin").env("RUNTIME_WORKER_KEY", "worker").start();
        let admin = server.with_key("admin");
        let agent = server.agent("box").env("BLOOM_KEY", "worker").shell().start();
        let large = "0123456789".repeat(100_000);
        let (small, large_one) = (upload(&admin, "a.txt", b"small\n").await, upload(&admin, "large.bin", large.as_bytes()).await);
        let inputs = json!([{ "artifact_id": small["id"] }, { "artifact_id": large_one["id"], "path": "deep/er/large.bin" }]);
        let script = "cat a.txt; wc -c <deep/er/large.bin; mkdir -p out/sub; cp deep/er/large.bin out/copy; echo one >out/sub/one; echo no >no; \
                      ln -s /etc/passwd out/link; exit 3";
        let plan = admin.crew().task().with("inputs", inputs).with("outputs", json!(["out/**"])).attempts(1).prompt(script);
        let task = plan.create().await;
        task.reaches("dead").await;
        assert!(told(&task, "text").await[0]["text"].as_str().unwrap().starts_with("small\n"));
        assert_eq!(files(&task, "OUTPUT").await, ["out/copy", "out/sub/one"], "also of a run that failed");
        assert_eq!(content(&task, "out/copy").await, large);
        assert_eq!(content(&task, "out/sub/one").await, "one\n");
        agent.has_no_processes().await;
    }

    async fn files_arrive_although_calls_fail_and_the_agent_is_killed(database) {
        let server = Server::on(database).start();
        let agent = server.agent("box").shell().start();
        let input = upload(&server, "a.txt", b"mine\n").await;
        let script = "cat a.txt >>seen; mkdir -p out; for i in $(seq 60); do echo $i >out/$i; done; echo done";
        let plan = server.crew().task().with("inputs", json!([{ "artifact_id": input["id"] }])).with("outputs", json!(["out/*"]));
        let task = plan.prompt(script).create().await;
        eventually("some files are stored", || async { (!files(&task, "OUTPUT").await.is_empty()).then_some(()) }).await;
        agent.kill9();
        agent.start_again();
        let done = task.reaches("completed").await;
        assert_eq!((files(&task, "OUTPUT").await.len(), &done["attempts"]), (60, &json!(1)), "each once, by one run");
        assert_eq!(result(&task).await["output"], json!("done\n"));
    }
}

fn with_agent(body: impl AsyncFnOnce(&Server, &crate::support::agent::Agent)) {
    run(async {
        let server = Server::on(Database::Sqlite).env("MAX_ARTIFACT_BYTES", 1 << 20).start();
        let agent = server.agent("box").shell().start();
        body(&server, &agent).await;
        agent.has_no_processes().await;
    });
}

#[test]
fn claude_reads_what_it_gets() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let _agent = server.agent("box").claude(&api, "allowed_tools = [\"Bash(*)\"]").start();
        let picture = upload(&server, "picture.png", b"\x89PNG\r\n\x1a\n").await;
        let prompt = "MODE-TOOL RUN: head -c 4 picture.png | tail -c 3 >kind.txt\nSAY: done";
        let plan = server.crew().task().with("inputs", json!([{ "artifact_id": picture["id"] }])).with("outputs", json!(["*.txt"]));
        let task = plan.prompt(prompt).create().await;
        task.reaches("completed").await;
        assert_eq!(content(&task, "kind.txt").await, "PNG");
    });
}

#[test]
fn an_input_that_has_no_place_fails_the_task() {
    with_agent(async |server, _| {
        let input = upload(server, "a.txt", b"new\n").await;
        let outside = janitor::new_path("outside");
        std::fs::create_dir_all(&outside).expect("a directory");
        let before =
            server.crew().task().context("c").prompt(&format!("echo >file; mkdir dir; ln -s {} link; echo old >a.txt", outside.display()));
        before.create().await.reaches("completed").await;
        for path in ["file/a.txt", "dir", "link/a.txt"] {
            let inputs = json!([{ "artifact_id": input["id"], "path": path }]);
            let task =
                server.crew().task().context("c").with("session", json!("none")).with("inputs", inputs).prompt("true").create().await;
            let failure = task.reaches("failed").await["failure"].clone();
            assert_eq!(failure["reason"], json!("bad_input"), "{path}: {failure}");
            assert!(failure["message"].as_str().unwrap().contains(path), "{failure}");
        }
        assert_eq!(std::fs::read_dir(&outside).expect("the directory").count(), 0, "nothing is written outside");
        // What has the name of an input gives way to it.
        let inputs = json!([{ "artifact_id": input["id"] }]);
        let task = server.crew().task().context("c").with("inputs", inputs).prompt("cat a.txt").create().await;
        task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("new\n"));
        let _ = std::fs::remove_dir_all(&outside);
    });
}

/// What the result of the task warns of first.
async fn warning(task: &Task<'_>) -> String {
    result(task).await["warnings"][0].as_str().unwrap_or_default().to_owned()
}

#[test]
fn outputs_that_can_not_be_stored_are_named() {
    with_agent(async |server, _| {
        let script = "echo small >small; head -c 2000000 /dev/zero >large; echo done";
        let task = server.crew().task().with("outputs", json!(["small", "large"])).prompt(script).create().await;
        task.reaches("completed").await;
        assert_eq!(files(&task, "OUTPUT").await, ["small"]);
        let lifecycle = told(&task, "lifecycle").await;
        let collected = lifecycle.iter().find(|data| data["phase"] == json!("collected")).expect("the event");
        assert!(collected["files"] == json!(1) && collected["text"].as_str().unwrap().contains("large (2000000 bytes): "), "{collected}");
        let artifacts = server.get(&format!("artifacts?task_id={}", task.id)).await.ok();
        let answer = artifacts.as_array().unwrap().iter().find(|artifact| artifact["type"] == json!("LLM_RESULT")).unwrap().clone();
        assert_eq!(answer["tags"], json!(["outputs_incomplete"]));
        assert!(warning(&task).await.contains("not kept: large (2000000 bytes): "));

        let none = server.crew().task().with("outputs", json!(["report.md"])).prompt("echo x >reprt.md").create().await;
        none.reaches("completed").await;
        assert_eq!(warning(&none).await, "no file matches the outputs: report.md");
        let kept = server.crew().task().with("outputs", json!(["*.md"])).prompt("echo x >report.md").create().await;
        kept.reaches("completed").await;
        assert_eq!(warning(&kept).await, "");
    });
}

#[test]
fn inputs_are_not_committed() {
    run(async {
        let (server, repository) = (Server::on(Database::Sqlite).start(), Repository::serve());
        repository.add_to(&server).await;
        let _agent = repository.known_to(server.agent("box")).shell().start();
        let (new, known) = (upload(&server, "odd%20%5Bname%5D.txt", b"new\n").await, upload(&server, "file", b"replaced\n").await);
        assert_eq!(new["name"], json!("odd [name].txt"));
        let inputs = json!([{ "artifact_id": new["id"] }, { "artifact_id": known["id"] }]);
        let plan = server.crew().task().with("project", json!("site")).with("inputs", inputs).with("push", json!("branch")).context("c");
        let task = plan.prompt("cat odd*; echo mine >mine").create().await;
        task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("new\n"));
        assert_eq!(git(&repository.bare(), &["ls-tree", "--name-only", "bloom/c"]), "file\nmine");
        assert_eq!(git(&repository.bare(), &["show", "bloom/c:file"]), "replaced", "it is a change of the project's file");
        // What a later run makes of it is its work.
        let plan = server.crew().task().with("project", json!("site")).with("push", json!("branch")).context("c");
        let later = plan.prompt("echo more >>\"odd [name].txt\"").create().await;
        later.reaches("completed").await;
        assert_eq!(git(&repository.bare(), &["show", "bloom/c:odd [name].txt"]), "new\nmore");
    });
}
