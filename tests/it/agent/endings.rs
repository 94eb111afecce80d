//! What becomes of tasks whose runs the API refuses, or whose answers say nothing.

use super::claude::{failure, with};
use super::*;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

#[test]
fn what_another_attempt_would_meet_again_is_not_tried_again() {
    with("", async |server, api, _| {
        for (mode, reason) in [
            ("MODE-TOO-LONG", "context_full"),
            ("MODE-413", "context_full"),
            ("MODE-400", "invalid_request"),
            ("MODE-REFUSAL SAY: no", "refused"),
            ("MODE-THINK", "bad_output"),
        ] {
            let task = server.crew().task().prompt(mode).create().await;
            let failed = failure(&task, "failed", reason).await;
            assert_eq!(failed["attempts"], json!(1), "{mode}: {failed}");
        }
        // What passes is not taken for it.
        assert!(!api.seen().is_empty());
        server.crew().task().prompt("SAY: hello").create().await.reaches("completed").await;
    });
}

#[test]
fn a_gateway_that_refuses_one_prompt_pauses_nobody() {
    with("", async |server, _, _| {
        for model in [None, Some("claude-haiku-4-5")] {
            let task = model.into_iter().fold(server.crew().task().prompt("MODE-403"), |task, model| task.with("model", json!(model)));
            let failed = failure(&task.create().await, "failed", "invalid_request").await;
            assert_eq!(failed["attempts"], json!(1), "{failed}");
        }
        assert_eq!(server.get("workers/box").await.ok()["pauses"], Value::Null);
        server.crew().task().prompt("SAY: hello").create().await.reaches("completed").await;
    });
}

#[test]
fn a_run_that_is_stopped_while_the_api_refuses_it_ends_for_that_reason() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).env("LEASE_TTL_SECONDS", 900).start(), Anthropic::start().await);
        let agent = server.agent("box");
        // It asks again for longer than the run has time.
        let profile = agent
            .claude_profile("default", &api, "sk-ant-oat01-dummy", BootClock::PASSED)
            .replace("MAX_RETRIES = \"0\"", "MAX_RETRIES = \"10\"");
        let clock = BootClock::new();
        let agent = clock.of(agent.profiles(&profile)).start();
        api.refuse_all(500, "api_error", "a fault inside");
        let task = server.crew().task().prompt("SAY: hello").with("policy", json!({"timeout_sec": 600})).create().await;
        eventually("the CLI asks again", || async { (api.seen_with("SAY: hello").len() > 1).then_some(()) }).await;
        clock.advance(600);
        let waiting = eventually("the task is queued again", || async {
            let now = task.now().await;
            (now["failure"]["reason"] == json!("overloaded")).then_some(now)
        })
        .await;
        assert_eq!((&waiting["attempts"], &waiting["infra_retries"]), (&json!(0), &json!(1)), "{waiting}");
        task.cancel().await.ok();
        task.reaches("cancelled").await;
        agent.has_no_processes().await;
    });
}

#[test]
fn a_prompt_is_no_command_of_the_cli() {
    with("", async |server, api, _| {
        let task = server.crew().task().prompt("/help SAY: no command").create().await;
        task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("no command"));
        assert!(!api.seen_with("/help SAY").is_empty());
    });
}

#[test]
fn the_events_have_the_whole_answer_although_the_stream_broke_off() {
    with("", async |server, _, _| {
        let task = server.crew().task().prompt("MODE-BREAK SAY: a long way to go").create().await;
        task.reaches("completed").await;
        let texts: String = told(&task, "text").await.iter().map(|data| data["text"].as_str().unwrap().to_owned()).collect();
        assert!(texts.ends_with("a long way to go"), "{texts}");
    });
}

#[test]
fn tool_servers_that_do_not_start_are_told_with_the_result() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box");
        std::fs::create_dir_all(agent.dir()).unwrap();
        std::fs::write(agent.dir().join("mcp.json"), json!({"mcpServers": {"gone": {"command": "/nowhere/gone"}}}).to_string()).unwrap();
        let config = format!("mcp_config = {:?}", agent.dir().join("mcp.json").display().to_string());
        let agent = agent.claude(&api, &config).start();
        let task = server.crew().task().prompt("SAY: hello").create().await;
        task.reaches("completed").await;
        let expected = "the MCP server gone did not start; the run had none of its tools";
        assert_eq!(result(&task).await["warnings"], json!([expected]));
        assert!(told(&task, "log").await.iter().any(|data| data["text"] == json!(expected)));
        let user = crate::cli::User::at(&server);
        assert!(user.does(&["task", "describe", &task.id]).ok().contains(expected));
        agent.has_no_processes().await;
    });
}
