//! The real Claude CLI against a stub of its API.

use super::*;
use crate::on_both;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

on_both! { alone:
    async fn a_conversation_goes_on(database) {
        let (server, api) = (Server::on(database).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "").start();
        let other = server.agent("other").claude(&api, "").start();
        let crew = server.crew();
        let first = crew.task().context("talk").prompt("Remember the word SAY: Kestrel").create().await;
        let done = first.reaches("completed").await;
        assert_eq!(result(&first).await["output"], json!("Kestrel"));
        assert!(done["session_id"].is_string());
        assert!(done["usage"]["input_tokens"].as_i64().unwrap() >= 10 && done["usage"]["cost_usd"].as_f64().unwrap() > 0.0, "{done}");
        let texts: String = told(&first, "text").await.iter().map(|data| data["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(texts, "Kestrel", "the text is sent as it arrives, and once");
        assert!(!told(&first, "usage").await.is_empty());

        let second = crew.task().context("talk").prompt("Which word?").create().await;
        let again = second.reaches("completed").await;
        assert_eq!((&again["session_id"], &again["worker_id"]), (&done["session_id"], &done["worker_id"]));
        let request = api.seen_with("Which word?").pop().expect("a request");
        assert!(request["messages"].to_string().contains("Remember the word"), "the first turn is part of it: {}", request["messages"]);

        let alone = crew.task().context("talk").with("session", json!("none")).prompt("What now?").create().await;
        assert_ne!(alone.reaches("completed").await["session_id"], done["session_id"]);
        assert!(!api.seen_with("What now?").pop().unwrap()["messages"].to_string().contains("Remember"));
        for agent in [agent, other] {
            agent.has_no_processes().await;
        }
    }

    async fn it_is_killed_in_the_middle_and_resumed(database) {
        let (server, api) = (Server::on(database).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "").start();
        let task = server.crew().task().context("talk").prompt("MODE-WAIT SAY: Kestrel").create().await;
        eventually("the CLI calls its API", || async { (!api.seen_with("MODE-WAIT").is_empty()).then_some(()) }).await;
        agent.kill9();
        agent.kill_processes();
        agent.has_no_processes().await;
        agent.start_again();
        api.go_on();
        let done = task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("Kestrel"));
        assert_eq!((&done["infra_retries"], answers(&task).await), (&json!(1), 1));
        let started = told(&task, "lifecycle").await;
        assert!(started.iter().any(|data| data["phase"] == json!("started") && data["resumed"] == json!(true)), "{started:?}");
        agent.has_no_processes().await;
    }
}

pub(super) fn with(profile: &str, body: impl AsyncFnOnce(&Server, &Anthropic, &agent::Agent)) {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).keyed().start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, profile).start();
        body(&server, &api, &agent).await;
        agent.has_no_processes().await;
    });
}

pub async fn failure(task: &Task<'_>, status: &str, reason: &str) -> Value {
    let ended = task.reaches(status).await;
    assert_eq!(ended["failure"]["reason"], json!(reason), "{ended}");
    ended
}

#[test]
fn it_goes_on_while_its_agent_is_gone() {
    with("", async |server, api, agent| {
        let task = server.crew().task().prompt("MODE-WAIT SAY: Kestrel").create().await;
        eventually("the CLI calls its API", || async { (!api.seen_with("MODE-WAIT").is_empty()).then_some(()) }).await;
        agent.kill9();
        api.go_on();
        agent.has_no_processes().await;
        agent.start_again();
        let done = task.reaches("completed").await;
        assert_eq!((done["attempts"].as_i64(), api.seen_with("MODE-WAIT").len()), (Some(1), 1), "the API was called once");
        assert_eq!(result(&task).await["output"], json!("Kestrel"));
    });
}

#[test]
fn json_is_what_was_asked_for() {
    with("", async |server, _, _| {
        let ask = async |prompt: &str| server.crew().task().with("desired_format", json!("json")).prompt(prompt).create().await;
        let good = ask("SAY: {\"bird\": \"kestrel\"}").await;
        good.reaches("completed").await;
        assert_eq!(result(&good).await["output"], json!("{\"bird\": \"kestrel\"}"));
        let bad = ask("SAY: a kestrel").await;
        failure(&bad, "failed", "bad_output").await;
        assert_eq!(result(&bad).await["output"], json!("a kestrel"));
    });
}

