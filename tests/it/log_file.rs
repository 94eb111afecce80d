//! The log in a file: SIGHUP opens it anew and reads its level again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::*;

async fn until_it_has(path: &Path, text: &str) -> String {
    let read = || async { fs::read_to_string(path).ok().filter(|log| log.contains(text)) };
    eventually(&format!("{text} in {}", path.display()), read).await
}

#[test]
fn a_renamed_log_is_left_and_the_level_changes() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let (settings, log, renamed) = (dir.path().join("settings.toml"), dir.path().join("log"), dir.path().join("log.1"));
        fs::write(&settings, "log_level = \"warn\"\n").unwrap();
        fs::write(&log, "an earlier line\n").unwrap();
        let server = Server::on(Database::Sqlite).env("LOG_FILE", log.display()).env("BLOOM_CONFIG", settings.display()).start();
        let reload = || janitor::signal(server.pid(), "HUP");

        fs::write(&settings, "log_level = \"debug\"\n").unwrap();
        fs::rename(&log, &renamed).unwrap();
        reload();
        assert!(!until_it_has(&log, "level=\"debug\"").await.contains("an earlier line"));
        assert_eq!(fs::read_to_string(&renamed).unwrap(), "an earlier line\n", "nothing was worth a warning");
        server.get("stats").await.ok();
        until_it_has(&log, "/api/runtime/stats").await;

        // What can't be used changes nothing.
        fs::write(&settings, "log_level = \"loud\"\n").unwrap();
        reload();
        until_it_has(&log, "log_level = \"loud\"").await;
        server.get("workers").await.ok();
        until_it_has(&log, "/api/runtime/workers").await;
        assert!(!server.log().contains("INFO") && !server.log().contains("DEBUG"), "nothing of it is on standard error: {}", server.log());
        assert!(server.stop().success());
    });
}

#[test]
fn a_new_log_is_for_its_owner_and_group() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let server = Server::on(Database::Sqlite).env("LOG_FILE", log.display()).start();
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o007, 0);
    assert!(fs::read_to_string(&log).unwrap().contains("serving"));
    drop(server);
}

#[test]
fn a_signal_without_a_file_ends_nothing() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("hangup").echo().start();
        eventually("the agent takes signals", || async { agent.log().contains("work dir").then_some(()) }).await;
        for pid in [server.pid(), agent.pid()] {
            janitor::signal(pid, "HUP");
        }
        eventually("both say that they were reloaded", || async {
            (server.log().contains("reloaded") && agent.log().contains("reloaded")).then_some(())
        })
        .await;
    });
}

#[test]
fn a_pipe_is_refused_and_holds_nothing_up() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let server = Server::on(Database::Sqlite).env("LOG_FILE", log.display()).start();
        fs::remove_file(&log).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&log).status().unwrap().success());
        janitor::signal(server.pid(), "HUP");
        server.get("stats").await.ok();
        assert!(server.stop().success());
        let refused = Server::on(Database::Sqlite).env("LOG_FILE", log.display()).start_in_vain();
        assert!(String::from_utf8_lossy(&refused.stderr).contains("is a pipe: name a regular file"), "{refused:?}");
    });
}
