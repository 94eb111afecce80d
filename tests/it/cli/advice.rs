//! Errors say what to do next.

use super::*;

#[test]
fn a_task_that_is_another_one_is_told_by_its_line_and_key() {
    run(async {
        let user = User::at(sqlite());
        let key = unique("key");
        user.does(&["task", "submit", "--agent", "nobody", "--idempotency-key", &key, "Say hello"]).ok();
        let file = format!("{{\"prompt\": \"new\"}}\n\n{{\"prompt\": \"Say bye\", \"idempotency_key\": \"{key}\"}}\n");
        let said = user.pipes(&file, &["task", "submit", "--from", "-", "--agent", "nobody"]).complains(1);
        assert!(said.contains(&format!("line 3: the idempotency key {key} was used for another task")), "{said}");
        assert!(said.contains("lines 1 to 3 were not submitted"), "{said}");
    });
}

#[test]
fn a_file_in_another_format_is_told_with_the_command_that_converts_it() {
    let user = User::at(sqlite());
    let pretty = "{\n  \"prompt\": \"p\"\n}\n";
    let said = user.pipes(pretty, &["task", "submit", "--from", "-"]).complains(2);
    assert!(said.contains("line 1: ") && said.contains("one object per line; `jq -c .` makes such lines"), "{said}");
    let said = user.pipes("{\"prompt\": \"p\", \"not_before\": \"+2h\"}\n", &["task", "submit", "--from", "-"]).complains(2);
    assert!(said.contains("not_before: Expected number, received string (milliseconds since the epoch)"), "{said}");
    for (name, flag) in [("prompt.txt", "--prompt-file"), ("tasks.jsonl", "--from")] {
        std::fs::write(user.home.join(name), b"{\"prompt\": \"caf\xe9\"}").unwrap();
        let said = user.does(&["task", "submit", flag, name]).complains(2);
        assert!(said.contains("can't be read as UTF-8 text") && said.contains("convert it, for example with iconv"), "{said}");
    }
}

#[test]
fn an_empty_prompt_is_told_with_how_to_give_one() {
    let said = User::at(sqlite()).pipes("\n", &["task", "submit"]).complains(2);
    assert!(said.contains("the prompt is empty: give it as an argument, with --prompt-file, or on standard input"), "{said}");
}

#[test]
fn one_task_is_counted_as_one() {
    let done = User::at(sqlite()).pipes("{\"prompt\": \"p\"}\n", &["task", "submit", "--from", "-", "--agent", "nobody"]).ends(0);
    assert!(done.err.ends_with("1 task: 1 new, 0 existed already\n"), "{}", done.err);
}

#[test]
fn a_server_that_does_not_run_is_told_with_the_command_that_starts_one() {
    let nowhere = format!("http://127.0.0.1:{}", janitor::free_port());
    let said = User::new().does(&["stats", "--server", &nowhere]).complains(1);
    assert!(said.contains("is the server running there? Start one with: bloom-runtime dev"), "{said}");
}

#[test]
fn a_prompt_that_is_too_long_is_told_without_the_limit_of_outputs() {
    let prompt = "word ".repeat(400_000);
    let said = User::at(sqlite()).pipes(&prompt, &["task", "submit", "-"]).complains(2);
    assert!(said.contains("MAX_BODY_BYTES") && !said.contains("MAX_OUTPUT_BYTES"), "{said}");
}

#[test]
fn a_dead_task_is_told_with_the_command_that_describes_it() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let user = User::at(crew.api);
        let task = crew.task().with("max_attempts", json!(1)).create().await;
        let run = Run::claimed_by(&worker).await;
        let end = json!({ "status": "error", "error_message": "it broke", "reason": "agent_error", "retryable": true,
            "lease_id": run.lease, "metrics": { "duration_ms": 5 } });
        task.complete(end).await.ok();
        assert_eq!(task.status().await, "dead");
        let said = user.does(&["task", "wait", &task.id]).ends(1).err;
        assert!(said.contains("is dead: ") && said.contains(&format!("see bloom-runtime task describe {}", task.id)), "{said}");
        let shown = user.does(&["task", "describe", &task.id]).ok();
        let attempts = shown.split("History:").next().unwrap();
        assert!(!attempts.contains("task_dead") && attempts.contains("the run failed: agent_error: it broke"), "{shown}");
    });
}