#[test]
fn tools_are_used_where_they_are_allowed() {
    with("allowed_tools = [\"Bash(echo *)\"]", async |server, _, _| {
        let task = server.crew().task().prompt("MODE-TOOL RUN: echo from-a-tool\nSAY: done").create().await;
        task.reaches("completed").await;
        let (uses, results) = (told(&task, "tool_use").await, told(&task, "tool_result").await);
        assert_eq!(uses[0]["input"]["command"], json!("echo from-a-tool"));
        assert!(results[0].to_string().contains("from-a-tool") && results[0]["is_error"] == json!(false), "{results:?}");
        let denied = server.crew().task().prompt("MODE-TOOL RUN: touch denied\nSAY: done").create().await;
        denied.reaches("completed").await;
        let artifacts = server.get(&format!("artifacts?task_id={}", denied.id)).await.ok();
        assert_eq!(artifacts[0]["tags"], json!(["tools_denied"]));
        let warning = "the tool Bash was denied (touch denied): to allow it, set allowed_tools = [\"Bash(touch *)\"] in the profile of its agent; \
                       ask_human = true has a person asked";
        assert_eq!(result(&denied).await["warnings"], json!([warning]));
        let denials = told(&denied, "permission_denied").await;
        assert_eq!((&denials[0]["name"], &denials[0]["input"]["command"]), (&json!("Bash"), &json!("touch denied")), "{denials:?}");
    });
}

#[test]
fn a_quota_that_is_used_up_pauses_the_account() {
    with("", async |server, api, agent| {
        let task = server.crew().task().prompt("MODE-429").create().await;
        let waiting = eventually("the task is queued again", || async {
            let now = task.now().await;
            (now["failure"]["reason"] == json!("rate_limited")).then_some(now)
        })
        .await;
        assert_eq!((&waiting["status"], &waiting["attempts"], &waiting["infra_retries"]), (&json!("queued"), &json!(0), &json!(1)));
        let worker = server.get("workers/box").await.ok();
        let (until, hour) = (worker["pauses"][0]["until"].as_i64().unwrap(), 3_600_000);
        assert!((now_ms()..now_ms() + hour / 2).contains(&until), "it is tried long before the quota resets in an hour: {worker}");
        assert_eq!((&worker["status"], &worker["pauses"][0]["cause"]), (&json!("syncing"), &json!("quota")));
        eventually("the task waits for another worker", || async {
            let waiting = task.now().await["waiting"].clone();
            (waiting["reason"] == json!("worker_paused") && waiting.to_string().contains("is out of quota")).then_some(())
        })
        .await;
        let other = server.crew().task().prompt("SAY: hello").create().await;
        agent.kill9();
        agent.start_again();
        eventually("the agent registers again", || async { agent.log().matches("registered").nth(1).map(drop) }).await;
        assert_eq!(server.get("workers/box").await.ok()["status"], json!("syncing"));
        assert_eq!((other.status().await.as_str(), api.seen_with("SAY: hello").len()), ("queued", 0));
    });
}

#[test]
fn an_overloaded_api_costs_no_attempt() {
    with("", async |server, api, _| {
        let task = server.crew().task().prompt("MODE-529 SAY: Kestrel").create().await;
        let waiting = eventually("the task is queued again", || async {
            let now = task.now().await;
            (now["failure"]["reason"] == json!("overloaded")).then_some(now)
        })
        .await;
        assert_eq!((&waiting["attempts"], &waiting["infra_retries"]), (&json!(0), &json!(1)));
        api.heal();
        task.reaches("completed").await;
    });
}

#[test]
fn garbage_from_the_api_is_a_failure() {
    with("", async |server, _, _| {
        let task = server.crew().task().prompt("MODE-GARBAGE").attempts(1).create().await;
        let dead = task.reaches("dead").await;
        assert!(["agent_error", "overloaded"].contains(&dead["failure"]["reason"].as_str().unwrap()), "{dead}");
    });
}

