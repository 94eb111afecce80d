//! The program's commands, how it starts and how it ends.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

#[allow(dead_code, reason = "its main is called when the program is built")]
#[path = "../../src/build.rs"]
mod build;

use crate::on_both;
use crate::support::*;

fn program(arguments: &[&str]) -> Output {
    Command::new(server::BINARY).env_clear().args(arguments).stdin(Stdio::null()).output().expect("the program runs")
}

fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What a build for release does; that of the tests names no commit.
#[test]
fn the_version_has_the_commit_of_its_own_repository_only() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    assert_eq!(build::version("1.2.3", Some(commit)), "1.2.3 (0123456789ab)");
    for none in [None, Some("v1.2.3"), Some("0123"), Some("$(git rev-parse HEAD)")] {
        assert_eq!(build::version("1.2.3", none), "1.2.3");
    }
    let repository = tempfile::tempdir().unwrap();
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(repository.path()).args(words).output().expect("git runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "--quiet"]);
    assert_eq!(build::head(repository.path()), None, "without a commit");
    git(&["-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--quiet", "--allow-empty", "--message=first"]);
    let (commit, log) = build::head(repository.path()).unwrap();
    assert_eq!(commit, git(&["rev-parse", "HEAD"]));
    assert!(std::fs::read_to_string(log).unwrap().contains(&commit), "it changes with the next commit");
    let unpacked = repository.path().join("bloom-runtime-1.2.3");
    std::fs::create_dir(&unpacked).unwrap();
    assert_eq!(build::head(&unpacked), None, "the commit is that of something else");
}

#[test]
fn the_version_and_the_help_are_told() {
    let version = program(&["--version"]);
    assert!(version.status.success());
    let commit = option_env!("SOURCE_COMMIT").filter(|commit| !commit.is_empty());
    assert_eq!(words(&version).trim(), format!("bloom-runtime {}", build::version(env!("CARGO_PKG_VERSION"), commit)));
    let help = program(&["--help"]);
    assert!(help.status.success());
    for command in ["serve", "migrate", "openapi", "config", "completions"] {
        assert!(words(&help).contains(command), "{command}: {}", words(&help));
        assert!(program(&[command, "--help"]).status.success(), "{command}");
    }
}

#[test]
fn a_command_that_does_not_exist_is_a_mistake_of_usage() {
    assert_eq!(program(&["dance"]).status.code(), Some(2));
    assert_eq!(program(&["serve", "--no-such-flag"]).status.code(), Some(2));
}

#[test]
fn completions_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let output = program(&["completions", shell]);
        assert!(output.status.success() && words(&output).contains("bloom-runtime"), "{shell}");
    }
}

#[test]
fn openapi_is_printed_without_a_server() {
    let output = program(&["openapi"]);
    assert!(output.status.success(), "{}", words(&output));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
}

#[test]
fn a_database_that_cannot_be_reached_is_told() {
    let url = format!("postgres://bloom@127.0.0.1:{}/bloom", janitor::free_port());
    let output = Server::on_url(&url).start_in_vain();
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    let said = words(&output);
    assert!(said.contains("DATABASE_URL") || said.to_lowercase().contains("postgresql"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_port_in_use_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = Server::on(Database::Sqlite).env("PORT", port).start_in_vain();
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).contains(&port.to_string()), "{}", words(&output));
}

#[test]
fn a_second_server_on_one_sqlite_file_refuses_to_start() {
    let first = Server::on(Database::Sqlite).start();
    let output = first.plan().clone().start_in_vain();
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).contains(&first.pid().to_string()), "the error names the process that uses the file: {}", words(&output));
    run(async { first.get("stats").await.ok() });
    first.kill9();
    first.start_again();
    run(async { first.get("stats").await.ok() });
}

#[test]
fn the_start_says_where_it_listens_and_what_to_do_next() {
    let server = Server::on(Database::Sqlite).start();
    let next = format!("bloom-runtime agent --server {}", server.base());
    run(eventually("the start prints the next command", || async { server.log().contains(&next).then_some(()) }));
}

on_both! { alone:
    async fn a_stop_is_graceful_and_nothing_is_lost(database) {
        let server = Server::on(database).start();
        let task = server.crew().task().create().await.id;
        let end = server.stop();
        assert_eq!(end.code(), Some(0), "{}", server.log());
        server.start_again();
        assert_eq!(server.task(&task).status().await, "queued");
    }

    async fn a_second_signal_ends_it_now(database) {
        let server = Server::on(database).start();
        let worker = server.crew().worker().register().await;
        let path = worker.path("/claim");
        let api = (*server).clone();
        let claim = beside(async move { api.try_post(&path, json!({ "max": 1, "wait_sec": 60 })).await.is_ok() });
        janitor::signal(server.pid(), "TERM");
        // The second signal may come too late, after the server has ended.
        let again = Command::new("sh").arg("-c").arg(format!("kill -TERM {}", server.pid())).stderr(Stdio::null()).status();
        drop(again);
        let asked = std::time::Instant::now();
        server.wait_for_end();
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        let _ = claim.await;
    }

    async fn migrations_can_be_looked_at_and_run_alone(database) {
        let plan = Server::on(database);
        let migrate = |what: &str| {
            let mut command = plan.command(&["migrate", what]);
            command.output().expect("the program runs")
        };
        let before = migrate("status");
        assert!(words(&before).to_lowercase().contains("pending") || !before.status.success(), "{}", words(&before));
        let up = migrate("up");
        assert!(up.status.success(), "{}", words(&up));
        assert!(migrate("up").status.success(), "a second run changes nothing");
        let after = migrate("status");
        assert!(after.status.success(), "{}", words(&after));
        assert!(words(&after).contains("init") && !words(&after).to_lowercase().contains("pending"), "{}", words(&after));
        let server = plan.start();
        server.get("stats").await.ok();
    }

    async fn logs_are_structured_and_say_no_secrets(database) {
        let server = Server::on(database).env("LOG_FORMAT", "json").env("LOG_LEVEL", "debug").env("RUNTIME_API_KEY", "very-secret-key").start();
        let api = server.with_key("very-secret-key");
        let crew = api.crew();
        crew.task().prompt("a very private prompt").create().await;
        let answer = api.get("stats").await.expect(200);
        let id = answer.header("x-request-id").unwrap().to_owned();
        eventually("the request is logged", || async { server.log().contains(&id).then_some(()) }).await;
        let log = server.log();
        assert!(!log.contains("very-secret-key") && !log.contains("a very private prompt"), "{log}");
        let line = log.lines().find(|line| line.contains(&id)).unwrap();
        serde_json::from_str::<Value>(line).expect("a JSON line");
    }
}
