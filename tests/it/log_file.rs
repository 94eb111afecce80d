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

/// A blocked log driver of containers, or a paused terminal, does this for ever.
#[test]
fn what_reads_the_log_and_stalls_holds_nothing_up() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let stalled = |plan: &str| {
            let pipe = dir.path().join(plan);
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let reader = fs::File::options().read(true).write(true).open(&pipe).unwrap();
            (pipe.display().to_string(), reader)
        };
        const INTO_THE_PIPE: &str = r#"exec "$0" "$@" 2>"$PIPE""#;
        let ((server_pipe, reader), (agent_pipe, _unread)) = (stalled("server"), stalled("agent"));
        let server = Server::on(Database::Sqlite).env("LOG_LEVEL", "debug").env("PIPE", server_pipe).through(INTO_THE_PIPE).start();
        let agent = server.agent("quiet").echo().env("LOG_LEVEL", "trace").env("PIPE", agent_pipe).through(INTO_THE_PIPE).start();

        // More lines than the pipe and the queue of the process take. A longer path is cut off.
        let long = format!("llm-tasks/{}", "x".repeat(256));
        let mut is_lost = false;
        for _ in 0..20 {
            for _ in 0..200 {
                server.get(&long).await;
            }
            let metrics = server.get("/metrics").await.expect(200).text;
            is_lost = !metrics.contains("\nbloom_log_lines_lost_total 0\n");
            if is_lost {
                break;
            }
        }
        assert!(is_lost, "not all lines are kept");
        server.crew().task().with("agent_slug", json!("quiet")).create().await.reaches("completed").await;

        let (sender, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let lines = std::io::BufRead::lines(std::io::BufReader::new(reader)).map_while(Result::ok);
            lines.for_each(|line| drop(line.contains("lines of the log were lost").then(|| sender.send(line))));
        });
        told.recv_timeout(std::time::Duration::from_secs(30)).expect("the loss is told once the log is read");
        agent.signal("TERM");
        assert!(agent.wait_for_end().success() && server.stop().success());
    });
}
