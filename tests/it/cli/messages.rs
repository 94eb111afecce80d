//! What the program says when something is not as its user thinks.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

use super::*;

fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_project_that_may_be_meant_is_told() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let user = User::at(&server);
        user.does(&["project", "add", "website", "https://example.org/website.git"]).ends(0);
        let said = user.does(&["task", "submit", "--project", "websiet", "Say hello"]).complains(2);
        assert!(said.contains("No project has the name or id 'websiet' (did you mean website?): create it"), "{said}");
        let said = user.pipes("{\"prompt\": \"a\", \"project\": \"websiet\"}\n", &["task", "submit", "--from", "-"]).complains(2);
        assert!(said.contains("line 1 was not submitted") && said.contains("'websiet' (did you mean website?)"), "{said}");
    });
}

#[test]
fn a_second_server_is_told_where_the_first_one_is() {
    let first = Server::on(Database::Sqlite).start();
    let said = words(&first.plan().clone().start_in_vain());
    assert!(said.contains(&format!("already running at {} since 20", first.base())), "{said}");
    assert!(said.contains(&format!("process {}", first.pid())), "{said}");
}

#[test]
fn the_migrations_are_shown_beside_a_running_server() {
    let server = Server::on(Database::Sqlite).start();
    let user = User::new().with("DATABASE_URL", &server.database_url());
    let shown = user.does(&["migrate", "status"]).ok();
    assert!(shown.lines().any(|line| line.starts_with("applied  0001_")) && !shown.contains("pending"), "{shown}");
    let said = user.does(&["migrate", "up"]).complains(1);
    assert!(said.contains("already running at"), "{said}");
    server.stop();
    let again = user.does(&["migrate", "status"]).ok();
    assert_eq!(again, shown);
}

#[test]
fn what_a_flag_can_not_be_is_told_by_its_name() {
    let user = User::new();
    for (words, told) in [
        (&["task", "submit", "--priority", "-1", "p"][..], "--priority <N>': expected a whole number from 0 to 9"),
        (&["task", "list", "--limit", "-1"], "--limit <N>': expected a whole number from 1 to 100000"),
        (&["task", "list", "-n", "0"], "--limit <N>': expected a whole number from 1 to 100000"),
        (&["task", "list", "--since", "-2h"], "expected how long ago, like 2h"),
        (&["task", "list", "-o", "xml"], "possible values: table, wide, json, jsonl, csv, yaml, name, jsonpath="),
        (&["agent", "--listen", "5055"], "give an address with the port, such as 127.0.0.1:7000"),
        (&["submit", "Say hello"], "bloom-runtime task submit"),
        (&["list"], "bloom-runtime task list, bloom-runtime worker list"),
        (&["task", "submit", "--not-before", "60", "p"], "60 would be in January 1970; +60s is 60 seconds from now"),
        (&["task", "list", "--since", "5"], "5 would be in January 1970; 5s is 5 seconds ago"),
        (&["audit", "--until", "5"], "5 would be in January 1970; 5s is 5 seconds ago"),
        (&["key", "create", "ci", "--expires", "90"], "90 what? With a unit: 90d, 90h, 90m"),
        (&["task", "list", "-l", "a=1,b=2"], "give each label by a flag of its own"),
        (&["task", "submit", "-l", "a=1,b=2", "p"], "give each label by a flag of its own"),
        (&["task", "list", "-o", "jsonpath={.items[*].id}"], "a list is an array, without items: $[*].id"),
        (&["stats", "-o", "name"], "counts have no names; there are: table, wide, json, jsonl, csv, yaml, jsonpath="),
        (&["top", "-o", "name"], "counts have no names; there are: table, wide, json, jsonl, csv, yaml, jsonpath="),
        (&["task", "requeue", "--yes"], "filters such as --status failed,dead"),
    ] {
        let said = user.does(words).complains(2);
        assert!(said.contains(told), "{words:?}: {said}");
    }
}

#[test]
fn words_that_are_no_text_are_refused() {
    for word in [&b"subm\xff"[..], b"--\xff"] {
        let output = Command::new(env!("CARGO_BIN_EXE_bloom-runtime")).arg(OsStr::from_bytes(word)).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    }
}

