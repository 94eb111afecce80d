//! When the directories of contexts without a project go, and when they do not.

use super::*;
use crate::support::agent::Agent;
use crate::support::{Database, Server};

/// The contexts that have a directory, by the beginning of their names.
fn contexts(agent: &Agent) -> Vec<String> {
    let entries = std::fs::read_dir(agent.work_dir().join("contexts")).expect("contexts").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().split('-').next().unwrap().to_owned()).collect();
    names.sort();
    names
}

async fn are_left(agent: &Agent, names: &[&str]) {
    eventually(&format!("{names:?} are left"), || async { (contexts(agent) == names).then_some(()) }).await;
}

/// Lets all notes say that the directories were last used 30 days ago.
fn age(agent: &Agent) {
    let notes = std::fs::read_dir(agent.work_dir().join("sessions")).expect("sessions").flatten();
    for note in notes.filter(|note| note.path().extension().is_some_and(|extension| extension == "used")) {
        let mut known: Value = serde_json::from_slice(&std::fs::read(note.path()).expect("a note")).expect("JSON");
        known["used_at"] = json!(now_ms() - 30 * 24 * 3_600_000);
        std::fs::write(note.path(), known.to_string()).expect("the note");
    }
}

async fn completed(server: &Server, context: &str, script: &str) -> String {
    let task = server.crew().task().context(context).prompt(script).create().await;
    task.reaches("completed").await;
    task.id.clone()
}

fn with_agent(
    plan: impl FnOnce(crate::support::agent::AgentPlan) -> crate::support::agent::AgentPlan,
    body: impl AsyncFnOnce(&Server, &Agent),
) {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = plan(server.agent("box").slots(2).shell()).start();
        body(&server, &agent).await;
        agent.has_no_processes().await;
    });
}

#[test]
fn they_go_with_their_tasks() {
    with_agent(
        |plan| plan,
        async |server, agent| {
            let gone = completed(server, "gone", "mkdir -m 500 closed; echo mine >mine").await;
            completed(server, "kept", "echo mine >mine").await;
            server.delete(&format!("llm-tasks/{gone}")).await.ok();
            agent.kill9();
            agent.start_again();
            are_left(agent, &["kept"]).await;
            eventually("nothing else of it is left", || async {
                let mut sessions = std::fs::read_dir(agent.work_dir().join("sessions")).expect("sessions").flatten();
                (!sessions.any(|entry| entry.file_name().to_string_lossy().starts_with("gone-"))).then_some(())
            })
            .await;
        },
    );
}

#[test]
fn they_go_by_age_but_not_under_a_run() {
    with_agent(
        |plan| plan,
        async |server, agent| {
            completed(server, "old", "echo mine >mine").await;
            let (latch, waits) = (Latch::new(), Tally::new());
            let script = format!("{}; {}; echo done", waits.mark(), latch.wait());
            let running = server.crew().task().context("running").prompt(&script).create().await;
            waits.reaches(1).await;
            agent.kill9();
            age(agent);
            agent.start_again();
            are_left(agent, &["running"]).await;
            latch.open();
            running.reaches("completed").await;
        },
    );
}

#[test]
fn those_unused_for_longest_go_for_want_of_room() {
    with_agent(
        |plan| plan.env("BLOOM_MAX_WORKTREES_MIB", 3),
        async |server, agent| {
            for context in ["a", "b"] {
                completed(server, context, "head -c 2000000 /dev/urandom >large").await;
            }
            assert_eq!(contexts(agent), ["a", "b"]);
            agent.kill9();
            agent.start_again();
            are_left(agent, &["b"]).await;
            // The context goes on in a new directory.
            completed(server, "a", "[ ! -e large ]").await;
        },
    );
}
