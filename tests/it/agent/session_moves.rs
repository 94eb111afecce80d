//! Conversations whose runs change workers, wait for one another, or outlive their agent. With the real Claude CLI.

use super::claude::failure;
use super::*;
use crate::on_both;
use crate::support::agent::AgentPlan;
use crate::support::claude::Anthropic;
use crate::support::proxy::Proxy;
use crate::support::{Database, Server};

/// A run of the conversation.
struct Said {
    /// What the API got: the whole conversation.
    messages: String,
    /// The text of the event that the session was lost.
    lost: Option<String>,
    warnings: String,
}

async fn lost(task: &Task<'_>) -> Option<String> {
    let events = told(task, "lifecycle").await;
    events.iter().find(|data| data["phase"] == json!("session_lost")).map(|data| data["text"].as_str().unwrap().to_owned())
}

async fn say<'a>(server: &'a Server, prompt: &str) -> Task<'a> {
    server.crew().task().context("talk").with("agent_slug", json!("writer")).prompt(prompt).create().await
}

async fn said(server: &Server, api: &Anthropic, word: &str) -> Said {
    let task = say(server, &format!("SAY: {word}")).await;
    task.reaches("completed").await;
    let messages = api.seen_with(&format!("SAY: {word}")).pop().expect("a request")["messages"].to_string();
    Said { messages, lost: lost(&task).await, warnings: result(&task).await["warnings"].to_string() }
}

/// Has the tasks from now on run at one of the two workers.
async fn only(server: &Server, worker: &str) {
    let other = if worker == "one" { "two" } else { "one" };
    server.poke(&format!("workers/{other}/cordon")).await.ok();
    server.poke(&format!("workers/{worker}/uncordon")).await.ok();
}

on_both! { alone:
    async fn a_conversation_that_went_on_elsewhere_is_not_continued_without_its_end(database) {
        let (server, api) = (Server::on(database).start(), Anthropic::start().await);
        let _one = server.agent("one").claude(&api, "").start();
        let first = said(&server, &api, "AAA").await;
        assert_eq!((first.lost, first.warnings.as_str()), (None, "[]"));
        let _two = server.agent("two").claude(&api, "").start();
        eventually("the second worker", || async { (server.get("workers/two").await.status == 200).then_some(()) }).await;
        only(&server, "two").await;
        let second = said(&server, &api, "BBB").await;
        assert!(second.lost.is_some_and(|why| why.contains("which this worker does not have")), "{}", second.warnings);
        assert!(second.warnings.contains("knew nothing of what its context had said"), "{}", second.warnings);
        let next = said(&server, &api, "bbb").await;
        assert!(next.lost.is_none() && next.messages.contains("SAY: BBB"), "it goes on there: {}", next.messages);
        only(&server, "one").await;
        let third = said(&server, &api, "CCC").await;
        assert!(!third.messages.contains("SAY: AAA"), "the old session lacks the newer turns: {}", third.messages);
        assert!(third.lost.is_some() && third.warnings.contains("which this worker does not have"), "{}", third.warnings);
        let last = said(&server, &api, "DDD").await;
        assert!(last.lost.is_none() && last.messages.contains("SAY: CCC"), "{}", last.messages);
        server.poke("contexts/talk/reset").await.ok();
        only(&server, "two").await;
        let anew = said(&server, &api, "EEE").await;
        assert_eq!((anew.lost, anew.warnings.as_str()), (None, "[]"), "a person has ended it");
        only(&server, "one").await;
        let last = said(&server, &api, "FFF").await;
        assert!(last.lost.is_some() && !last.messages.contains("SAY: DDD"), "{}", last.messages);
    }
}

#[test]
fn a_profile_that_wants_no_new_session_does_not_run_without_the_conversation() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let _one = server.agent("one").claude(&api, "on_session_lost = \"fail\"").start();
        said(&server, &api, "AAA").await;
        let _two = server.agent("two").claude(&api, "on_session_lost = \"fail\"").start();
        eventually("the second worker", || async { (server.get("workers/two").await.status == 200).then_some(()) }).await;
        only(&server, "two").await;
        let failed = failure(&say(&server, "SAY: BBB").await, "failed", "agent_error").await;
        let why = failed["failure"]["message"].as_str().unwrap();
        assert!(why.contains("which this worker does not have") && why.contains("conversation reset talk"), "{why}");
        only(&server, "one").await;
        let third = said(&server, &api, "CCC").await;
        assert!(third.messages.contains("SAY: AAA") && third.lost.is_none(), "nothing was said elsewhere: {}", third.messages);
    });
}