#[test]
fn habits_from_other_tools_are_understood() {
    let server = sqlite();
    let user = User::at(server);
    for (words, told) in [
        (&["task", "rm", NO_ID, "--yes"][..], "Task not found"),
        (&["task", "stop", NO_ID], "Task not found"),
        (&["task", "show", NO_ID], "Task not found"),
        (&["worker", "show", "no-such-worker"], "Worker not found"),
        (&["key", "rm", "no-such-key"], "no-such-key"),
        (&["key", "delete", "no-such-key"], "no-such-key"),
        (&["worker", "delete", "no-such-worker"], "Worker not found"),
    ] {
        let said = user.does(words).complains(1);
        assert!(said.contains(told) && !said.contains("unrecognized"), "{words:?}: {said}");
    }
    let added = user.does(&["context", "add", "home", "--server", server.base()]).ends(0);
    assert!(added.err.contains("home is the current context now"), "{}", added.err);
    for (words, told) in
        [(&["task", "status", NO_ID][..], "bloom-runtime task get, bloom-runtime task describe"), (&["version"], "bloom-runtime --version")]
    {
        let said = user.does(words).complains(2);
        assert!(said.contains(told), "{words:?}: {said}");
    }
    run(async { server.crew().task().create().await.cancel().await.ok() });
    for (words, absent) in [
        (&["task", "uncordon", "x"][..], "worker"),
        (&["task", "delete", "--status", "cancelled"], "as a value"),
        (&["task", "get", "--stauts", "x"], "as a value"),
    ] {
        let said = user.does(words).complains(2);
        assert!(!said.contains(absent), "{words:?}: {said}");
    }
}

#[test]
fn an_address_with_a_password_is_not_repeated() {
    let user = User::new();
    for server in ["ftp://me:secret@h", "http://me:secret@h:bad", "http://me:secret@h"] {
        let said = user.does(&["stats", "--server", server]).complains(2);
        assert!(!said.contains("secret") && said.contains("address"), "{said}");
    }
}

#[test]
fn https_to_an_http_port_is_told() {
    let server = sqlite().base().replacen("http", "https", 1);
    let said = User::new().does(&["stats", "--server", &server]).complains(2);
    assert!(
        said.contains(&format!("probably http: give the address {}", sqlite().base())) && said.contains("the server at 127.0.0.1:"),
        "{said}"
    );
}

#[test]
fn an_address_below_the_root_is_told() {
    let server = format!("{}/api/runtime", sqlite().base());
    let said = User::new().does(&["stats", "--server", &server]).complains(1);
    assert!(said.contains("Its address must be that of its root"), "{said}");
}

/// Answers each connection like this, once its request has come.
fn answers(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

#[test]
fn what_a_proxy_says_is_told_as_such() {
    let refusal = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 26\r\n\r\n<html>\n<b>No way</b></html>";
    let said = User::new().does(&["stats", "--server", &answers(refusal)]).complains(1);
    assert!(said.contains("403 Forbidden is not from this API") && said.contains("such as a proxy") && !said.contains('<'), "{said}");
    let page = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>";
    for words in [&["stats"][..], &["task", "list"], &["task", "logs", "-f", NO_ID]] {
        let said = User::new().does(&[words, &["--server", &answers(page)]].concat()).complains(1);
        assert!(said.contains("check the address") && !said.contains('<'), "{words:?}: {said}");
    }
    let other = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let url = answers(other);
    let said = User::new().does(&["task", "list", "--server", &url]).complains(1);
    assert!(said.contains(&format!("{url} is not a bloom-runtime server")) && said.contains("it answered something else ("), "{said}");
    let user = User::new().with("HTTPS_PROXY", &answers(refusal));
    let said = user.does(&["stats", "--server", "https://bloom.example"]).complains(1);
    assert!(said.contains("the proxy of the environment") && said.contains("bloom.example"), "{said}");
}

#[test]
fn a_connection_that_breaks_at_once_is_a_restart() {
    run(async {
        let user = User::new().with("BLOOM_SERVER", &answers(""));
        for words in [&["task", "wait", NO_ID][..], &["task", "logs", "-f", NO_ID], &["task", "wait", NO_ID, NO_ID]] {
            let waiting = user.starts(words);
            waiting.says("trying again").await;
            waiting.interrupt();
            waiting.done().ends(130);
        }
    });
}

#[test]
fn what_is_named_by_nothing_is_refused() {
    let user = User::at(sqlite());
    let wrong: [&[&str]; 5] = [
        &["worker", "get", ""],
        &["worker", "describe", ""],
        &["key", "revoke", ""],
        &["task", "cancel", "--agent", "", "--yes"],
        &["audit", "--worker", ""],
    ];
    for words in wrong {
        user.does(words).complains(2);
    }
}

#[test]
fn a_limit_names_its_setting() {
    run(async {
        let server = Server::on(Database::Sqlite).env("RATE_LIMIT_PER_MINUTE", 1).start();
        let user = User::at(&server);
        user.does(&["stats"]).ok();
        let waiting = user.starts(&["stats"]);
        waiting.says("RATE_LIMIT_PER_MINUTE").await;
        waiting.interrupt();
        waiting.done().ends(130);
    });
}

#[test]
fn the_result_of_an_unfinished_task_is_its_state() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let user = User::at(crew.api);
        let task = crew.task().create().await;
        let run = Run::claimed_by(&worker).await;
        let said = user.does(&["task", "result", &task.id]).complains(1);
        assert!(said.contains(&format!("runs on {}", worker.name)), "{said}");
        let end = json!({ "status": "error", "error_message": "an old failure", "reason": "overloaded", "retryable": true,
            "retry_at": now_ms() + 3_600_000,
            "lease_id": run.lease, "metrics": { "duration_ms": 5 } });
        task.complete(end).await.ok();
        let said = user.does(&["task", "result", &task.id]).complains(1);
        assert!(said.contains("is tried again at 20") && said.contains("no answer yet"), "{said}");
        assert!(said.contains("because: an old failure"), "{said}");
    });
}

