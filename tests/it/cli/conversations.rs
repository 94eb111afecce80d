//! `conversation list`, `describe` and `reset`.

use super::*;

#[test]
fn a_context_is_listed_described_and_reset() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let context = unique("a/talk");
        let task = crew.task().context(&context).prompt("what was said").create().await;
        let row = |text: &str| text.lines().find(|line| line.starts_with(&context)).map(str::to_owned);
        let listed = user.does(&["conversation", "list", "--limit", "10000"]).ends(0).out;
        assert!(
            listed.starts_with("CONTEXT") && row(&listed).is_some_and(|row| row.contains("1 queued") && row.contains("what was said")),
            "{listed}"
        );
        let described = user.does(&["conversation", "describe", &context]).ok();
        for text in [&format!("conversation reset {context}"), "Newest tasks:", "what was said", "1 queued"] {
            assert!(described.contains(text), "{text}: {described}");
        }
        let data = user.does(&["conversation", "describe", &context, "-o", "json"]).json();
        assert_eq!((&data["context"]["context_id"], &data["tasks"][0]["id"]), (&json!(context), &json!(task.id)));
        assert!(data["context"]["reset_at"].is_null());

        let listed = user.does(&["conversation", "list", "--limit", "10000", "-o", "json"]).json();
        assert!(listed[0].get("prompt").is_none(), "what programs read is as the server sent it: {}", listed[0]);
        let reset = user.does(&["conversation", "reset", &context, "-o", "json"]).json();
        assert!(reset["reset_at"].is_i64(), "{reset}");
        let said = user.does(&["conversation", "reset", &context, "nobody-talks"]).ends(1);
        assert!(
            row(&said.out).is_some() && said.err.contains("nobody-talks: No task belongs to this context"),
            "{} {}",
            said.out,
            said.err
        );
        user.does(&["conversation", "describe", "nobody-talks"]).ends(1);
        user.does(&["conversation", "reset"]).ends(2);
    });
}

/// The two commands whose names people mix up name each other.
#[test]
fn contexts_of_servers_and_of_tasks_are_told_apart() {
    let user = User::at(sqlite());
    assert!(user.does(&["context", "--help"]).ok().contains("for the conversations of tasks, see `conversation`"));
    assert!(user.does(&["conversation", "--help"]).ok().contains("The command `context` is about something else"));
    assert!(user.does(&["conversation", "reset", "--help"]).ok().contains("The files of the context stay"));
}

#[test]
fn a_failed_task_tells_of_its_context() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let task = crew.task().attempts(1).context("a-talk").create().await;
        let lease = task.lease_to(&worker).await;
        lease.complete("error", json!({ "error_message": "too long", "reason": "context_full" })).await.ok();
        let described = User::at(crew.api).does(&["task", "describe", &task.id]).ok();
        assert!(described.contains("bloom-runtime conversation reset a-talk"), "{described}");
    });
}
