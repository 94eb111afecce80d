//! Accounts that the API refuses, and profiles that do not start: the real Claude CLI against a stub of its API.

use super::claude::failure;
use super::*;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

const CREDENTIALS: (u16, &str, &str) = (401, "authentication_error", "invalid x-api-key");
const CREDIT: (u16, &str, &str) = (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.");

async fn status(server: &Server) -> Value {
    server.get("workers/box").await.json()["status"].clone()
}

async fn has_status(server: &Server, wanted: &str) {
    eventually(&format!("the worker is {wanted}"), || async { (status(server).await == json!(wanted)).then_some(()) }).await;
}

/// What the CLI does when a person signs in.
fn sign_in(agent: &agent::Agent) {
    let dir = agent.dir().join("home/.claude");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(".credentials.json"), "{}").unwrap();
}

#[test]
fn tasks_wait_until_somebody_has_signed_in() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        api.refuse_all(CREDENTIALS.0, CREDENTIALS.1, CREDENTIALS.2);
        let agent = server.agent("box").claude(&api, "").start();
        let mut tasks = Vec::new();
        for number in 0..3 {
            tasks.push(server.crew().task().prompt(&format!("SAY: {number}")).create().await);
        }
        has_status(&server, "error").await;
        for task in &tasks {
            let now = task.now().await;
            assert_eq!((&now["status"], &now["attempts"]), (&json!("queued"), &json!(0)), "{now}");
        }
        api.heal();
        sign_in(&agent);
        for task in &tasks {
            task.reaches("completed").await;
        }
        assert_eq!(status(&server).await, json!("online"));
        assert!(agent.log().contains("sign in with claude"), "{}", agent.log());
    });
}

#[test]
fn an_account_that_has_credit_again_goes_on_by_itself() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        api.refuse_all(CREDIT.0, CREDIT.1, CREDIT.2);
        let agent = server.agent("box").claude(&api, "").start();
        let task = server.crew().task().prompt("SAY: hello").attempts(1).create().await;
        has_status(&server, "error").await;
        assert_eq!(task.now().await["failure"]["reason"], json!("billing"));
        api.heal();
        task.reaches("completed").await;
        assert!(agent.log().contains("top it up"), "{}", agent.log());
    });
}

#[test]
fn a_model_that_the_account_may_not_use_fails_its_task_and_nothing_else() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let _agent = server.agent("box").claude(&api, "").start();
        for model in ["claude-forbidden-1", "claude-unknown-1"] {
            let task = server.crew().task().prompt("SAY: hello").with("model", json!(model)).create().await;
            let failed = failure(&task, "failed", "model_unavailable").await;
            assert_eq!(failed["attempts"], json!(1), "{failed}");
        }
        assert_eq!(status(&server).await, json!("online"));
        server.crew().task().prompt("SAY: hello").create().await.reaches("completed").await;
    });
}

#[test]
fn a_profile_whose_runs_do_not_start_costs_no_attempts() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let plan = server.agent("box");
        let config = plan.dir().join("mcp.json");
        std::fs::create_dir_all(plan.dir()).unwrap();
        std::fs::write(&config, "no JSON").unwrap();
        let agent = plan.claude(&api, &format!("mcp_config = {:?}", config.display().to_string())).start();
        let mut tasks = Vec::new();
        for _ in 0..3 {
            tasks.push(server.crew().task().prompt("SAY: hello").attempts(1).create().await);
        }
        has_status(&server, "error").await;
        eventually("the log says what to do", || async { agent.log().contains("the profile default end before they begin").then_some(()) })
            .await;
        std::fs::write(&config, r#"{"mcpServers":{}}"#).unwrap();
        for task in &tasks {
            let done = task.reaches("completed").await;
            assert_eq!(done["attempts"], json!(1), "{done}");
        }
        assert_eq!(status(&server).await, json!("online"));
    });
}
