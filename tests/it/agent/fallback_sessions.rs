//! Conversations whose account is paused and whose fallback goes on: the real Claude CLI, with two accounts.

use super::*;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

const A: &str = "sk-ant-oat01-account-a";
const B: &str = "sk-ant-oat01-account-b";

/// An agent with a profile for each of two accounts.
fn plan(server: &Server, api: &Anthropic, config_dirs: [&str; 2]) -> agent::AgentPlan {
    plan_with(server, api, config_dirs, "")
}

fn plan_with(server: &Server, api: &Anthropic, config_dirs: [&str; 2], more: &str) -> agent::AgentPlan {
    let plan = server.agent("box");
    let dir = |name: &str| format!("CLAUDE_CONFIG_DIR = {:?}\n", plan.dir().join(name).display().to_string());
    let first = plan.claude_profile("default", api, A, &format!("account = \"a\"\nfallback = \"b\"\n{more}"));
    let second = plan.claude_profile("b", api, B, &format!("account = \"b\"\n{more}"));
    let profiles = format!("{first}{}{second}{}", dir(config_dirs[0]), dir(config_dirs[1]));
    plan.profiles(&profiles)
}

struct Said {
    /// What the API got: the whole conversation.
    messages: String,
    /// The text of the event that the session was lost.
    lost: Option<String>,
    profile: String,
}

async fn say(server: &Server, api: &Anthropic, word: &str) -> Said {
    let task = server.crew().task().context("talk").with("agent_slug", json!("writer")).prompt(&format!("SAY: {word}")).create().await;
    task.reaches("completed").await;
    assert_eq!(result(&task).await["output"], json!(word));
    let events = told(&task, "lifecycle").await;
    let lost = events.iter().find(|data| data["phase"] == json!("session_lost")).map(|data| data["text"].as_str().unwrap().to_owned());
    let started = events.iter().rfind(|data| data["phase"] == json!("started")).expect("a start");
    let messages = api.seen_with(&format!("SAY: {word}")).pop().expect("a request")["messages"].to_string();
    Said { messages, lost, profile: started["profile"].as_str().unwrap().to_owned() }
}

/// Lets the first account have quota again.
async fn reset(api: &Anthropic, agent: &agent::Agent) {
    api.heal();
    agent.kill9();
    std::fs::remove_file(agent.work_dir().join("accounts.json")).expect("the stored pauses");
    agent.start_again();
}

#[test]
fn another_configuration_directory_begins_a_new_conversation() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = plan(&server, &api, ["a", "b"]).start();
        assert_eq!(say(&server, &api, "one").await.lost, None);
        api.use_up(A);
        let two = say(&server, &api, "two").await;
        assert!(two.lost.is_some() && two.profile.starts_with("b,"), "{}", two.profile);
        assert!(!two.messages.contains("SAY: one"), "{}", two.messages);
        let three = say(&server, &api, "three").await;
        assert!(three.lost.is_none() && three.messages.contains("SAY: two"), "it goes on there: {}", three.messages);
        reset(&api, &agent).await;
        let four = say(&server, &api, "four").await;
        assert!(four.lost.is_some() && four.profile.starts_with("default"), "{}", four.profile);
        assert!(!four.messages.contains("SAY: one"), "the old conversation of the account lacks the newest messages: {}", four.messages);
        let five = say(&server, &api, "five").await;
        assert!(five.lost.is_none() && five.messages.contains("SAY: four"), "{}", five.messages);
    });
}

/// What was begun under the first account has no answer, so nothing is lost.
#[test]
fn a_conversation_that_never_was_is_not_lost() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let _agent = plan_with(&server, &api, ["a", "b"], "on_session_lost = \"fail\"").start();
        api.use_up(A);
        let first = say(&server, &api, "one").await;
        assert!(first.profile.starts_with("b,") && first.lost.is_none(), "{} {:?}", first.profile, first.lost);
    });
}

#[test]
fn one_configuration_directory_keeps_the_conversation() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = plan(&server, &api, ["both", "both"]).start();
        say(&server, &api, "one").await;
        api.use_up(A);
        let two = say(&server, &api, "two").await;
        assert!(two.profile.starts_with("b,"), "{}", two.profile);
        assert!(two.lost.is_none() && two.messages.contains("SAY: one"), "{}", two.messages);
        reset(&api, &agent).await;
        let three = say(&server, &api, "three").await;
        assert!(three.profile.starts_with("default"), "{}", three.profile);
        assert!(three.lost.is_none() && three.messages.contains("SAY: one") && three.messages.contains("SAY: two"), "{}", three.messages);
    });
}

#[test]
fn another_program_begins_a_new_conversation_and_says_so() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let program = janitor::new_path("claude");
        std::os::unix::fs::symlink(crate::support::claude::cli(), &program).expect("a link");
        let plan = plan(&server, &api, ["both", "both"]);
        let text = std::fs::read_to_string(plan.dir().join("profiles.toml")).unwrap();
        let (first, second) = text.split_once("[profiles.b]").unwrap();
        let own = format!("program = {:?}", crate::support::claude::cli().display().to_string());
        let second = second.replace(&own, &format!("program = {:?}", program.display().to_string()));
        let _agent = plan.profiles(&format!("{first}[profiles.b]{second}")).start();
        say(&server, &api, "one").await;
        api.use_up(A);
        let two = say(&server, &api, "two").await;
        assert!(two.lost.is_some_and(|lost| lost.contains("belongs to")) && !two.messages.contains("SAY: one"), "{}", two.messages);
    });
}
