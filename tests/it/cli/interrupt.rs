//! Ctrl-C: a command ends at once, and says what was done.

use std::fs;
use std::time::Duration;

use super::*;
use crate::support::stub::{Reply, Stub};

const BATCH: &str = "/api/runtime/llm-tasks:batch";

#[test]
fn reading_standard_input_is_interrupted() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        for flags in [&["-"][..], &["--prompt-file", "-"], &["--from", "-"], &["--from", "-", "--again"], &["a prompt"]] {
            let reading = user.holds(&[&["task", "submit", "--agent", &crew.slug], flags].concat());
            reading.interrupt();
            // Its pipe stays open until it has ended.
            let said = reading.done().complains(130);
            assert!(said.contains("interrupted; nothing was submitted"), "{flags:?}: {said}");
        }
        assert_eq!(crew.api.get(&format!("llm-tasks?agent_slug={}", crew.slug)).await.ok(), json!([]));
    });
}

#[test]
fn a_question_is_interrupted() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let queued = crew.task().create().await;
        let finished = crew.task().create().await;
        finished.cancel().await.ok();
        for command in [&["task", "cancel", "--agent", &crew.slug, "--status", "queued"][..], &["task", "delete", &finished.id]] {
            let mut asking = user.at_terminal(command);
            asking.prints("[y/N]").await;
            asking.types("\u{3}");
            asking.prints("interrupted; nothing was changed").await;
            let said = asking.done().ends(130).out;
            assert!(said.contains("nothing was changed"), "{command:?}: {said}");
        }
        assert_eq!((queued.status().await, finished.status().await), ("queued".into(), "cancelled".into()));
        queued.cancel().await.ok();
    });
}

/// A file with so many tasks, and the answer to a batch of a thousand of them.
fn thousands(user: &User, count: usize) -> Reply {
    let lines: String = (0..count * 1000).map(|number| format!("{{\"prompt\": \"{number}\"}}\n")).collect();
    fs::write(user.home.join("tasks.jsonl"), lines).unwrap();
    let one = r#"{"id": "00000000-0000-0000-0000-000000000000", "context_id": "c", "agent_slug": "a", "prompt": "p",
        "policy": {"timeout_sec": 60, "timeout_is_default": false, "budget": 0}, "desired_format": "text", "context_hints": [], "session": "none",
        "suspend": false, "push": "never", "inputs": [], "outputs": [], "status": "queued", "created_at": 0, "updated_at": 0, "attempts": 0,
        "max_attempts": 1, "priority": 5, "depends_on": [], "labels": {}, "infra_retries": 0, "cancel_requested": false}"#;
    let tasks: Vec<Value> = vec![serde_json::from_str(one).unwrap(); 1000];
    Reply::new(201, &json!({ "tasks": tasks, "existed": 0 }).to_string())
}

#[test]
fn a_file_is_checked_until_it_is_interrupted() {
    run(async {
        let stub = Stub::start().await;
        let user = User::new().with("BLOOM_SERVER", &stub.url);
        stub.always(BATCH, thousands(&user, 300));
        let running = user.starts(&["task", "submit", "--from", "tasks.jsonl", "--again"]);
        running.interrupt();
        let said = running.done().complains(130);
        assert!(said.contains("interrupted; nothing was submitted"), "{said}");
        assert!(stub.seen(BATCH).is_empty());
    });
}

#[test]
fn the_batch_under_way_is_acknowledged_and_no_other_is_sent() {
    run(async {
        for (flags, told) in [
            (&["--again"][..], "Remove the first 2,000 lines"),
            (&["-o", "json"], "Give the same command again to go on"),
            (&[], "Give the same command again to go on"),
        ] {
            let stub = Stub::start().await;
            let user = User::new().with("BLOOM_SERVER", &stub.url);
            let reply = thousands(&user, 5);
            stub.once(BATCH, reply.clone());
            // Long enough for the signal to arrive while the batch is under way.
            stub.once(BATCH, Reply { after: Duration::from_millis(1500), ..reply.clone() });
            stub.always(BATCH, reply);
            let running = user.starts(&[&["task", "submit", "--from", "tasks.jsonl"], flags].concat());
            eventually("the second batch", || async { (stub.seen(BATCH).len() == 2).then_some(()) }).await;
            running.interrupt();
            let done = running.done().ends(130);
            assert!(done.err.contains("interrupted: 2,000 of 5,000 lines were submitted.") && done.err.contains(told), "{}", done.err);
            assert_eq!(stub.seen(BATCH).len(), 2, "{flags:?}");
            assert_eq!(done.out.matches(NO_ID_OF_STUB).count(), 2000, "the ids of both batches are printed");
        }
    });
}

#[test]
fn a_batch_that_is_not_acknowledged_is_told() {
    run(async {
        let stub = Stub::start().await;
        let user = User::new().with("BLOOM_SERVER", &stub.url);
        let reply = thousands(&user, 3);
        stub.once(BATCH, reply.clone());
        stub.always(BATCH, Reply { after: Duration::from_secs(600), ..reply });
        let running = user.starts(&["task", "submit", "--from", "tasks.jsonl", "--again"]);
        eventually("the second batch", || async { (stub.seen(BATCH).len() == 2).then_some(()) }).await;
        running.interrupt();
        let done = running.done().ends(130);
        assert!(done.err.contains("interrupted: 1,000 of 3,000 lines were submitted, perhaps another batch."), "{}", done.err);
        assert!(done.err.contains("whether that batch exists. Remove the first 1,000 lines"), "{}", done.err);
        assert_eq!(done.out.lines().count(), 1000);
    });
}

const NO_ID_OF_STUB: &str = "00000000-0000-0000-0000-000000000000";
