//! `dev`: a server and an agent without any configuration.

use std::os::unix::fs::PermissionsExt;

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

        let file = server.data_dir().join("dev.key");
        assert!(said.contains(&format!("asks for the key in the file {}", file.display())), "{said}");
        let key = std::fs::read_to_string(&file).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(key.trim().len() == 64 && !server.log().contains(key.trim()));
        assert_eq!(server.get("workers").await.status, 401, "whoever can't read the file does nothing");
        assert_eq!(server.with_key(key.trim()).get("workers").await.status, 200);
        assert!(server.stop().success());
        server.start_again();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), key, "it keeps its key");
    });
}

#[test]
fn a_repository_of_this_machine_is_a_project() {
    run(async {
        let dir = janitor::new_path("own repository");
        let script =
            "git init -q \"$0\" && cd \"$0\" && git -c user.name=t -c user.email=t@localhost commit -q --allow-empty -m one && mkdir sub";
        let made = std::process::Command::new("sh").args(["-c", script]).arg(&dir).status().unwrap();
        assert!(made.success());
        let server = Server::on(Database::Sqlite).words(&["dev"]).env("PATH", "/usr/bin:/bin").start();
        let key_file = server.data_dir().join("dev.key").display().to_string();
        let said = async |words: &[&str]| {
            let words = [words, &["--server", server.base(), "--key-file", &key_file]].concat();
            let mut command = server.plan().command(&words);
            let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
            (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
        };
        let (path, below) = (dir.display().to_string(), dir.join("sub").display().to_string());
        let (code, added) = said(&["project", "add", "site", &path]).await;
        assert_eq!(code, Some(0), "{added}");
        for (wrong, why) in [(below.as_str(), "is no git repository"), ("/nonexistent/x", "neither a URL nor a directory here")] {
            let (code, refused) = said(&["project", "add", "other", wrong]).await;
            assert!(code == Some(2) && refused.contains(why), "{refused}");
        }
        let (code, answer) = said(&["task", "submit", "--project", "site", "--push", "--wait", "hello"]).await;
        assert!(code == Some(0) && answer.starts_with("hello\n"), "{answer}");
        let _ = std::fs::remove_dir_all(&dir);
    });
}

/// Starts `dev` in a network of its own, where the usual port is free, and calls it from "another terminal".
const TWO_TERMINALS: &str = r#"
    ip link set lo up || exit 9
    "$0" dev >log 2>&1 &
    until grep -q "task submit" log; do kill -0 $! || { cat log >&2; exit 8; }; sleep 0.1; done
    "$0" task submit --wait "Say hello"
    "$0" task list --key wrong 2>&1 | grep -o 'key.*'
    HOME=/nonexistent "$0" task list 2>&1 | grep -o 'key.*'
    kill $!; wait $!
    RUNTIME_API_KEY=of-another-user-0123 "$0" serve --data-dir other >>log 2>&1 &
    until "$0" healthcheck >>log 2>&1; do kill -0 $! || exit 7; sleep 0.1; done
    "$0" task list 2>&1 | grep -o 'key.*'
    kill $!; wait $!
    "$0" dev --port 5021 >log-of-second 2>&1 & second=$!
    until grep -q "task submit" log-of-second; do kill -0 $second || { cat log-of-second >&2; exit 5; }; sleep 0.1; done
    RUNTIME_API_KEY=of-another-user-0123 "$0" serve --data-dir other >>log 2>&1 & other=$!
    until "$0" healthcheck >>log 2>&1; do kill -0 $other || exit 4; sleep 0.1; done
    "$0" task list 2>&1 | grep -o 'key.*'
    "$0" task list -o name --server http://127.0.0.1:5021 >/dev/null && echo "it takes its own"
    kill $other; wait $other
    "$0" task list -o name >/dev/null && echo "it is found at its port"
    "$0" task list --key wrong 2>&1 | grep -o 'key.*'
    kill $second; wait $second
    "$0" context set prod --server http://127.0.0.1:9 >>log 2>&1
    "$0" task list 2>&1
    "$0" dev >log-of-third 2>&1 &
    until grep -q "task submit" log-of-third; do kill -0 $! || { cat log-of-third >&2; exit 6; }; sleep 0.1; done
    sh -c "$(grep 'task submit' log-of-third)"
    kill $!; wait $!"#;

#[test]
fn commands_without_flags_find_the_server_and_its_key() {
    let home = janitor::new_path("home");
    std::fs::create_dir_all(&home).unwrap();
    let mut shell = janitor::bound(Path::new("unshare"), None, janitor::AtTheEnd::Kill);
    shell.args(["--net", "sh", "-c", TWO_TERMINALS, server::BINARY]).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    shell.env("HOME", &home).current_dir(&home).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let output = janitor::spawn(shell).unwrap().wait_with_output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.starts_with("Say hello\n"), "{said}{errors}");
    let told: Vec<&str> = said.lines().skip(1).collect();
    assert_eq!(told.len(), 10, "it refuses calls without its key, or with another: {said}");
    assert_eq!(told[3], "key of dev is sent only to where it listens: give --server http://127.0.0.1:5021");
    assert_eq!((told[4], told[5]), (told[1], "it takes its own"), "a server at another port is not told the key of dev: {said}");
    assert_eq!(told[6], "it is found at its port", "where nothing listens at the usual one");
    assert!(!told[7].contains("127.0.0.1:5000"), "with another key, too: {said}");
    assert!(told[8].contains("can't connect to http://127.0.0.1:9, from the context prod, which is in use"), "{said}");
    assert_eq!(told[9], "Say hello", "the command that it shows goes to it, whichever context is in use");
    assert_eq!((told[1], told[0] == told[1]), (told[2], false), "another server, where `dev` was, is not told the key: {said}");
    let second = std::fs::read_to_string(home.join("log-of-second")).unwrap();
    assert!(!second.contains("sent only to where it listens"), "the advice is for commands, not for dev itself: {second}");
    let log = std::fs::read_to_string(home.join("log")).unwrap();
    let words = log.lines().find(|line| line.contains("task submit")).unwrap();
    assert!(words.ends_with("task submit --wait \"Say hello\""), "{words}");
}

#[test]
fn a_person_may_want_no_key() {
    run(async {
        let server = Server::on(Database::Sqlite).words(&["dev"]).env("BLOOM_RUNNER", "echo").env("ALLOW_NO_KEY", true).start();
        assert_eq!(server.get("workers").await.status, 200);
        assert!(!server.data_dir().join("dev.key").exists());
    });
}

#[test]
fn a_second_dev_on_one_database_needs_another_name() {
    run(async {
        let first = Server::on(Database::Postgres).words(&["dev"]).keyed().env("BLOOM_RUNNER", "echo").start();
        eventually("its agent has the name", || async { (first.get("workers/dev").await.status == 200).then_some(()) }).await;
        let second = || Server::on_url(&first.database_url()).words(&["dev"]).keyed().env("BLOOM_RUNNER", "echo");
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
