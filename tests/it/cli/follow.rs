//! `submit --follow` and `task logs`: a run's text while it arrives.

use super::*;

#[test]
fn text_is_there_as_it_comes() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let following = User::at(crew.api).starts(&["task", "submit", "--follow", "--agent", &crew.slug, "p"]);
        let run = Run::claimed_by(&worker).await;
        run.tells("text", json!({ "text": "first " })).await;
        following.prints("first ").await;
        assert_eq!(following.out(), "first ", "the first text is printed before the second is sent");
        run.tells("tool_use", json!({ "name": "Bash", "input": { "command": "ls" } })).await;
        following.says("[tool_use] Bash: ls").await;
        run.tells("text", json!("second")).await;
        run.tells("text", json!("ly")).await;
        following.prints("first \nsecondly").await;
        run.tells("usage", json!({ "cost_usd": 1 })).await;
        run.answers("the answer").await;
        let done = following.done().ends(0);
        assert_eq!(done.out, "first \nsecondly\n", "the answer is not printed after its text");
        assert!(!done.err.contains("usage"), "usage events are not shown: {}", done.err);
    });
}

#[test]
fn text_ends_with_a_line_break_before_a_line_in_the_same_file() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let following = User::at(crew.api).with_one_output(&["task", "submit", "--follow", "--agent", &crew.slug, "p"]);
        let run = Run::claimed_by(&worker).await;
        run.tells("text", json!("fixed it")).await;
        following.prints("fixed it").await;
        run.tells("lifecycle", json!({ "message": "cleaning up" })).await;
        run.answers("x").await;
        let said = following.done().ok();
        assert!(said.ends_with("fixed it\n[lifecycle] cleaning up\n"), "{said}");
    });
}

#[test]
fn a_run_that_tells_nothing_gives_its_answer() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let following = User::at(crew.api).starts(&["task", "submit", "--follow", "--agent", &crew.slug, "p"]);
        Run::claimed_by(&worker).await.answers("the answer").await;
        assert_eq!(following.done().ok(), "the answer\n");
        let failing = User::at(crew.api).starts(&["task", "submit", "--follow", "--agent", &crew.slug, "p"]);
        Run::claimed_by(&worker).await.fails("auth", "signed out").await;
        assert!(failing.done().complains(1).contains("auth: signed out"));
    });
}

#[test]
fn a_stream_that_breaks_goes_on_where_it_was() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let following = User::at(&server).starts(&["task", "submit", "--follow", "--agent", &crew.slug, "p"]);
        let run = Run::claimed_by(&worker).await;
        run.tells("text", json!("one ")).await;
        run.tells("text", json!("two ")).await;
        following.prints("one two ").await;
        server.kill9();
        server.start_again();
        run.tells("text", json!("three")).await;
        following.prints("three").await;
        run.answers("x").await;
        assert_eq!(following.done().ok(), "one two three\n", "each text is printed once");
    });
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let run = Run::claimed_by(&worker).await;
        for _ in 0..3 {
            run.tells("text", json!("a line\n")).await;
        }
        let user = User::at(crew.api);
        let done = user.with_closed_output(&["task", "logs", "-f", &task.id]).ends(0);
        assert_eq!(done.err, "");
        let done = user.with_closed_output(&["task", "get", &task.id]).ends(0);
        assert_eq!(done.err, "");
    });
}

#[test]
fn logs_tell_everything_in_order() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let run = Run::claimed_by(&worker).await;
        run.tells("lifecycle", json!({ "message": "started" })).await;
        run.tells("text", json!("a ")).await;
        run.tells("text", json!("b")).await;
        run.tells("usage", json!({ "cost_usd": 1 })).await;
        let user = User::at(crew.api);
        let expected = "[lifecycle] started\na b\n[usage] cost_usd=1\n";
        assert_eq!(user.does(&["task", "logs", &task.id]).ok(), expected);
        assert_eq!(user.does(&["task", "logs", "--kind", "text", &task.id]).ok(), "a b\n");
        let events = user.does(&["task", "logs", "-o", "json", &task.id]).json();
        assert_eq!(events, crew.api.get(&task.path("/events")).await.ok());

        let following = user.starts(&["task", "logs", "-f", &task.id]);
        following.prints(expected).await;
        let lines = user.starts(&["task", "logs", "-f", "-o", "json", "--kind", "text", &task.id]);
        run.tells("text", json!("c")).await;
        run.answers("x").await;
        assert_eq!(following.done().ok(), format!("{expected}c\n"), "following ends with the task");
        let lines = lines.done().ok();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("a line is an event")).collect();
        assert_eq!(lines.iter().map(|event| event["data"].as_str().unwrap()).collect::<Vec<_>>(), ["a ", "b", "c"]);
    });
}

#[test]
fn logs_have_times_and_an_end() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let run = Run::claimed_by(&worker).await;
        run.tells("text", json!("first\n")).await;
        run.tells("text", json!("a\nb")).await;
        run.tells("stderr", json!({ "text": "one\ntwo\n" })).await;
        run.tells("permission_denied", json!({ "name": "Bash", "input": { "command": "ls" } })).await;
        let failure = json!({ "status": "error", "error_message": "it broke", "metrics": { "duration_ms": 5 } });
        task.complete(failure).await.ok();
        let user = User::at(crew.api);
        let newest = user.does(&["task", "logs", "--tail", "3", &task.id]).ok();
        let end = "[permission_denied] Bash: ls\n[failure] agent_error: it broke\n";
        assert_eq!(newest, format!("a\nb\n[stderr] one\n[stderr] two\n{end}"));
        let followed = user.does(&["task", "logs", "-f", "--tail", "1", &task.id]).ok();
        assert_eq!(followed, end);

        let timed = user.does(&["task", "logs", "--timestamps", &task.id]).ok();
        let lines: Vec<_> = timed.lines().map(|line| line.split_once(' ').unwrap()).collect();
        assert!(lines.iter().all(|(time, _)| time.ends_with('Z') && time.len() == "2026-01-01T00:00:00.000Z".len()), "{timed}");
        let texts: Vec<_> = lines.iter().map(|(_, text)| format!("{text}\n")).collect();
        assert_eq!(texts.concat(), format!("first\n{newest}"));
    });
}

#[test]
fn a_followed_task_that_waits_says_why() {
    run(async {
        let crew = sqlite().crew();
        let task = crew.task().with("suspend", json!(true)).create().await;
        let following = User::at(crew.api).starts(&["task", "logs", "-f", &task.id]);
        following.says("waits: suspended: ").await;
        crew.api.post(&task.path("/resume"), json!({})).await.ok();
        following.says("waits: no_worker: ").await;
        let worker = crew.worker().register().await;
        let run = Run::claimed_by(&worker).await;
        run.tells("text", json!("at last")).await;
        following.prints("at last").await;
        run.answers("x").await;
        let done = following.done().ends(0);
        assert_eq!(done.out, "at last\n");
        assert_eq!(done.err.lines().count(), 2, "each reason is told once: {}", done.err);
    });
}