#[test]
fn a_stream_that_stalls() {
    run(async {
        let (api, clock) = (Anthropic::start().await, BootClock::new());
        let server = Server::on(Database::Sqlite).env("LEASE_TTL_SECONDS", 900).start();
        let agent = clock.of(server.agent("box").claude(&api, &format!("stall_seconds = 300\n{}", BootClock::PASSED))).start();
        let task =
            server.crew().task().prompt("MODE-WAIT SAY: Kestrel").with("policy", json!({"timeout_sec": 600})).attempts(1).create().await;
        has_begun(&task).await;
        clock.advance(300);
        failure(&task, "dead", "stalled").await;
        agent.has_no_processes().await;
    });
}

#[test]
fn a_slow_one_that_is_cancelled() {
    with("", async |server, api, _| {
        let task = server.crew().task().prompt("MODE-WAIT SAY: Kestrel").create().await;
        eventually("the CLI calls its API", || async { (!api.seen_with("MODE-WAIT").is_empty()).then_some(()) }).await;
        task.cancel().await.ok();
        failure(&task, "cancelled", "cancelled").await;
    });
}

#[test]
fn a_run_that_costs_more_than_it_may() {
    with("allowed_tools = [\"Bash\"]", async |server, _, _| {
        let task =
            server.crew().task().prompt("MODE-EXPENSIVE MODE-TOOL RUN: true\nSAY: x").with("policy", json!({"budget": 0.5})).create().await;
        let failed = failure(&task, "failed", "budget_exceeded").await;
        assert!(failed["usage"]["cost_usd"].as_f64().unwrap() > 0.5, "the cost is reported: {failed}");
    });
}

#[test]
fn a_session_that_is_gone_starts_afresh() {
    with("", async |server, _, agent| {
        let crew = server.crew();
        crew.task().context("talk").prompt("SAY: one").create().await.reaches("completed").await;
        let sessions = agent.work_dir().join("../home/.claude/projects");
        std::fs::remove_dir_all(sessions).expect("the CLI's sessions");
        let second = crew.task().context("talk").prompt("SAY: two").create().await;
        second.reaches("completed").await;
        assert_eq!(result(&second).await["output"], json!("two"));
        assert!(told(&second, "lifecycle").await.iter().any(|data| data["phase"] == json!("session_lost")));
    });
}

#[test]
fn mentions_attach_nothing_from_outside() {
    with("", async |server, api, agent| {
        server.crew().task().context("talk").prompt("SAY: hello").create().await.reaches("completed").await;
        let context = std::fs::read_dir(agent.work_dir().join("contexts")).unwrap().next().expect("its directory").unwrap().path();
        let secret = agent.work_dir().join("secret");
        std::fs::write(&secret, "from-outside").unwrap();
        std::fs::write(context.join("inside"), "from-inside").unwrap();
        std::os::unix::fs::symlink(&secret, context.join("link")).unwrap();
        let note = format!("look at @{0}, @\"{0}\",\n@link, @link#L1 @link#L1-2#x and @inside; mail a@b.example", secret.display());
        std::fs::write(context.join("note"), &note).unwrap();
        let ask = async |prompt: &str, hints: Value| {
            let task = server.crew().task().context("talk").prompt(prompt).with("context_hints", hints).create().await;
            task.reaches("completed").await;
            api.seen().pop().expect("a request")["messages"].to_string()
        };
        let messages = ask("SAY: one", json!(["note"])).await;
        assert!(messages.contains("from-inside") && messages.contains("mail a@b.example"), "{messages}");
        assert!(!messages.contains("from-outside"), "{messages}");
        let messages = ask(&format!("SAY: three, and {note}"), json!([])).await;
        assert!(messages.contains("from-inside") && !messages.contains("from-outside"), "in the prompt itself: {messages}");
        let refused = server.crew().task().context("talk").prompt("SAY: two").with("context_hints", json!(["@link#L1"])).create().await;
        failure(&refused, "failed", "agent_error").await;
    });
}

#[test]
fn options_that_the_cli_refuses_stop_the_start() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        for (options, parts) in [
            ("permission_mode = \"acceptEdit\"", ["acceptEdit", "acceptEdits"]),
            ("args = [\"--effrot=low\"]", ["unknown option", "--effrot"]),
        ] {
            let (code, said) = server.agent("box").claude(&api, options).start_in_vain();
            assert!(code == Some(1) && said.contains("profile default: ") && parts.iter().all(|part| said.contains(part)), "{said}");
        }
        assert!(api.seen().is_empty(), "{:?}", api.seen());
    });
}
