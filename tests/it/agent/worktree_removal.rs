//! When worktrees go, and when they do not.

use super::worktrees::{failed, task, with_project, worktrees};
use super::*;
use crate::support::agent::Agent;

/// Lets the notes of all worktrees say that they were last used 30 days ago.
fn age(agent: &Agent) {
    for repository in std::fs::read_dir(agent.work_dir().join("repositories")).expect("repositories").flatten() {
        let notes = std::fs::read_dir(repository.path().join("contexts")).expect("notes").flatten();
        for note in notes.filter(|note| note.path().extension().is_some_and(|extension| extension == "json")) {
            let mut known: Value = serde_json::from_slice(&std::fs::read(note.path()).expect("a note")).expect("JSON");
            known["used_at"] = json!(now_ms() - 30 * 24 * 3_600_000);
            std::fs::write(note.path(), known.to_string()).expect("the note");
        }
    }
}

async fn are_left(agent: &Agent, count: usize) {
    eventually("worktrees are removed", || async { (worktrees(agent).len() == count).then_some(()) }).await;
}

#[test]
fn worktrees_go_by_age_but_not_under_a_run() {
    with_project(
        |plan| plan,
        async |server, _, agent| {
            let old = task(server, "old", "echo mine >mine").await;
            old.reaches("completed").await;
            let (latch, waits) = (Latch::new(), Tally::new());
            let running = task(server, "running", &format!("{}; {}; echo done", waits.mark(), latch.wait())).await;
            waits.reaches(1).await;
            agent.kill9();
            age(agent);
            agent.start_again();
            are_left(agent, 1).await;
            latch.open();
            running.reaches("completed").await;
            // The branch has stayed.
            let again = task(server, "old", "cat mine").await;
            again.reaches("completed").await;
            assert_eq!(result(&again).await["output"], json!("mine\n"));
        },
    );
}

#[test]
fn worktrees_go_by_room_and_with_their_tasks() {
    with_project(
        |plan| plan.env("BLOOM_MAX_WORKTREES_MIB", 3),
        async |server, _, agent| {
            for context in ["a", "b"] {
                let task = task(server, context, "head -c 2000000 /dev/urandom >large").await;
                task.reaches("completed").await;
            }
            assert_eq!(worktrees(agent).len(), 2);
            agent.kill9();
            agent.start_again();
            are_left(agent, 1).await;
            assert!(worktrees(agent)[0].file_name().unwrap().to_string_lossy().starts_with("b-"), "the newest stays");
            for task in server.get("llm-tasks").await.ok().as_array().unwrap() {
                server.delete(&format!("llm-tasks/{}", task["id"].as_str().unwrap())).await.ok();
            }
            agent.kill9();
            agent.start_again();
            are_left(agent, 0).await;
        },
    );
}

#[test]
fn removal_spares_what_is_not_committed() {
    with_project(
        |plan| plan.env("BLOOM_MAX_WORKTREES_MIB", 1).env("BLOOM_GRACE_SECONDS", 0),
        async |server, _, agent| {
            let fill = "head -c 2000000 /dev/urandom >large";
            let removed = task(server, "removed", fill).await;
            removed.reaches("completed").await;
            // Files of a context without a project, for which a project was asked in vain.
            let plain = server.crew().task().context("plain").prompt(fill).create().await;
            plain.reaches("completed").await;
            failed(&task(server, "plain", "true").await, "failed", "project", "files of runs without this project").await;
            let interrupted = task(server, "open", &format!("if [ -e large ]; then echo again; else {fill}; sleep 600; fi")).await;
            let left = |context: &str| {
                let contexts = std::fs::read_dir(agent.work_dir().join("contexts")).expect("contexts").flatten();
                contexts.map(|entry| entry.path()).find(|path| path.file_name().unwrap().to_string_lossy().starts_with(context))
            };
            let large = |context: &str| left(context).is_some_and(|dir| dir.join("large").exists());
            eventually("the run works", || async { large("open").then_some(()) }).await;
            server.poke("workers/box/drain").await.ok();
            interrupted.reaches("queued").await;
            agent.kill9();
            agent.start_again();
            eventually("a worktree is removed", || async { left("removed").is_none().then_some(()) }).await;
            eventually("a directory without a project is removed", || async { left("plain").is_none().then_some(()) }).await;
            assert!(large("open"));
            server.poke("workers/box/uncordon").await.ok();
            interrupted.reaches("completed").await;
            assert_eq!(result(&interrupted).await["output"], json!("again\n"));
        },
    );
}