#[test]
fn a_cancel_is_no_lost_worker_and_order_is_no_reservation() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().slots(2).register().await;
        let context = unique("context");
        let first = crew.task().context(&context).create().await;
        let run = Run::claimed_by(&worker).await;
        let second = crew.task().context(&context).create().await;
        assert_eq!(second.waits_for().await, "session_order");
        first.cancel().await.ok();
        crew.api.post(&first.path("/release"), json!({ "lease_id": run.lease, "reason": "stopping" })).await.ok();
        let ended = first.now().await;
        assert_eq!((&ended["status"], &ended["failure"]["reason"]), (&json!("cancelled"), &json!("cancelled")), "{ended}");
        let user = User::at(crew.api);
        for verb in ["wait", "result", "describe"] {
            let done = user.does(&["task", verb, &first.id]);
            let said = format!("{}{}", done.out, done.err);
            assert!(said.contains("cancelled on request") && !said.contains("cancelled: cancelled"), "{verb}: {said}");
        }
        second.cancel().await.ok();
    });
}

#[test]
fn a_stream_survives_restarts_without_events() {
    run(async {
        let server = Server::on(Database::Sqlite).env("LOG_LEVEL", "debug").start();
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let following = User::at(&server).starts(&["task", "logs", "-f", &task.id]);
        let path = format!("{}/events", task.id);
        for times in 1..=3 {
            eventually("the stream is open", || async { (server.log().matches(&path).count() >= times).then_some(()) }).await;
            server.kill9();
            server.start_again();
        }
        let run = Run::claimed_by(&worker).await;
        run.tells("text", json!("at last")).await;
        following.prints("at last").await;
        run.answers("x").await;
        assert_eq!(following.done().ok(), "at last\n");
    });
}

#[test]
fn waiting_survives_a_restart_in_its_first_call() {
    run(async {
        let server = Server::on(Database::Sqlite).env("LOG_LEVEL", "debug").start();
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let waiting = User::at(&server).starts(&["task", "wait", &task.id]);
        let path = format!("llm-tasks/{}", task.id);
        eventually("the server has shown the task", || async { server.log().contains(&path).then_some(()) }).await;
        server.kill9();
        server.start_again();
        Run::claimed_by(&worker).await.answers("x").await;
        waiting.done().ok();
    });
}

#[test]
fn dev_says_what_runs_tasks() {
    run(async {
        let plan = Server::on(Database::Sqlite).env("RATE_LIMIT_PER_MINUTE", "");
        let profiles = janitor::new_path("profiles");
        std::fs::write(&profiles, "[profiles.default]\nrunner = \"echo\"\n[profiles.shout]\nrunner = \"command\"\ncommand = [\"cat\"]\n")
            .unwrap();
        let path = profiles.to_str().unwrap().to_owned();
        let server = plan.env("BLOOM_PROFILES", path).env("ALLOW_NO_KEY", true).words(&["dev"]).start();
        eventually("its profiles", || async { server.log().contains("agent shout: the command cat").then_some(()) }).await;
        assert!(server.log().contains("all other agents: the echo runner"), "{}", server.log());
        let answer = server.get("stats").await;
        assert!(answer.header("ratelimit-limit").is_none(), "a server for its own user has no limit");
        let user = User::at(&server);
        let id = user.does(&["task", "submit", "--agent", "shuot", "p"]).ok();
        let logs = user.does(&["task", "logs", "-f", id.trim()]).ok();
        assert!(logs.contains("no profile is named shuot"), "{logs}");
        let described = user.does(&["task", "describe", id.trim()]).ok();
        let profile = described.lines().find(|line| line.starts_with("Profile:")).unwrap_or_default();
        assert!(profile.ends_with("default, because no profile is named shuot"), "{described}");
        let done = user.does(&["task", "submit", "--wait", "--agent", "shuot", "p"]).ends(0);
        assert!(done.err.contains("ran it with the profile default, because no profile is named shuot"), "{}", done.err);
        let done = user.does(&["task", "submit", "--wait", "--agent", "shout", "p"]).ends(0);
        assert!(!done.err.contains("profile"), "{}", done.err);
    });
}
