//! Sessions that can't go on: the runs of their context begin a new one, and say so. With the real Claude CLI.

use super::claude::{failure, with};
use super::*;
use crate::support::claude::Anthropic;

async fn say<'a>(server: &'a Server, prompt: &str) -> Task<'a> {
    server.crew().task().context("talk").with("agent_slug", json!("writer")).prompt(prompt).create().await
}

async fn phases(task: &Task<'_>) -> Vec<Value> {
    told(task, "lifecycle").await.into_iter().map(|data| data["phase"].clone()).collect()
}

/// Makes the API refuse everything from now on that continues the conversation of the context.
async fn spoil(server: &Server) {
    say(server, "SPOILED SAY: one").await.reaches("completed").await;
}

fn messages(api: &Anthropic, prompt: &str) -> String {
    api.seen_with(prompt).pop().expect("a request")["messages"].to_string()
}

#[test]
fn a_conversation_that_the_api_refuses_is_replaced_after_two_failures() {
    with("", async |server, api, agent| {
        spoil(server).await;
        let task = say(server, "SAY: two").await;
        let done = task.reaches("completed").await;
        assert_eq!((&done["attempts"], &done["failure"]), (&json!(3), &Value::Null), "{done}");
        assert_eq!(phases(&task).await.iter().filter(|phase| **phase == json!("session_replaced")).count(), 1);
        let result = result(&task).await;
        let warning = result["warnings"][0].as_str().unwrap_or_default();
        assert!(
            warning.starts_with("the session can't go on: ") && warning.contains("knew nothing of what its context had said"),
            "{result}"
        );
        assert!(!messages(api, "SAY: two").contains("SPOILED"));
        agent.kill9();
        agent.start_again();
        let third = say(server, "SAY: three").await;
        third.reaches("completed").await;
        assert!(messages(api, "SAY: three").contains("SAY: two"), "the new conversation goes on");
    });
}

#[test]
fn a_first_prompt_that_is_too_long_spoils_no_later_task() {
    with("on_session_lost = \"fail\"", async |server, api, _| {
        let long = failure(&say(server, "MODE-TOO-LONG").await, "failed", "context_full").await;
        assert_eq!(long["attempts"], json!(1));
        let next = say(server, "SAY: two").await;
        assert_eq!(next.reaches("completed").await["attempts"], json!(1));
        assert_eq!(result(&next).await["warnings"], json!([]), "nothing had been said");
        assert!(!messages(api, "SAY: two").contains("MODE-TOO-LONG"));
    });
}

#[test]
fn a_profile_wants_no_new_session_before_a_person_says_so() {
    with("on_session_lost = \"fail\"", async |server, _, agent| {
        spoil(server).await;
        let failed = failure(&say(server, "SAY: two").await, "failed", "invalid_request").await;
        let why = failed["failure"]["message"].as_str().unwrap();
        assert!(why.contains("API Error: 400 messages.1: the history is not valid"), "{why}");
        assert!(why.contains("on_session_lost = \"fail\"") && why.contains("bloom-runtime conversation reset talk"), "{why}");
        server.poke("contexts/talk/reset").await.ok();
        say(server, "SAY: three").await.reaches("completed").await;

        let sessions = agent.work_dir().join("../home/.claude/projects");
        std::fs::remove_dir_all(sessions).expect("the CLI's sessions");
        let failed = failure(&say(server, "SAY: four").await, "failed", "agent_error").await;
        assert!(failed["failure"]["message"].as_str().unwrap().starts_with("the session no longer exists"), "{failed}");
    });
}
