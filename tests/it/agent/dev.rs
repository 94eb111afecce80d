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
