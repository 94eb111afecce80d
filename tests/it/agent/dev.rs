//! `dev`: a server and an agent without any configuration.

use super::*;
use crate::support::{Database, Server};

#[test]
fn a_person_submits_and_sees_the_answer() {
    run(async {
        let server = Server::on(Database::Sqlite).words(&["dev"]).env("PATH", "/usr/bin:/bin").start();
        eventually("it prints the next command", || async { server.log().contains("task submit").then_some(()) }).await;
        let said = server.log();
        assert!(said.contains("tasks run on the echo runner") && said.contains("npm install -g @anthropic-ai/claude-code"), "{said}");
        let next = said.lines().find(|line| line.contains("task submit")).unwrap().trim().to_owned();
        let (_, words) = next.split_once(" task submit").unwrap();
        let command = format!("exec '{}' task submit{words}", server::BINARY);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &command]).env_clear().env("HOME", server.data_dir()).stdout(std::process::Stdio::piped());
        let answer = tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
        assert!(answer.status.success(), "{next}");
        assert_eq!(String::from_utf8_lossy(&answer.stdout), "Say hello\n");
        assert!(server.stop().success());
    });
}

#[test]
fn a_second_dev_on_one_database_needs_another_name() {
    run(async {
        let first = Server::on(Database::Postgres).words(&["dev"]).env("BLOOM_RUNNER", "echo").start();
        eventually("its agent has the name", || async { (first.get("workers/dev").await.status == 200).then_some(()) }).await;
        let second = || Server::on_url(&first.database_url()).words(&["dev"]).env("BLOOM_RUNNER", "echo");
        let refused = second().start();
        eventually("it says what to do", || async { refused.log().contains("Another agent runs as worker 'dev'").then_some(()) }).await;
        assert!(refused.log().contains("(--name)"), "{}", refused.log());
        assert_eq!(refused.wait_for_end().code(), Some(1));
        let named = second().env("BLOOM_AGENT_NAME", "other").start();
        let is_online = || async { (first.get("workers/other").await.status == 200).then_some(()) };
        eventually("the second one works under its own name", is_online).await;
        assert!(named.stop().success() && first.stop().success());
    });
}