/// A task that did not answer anywhere has no conversation that a worker could lack.
#[test]
fn a_first_task_that_changes_workers_has_lost_nothing() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let one = server.agent("one").claude(&api, "account = \"a\"\non_session_lost = \"fail\"").start();
        api.use_up("sk-ant-oat01-dummy");
        let task = say(&server, "SAY: AAA").await;
        eventually("the first attempt", || async { (task.now().await["failure"]["reason"] == json!("rate_limited")).then_some(()) }).await;
        one.stop();
        api.heal();
        let _two = server.agent("two").claude(&api, "on_session_lost = \"fail\"").start();
        task.reaches("completed").await;
        assert_eq!((lost(&task).await, result(&task).await["warnings"].clone()), (None, json!([])));
    });
}

#[test]
fn runs_that_wait_for_one_another_continue_one_conversation() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).env("MEMBRIDGE_AGENT_KEY", "key").start(), Anthropic::start().await);
        let agent = server.agent("box").slots(3).claude(&api, "").env("MEMBRIDGE_AGENT_KEY", "key");
        let agent = agent.arg(&["--listen", "127.0.0.1:0", "--push-only"]).start();
        eventually("the agent is registered", || async { (server.get("workers/box").await.status == 200).then_some(()) }).await;
        server.post("workers", json!({"name": "box", "dispatch": "manual"})).await.ok();
        let ask =
            |prompt: &str, session: &str| server.crew().task().context("talk").with("session", json!(session)).prompt(prompt).create();
        let dispatch = async |task: &Task<'_>| server.post(&task.path("/dispatch"), json!({"worker_id": "box"})).await.ok();
        let before = ask("MODE-WAIT SAY: zero", "none").await;
        dispatch(&before).await;
        eventually("the CLI calls its API", || async { (!api.seen_with("SAY: zero").is_empty()).then_some(()) }).await;
        let (first, second) = (ask("SAY: one", "context").await, ask("SAY: two", "context").await);
        dispatch(&first).await;
        dispatch(&second).await;
        eventually("both wait for the run", || async { (agent.kept_runs() == 3).then_some(()) }).await;
        api.go_on();
        first.reaches("completed").await;
        second.reaches("completed").await;
        let messages = api.seen_with("SAY: two").pop().expect("a request")["messages"].to_string();
        assert!(messages.contains("SAY: one"), "{messages}");
        assert_eq!(lost(&second).await, None);
    });
}

#[test]
fn a_refusal_counts_once_however_often_the_agent_dies() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let line = Proxy::start(server.base()).await;
        let agent = AgentPlan::at(&line.url, "box").claude(&api, "").start();
        say(&server, "SPOILED SAY: one").await.reaches("completed").await;
        let dir = std::fs::read_dir(agent.work_dir().join("contexts")).unwrap().next().expect("its directory").unwrap().path();
        std::fs::write(dir.join("out"), "x").unwrap();
        let upload = "POST /api/runtime/artifacts";
        line.hold_answers_from(upload);
        let task = server.crew().task().context("talk").with("agent_slug", json!("writer")).with("outputs", json!(["out"]));
        let task = task.prompt("SAY: two").attempts(5).create().await;
        for round in 0..2 {
            line.has_caught().await;
            agent.kill9();
            line.release();
            if round == 0 {
                line.hold_answers_from(upload);
            }
            agent.start_again();
            if round == 0 {
                // Its own files are sent again, and held again.
                line.has_caught().await;
                line.release();
                eventually("the first refusal", || async { (task.now().await["attempts"] == json!(1)).then_some(()) }).await;
                line.hold_answers_from(upload);
            }
        }
        let done = task.reaches("completed").await;
        assert_eq!(done["attempts"], json!(3), "{done}");
    });
}

#[test]
fn a_run_that_began_the_session_stays_the_one_that_began_it() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "allowed_tools = [\"Bash\"]").start();
        let (tally, latch) = (Tally::new(), Latch::new());
        let task = say(&server, &format!("MODE-TOOL RUN: {}; {}\nSAY: one", tally.mark(), latch.wait())).await;
        tally.reaches(1).await;
        agent.kill9();
        agent.start_again();
        eventually("the agent continues the run", || async { agent.log().contains("continuing an earlier run").then_some(()) }).await;
        api.refuse_all(400, "invalid_request_error", "messages.1: the history is not valid");
        latch.open();
        let failed = failure(&task, "failed", "invalid_request").await;
        assert_eq!(failed["attempts"], json!(1), "{failed}");
    });
}