#[test]
fn a_deleted_task_is_found_in_the_audit_trail_by_a_part_of_its_id() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let task = crew.task().create().await;
        task.cancel().await.ok();
        user.does(&["task", "delete", "--yes", &task.id]).ok();
        let said = user.does(&["audit", "--task", short(&task.id)]).complains(1);
        assert!(said.contains("no task whose id begins or ends with") && said.contains("deleted task needs its whole id"), "{said}");
        assert!(user.does(&["audit", "--task", &task.id]).ok().contains("task_deleted"));
    });
}

#[test]
fn a_profile_of_the_wrong_type_is_told_with_how_to_write_it() {
    let user = User::new();
    for (line, told) in [
        ("runner = \"command\"\ncommand = \"false\"", "command = [\"false\"]"),
        ("runner = \"echo\"\nstall_seconds = \"90\"", "a whole number of seconds"),
        ("runner = \"echo\"\nstall_seconds = -1", "a whole number of seconds"),
        ("runner = \"echo\"\nstall_seconds = 1.5", "a whole number of seconds"),
    ] {
        std::fs::write(user.home.join("p.toml"), format!("[profiles.default]\n{line}\n")).unwrap();
        let said = user.does(&["agent", "--profiles", "p.toml"]).ends(2).err;
        assert!(said.contains(told) && said.contains("line 3"), "{line}: {said}");
    }
}

#[test]
fn an_agent_that_no_worker_serves_is_told_with_the_one_that_may_be_meant() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let user = User::at(&server);
        let submitted = |agent: &str| user.does(&["task", "submit", "--agent", agent, "p"]).ends(0).err;
        assert_eq!(submitted("reviewr"), "", "without workers, the task says by itself why it waits");
        server.post("workers", json!({ "name": "w", "capabilities": { "agents": ["reviewer", "writer"] } })).await.created();
        let told = |agent: &str, how: &str| assert_eq!(submitted(agent), format!("Warning: no worker {how}\n"));
        told("reviewr", "serves agent reviewr (did you mean reviewer?); the task waits until one does");
        told("x", "serves agent x; the task waits until one does");
        assert_eq!(submitted("writer"), "");
        // A worker that serves all agents has profiles for some.
        server.post("workers", json!({ "name": "of-all", "capabilities": { "profiles": ["default", "translator"] } })).await.created();
        let runs = "; the task runs with a worker's profile default";
        told("reviewr", &format!("knows agent reviewr (did you mean reviewer?){runs}"));
        told("tranlator", &format!("knows agent tranlator (did you mean translator?){runs}"));
        told("quite-another", &format!("knows agent quite-another{runs}"));
        for known in ["translator", "default"] {
            assert_eq!(submitted(known), "", "{known}");
        }
        // One that does not tell its profiles may have one of this name.
        server.post("workers", json!({ "name": "untold", "capabilities": {} })).await.created();
        assert_eq!(submitted("quite-another"), "");
        told("reviewr", &format!("knows agent reviewr (did you mean reviewer?){runs}"));
        user.does(&["queue", "limit", "--agent", "tranlator", "3"]).ends(0);
        assert_eq!(submitted("tranlator"), "", "somebody has limited the queue of this name");
        // In a file, each agent is told once.
        std::fs::write(user.home.join("tasks.jsonl"), "{\"prompt\": \"p\", \"agent_slug\": \"revewer\"}\n".repeat(3)).unwrap();
        let many = user.does(&["task", "submit", "--from", "tasks.jsonl"]).ends(0);
        assert_eq!(many.err.matches("did you mean reviewer?").count(), 1, "{}", many.err);
    });
}

#[test]
fn a_task_that_is_cancelled_as_it_is_created_is_told() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let first = server.crew().task().create().await;
        first.cancel().await.ok();
        let done = User::at(&server).does(&["task", "submit", "--depends-on", &first.id, "after"]).ends(0);
        assert!(done.err.contains("It is cancelled already, and will not run"), "{}", done.err);
    });
}

#[test]
fn times_between_which_nothing_can_be_are_told() {
    let user = User::at(sqlite());
    for command in [&["usage"][..], &["audit"], &["task", "list"], &["task", "search", "x"], &["task", "wait"]] {
        let said = user.does(&[command, &["--since", "1h", "--until", "2h"]].concat()).complains(2);
        assert!(said.contains("--since is not before --until"), "{command:?}: {said}");
    }
}
