//! `submit --wait`, `task wait` and `task result`: the answer and the exit status.

use super::*;

#[test]
fn the_answer_comes_alone_on_stdout() {
    run(async {
        let crew = sqlite().crew();
        let waiting = User::at(crew.api).starts(&["task", "submit", "--wait", "--agent", &crew.slug, "Say hello"]);
        waiting.says("waits: no_worker").await;
        let worker = crew.worker().register().await;
        let run = Run::claimed_by(&worker).await;
        run.tells("text", json!({ "text": "not the answer" })).await;
        run.answers("Hello!").await;
        assert_eq!(waiting.done().ok(), "Hello!\n");
        let id = run.task.id.as_str();
        let user = User::at(crew.api);
        assert_eq!(user.does(&["task", "result", id]).ok(), "Hello!\n");
        let whole = user.does(&["task", "result", "-o", "json", id]).json();
        assert_eq!((&whole["output"], &whole["worker_id"]), (&json!("Hello!"), &json!(worker.name)));
        let shown = user.does(&["task", "wait", "-o", "json", id]).json();
        assert_eq!(shown["status"], "completed");
    });
}

#[test]
fn an_answer_is_printed_as_it_is_into_a_pipe() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let waiting = User::at(crew.api).starts(&["task", "submit", "--wait", "--agent", &crew.slug, "p"]);
        Run::claimed_by(&worker).await.answers("a\u{1b}[31m\r\nGrüße\n").await;
        assert_eq!(waiting.done().ok(), "a\u{1b}[31m\r\nGrüße\n", "no second line break is added");
    });
}

#[test]
fn a_failure_ends_with_1_and_its_reason() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let user = User::at(crew.api);
        let waiting = user.starts(&["task", "submit", "--wait", "--agent", &crew.slug, "p"]);
        let run = Run::claimed_by(&worker).await;
        run.fails("budget_exceeded", "a dollar was not enough").await;
        let said = waiting.done().complains(1);
        assert!(said.contains("failed: budget_exceeded: a dollar was not enough"), "{said}");
        let done = user.does(&["task", "wait", &run.task.id]).ends(1);
        assert!(done.out.contains("failed"), "{}", done.out);
        let said = user.does(&["task", "result", &run.task.id]).complains(1);
        assert!(said.contains("a dollar was not enough"), "{said}");
        let cancelled = crew.task().create().await;
        cancelled.cancel().await.ok();
        let done = user.does(&["task", "wait", "-o", "name", &cancelled.id]).ends(1);
        assert_eq!(done.out, format!("{}\n", cancelled.id));
        assert!(done.err.contains("cancelled"), "{}", done.err);
    });
}

#[test]
fn a_run_can_not_forge_a_line_of_the_program() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let user = User::at(crew.api);
        let task = crew.task().create().await;
        Run::claimed_by(&worker).await.fails("auth", "signed out\nWhat to do: paste this into a shell").await;
        for command in ["result", "wait", "describe"] {
            let done = user.does(&["task", command, &task.id]);
            let said = done.out + &done.err;
            assert!(said.contains("paste this") && !said.contains("\nWhat to do: paste"), "{command}: {said}");
        }
        let said = user.does(&["task", "result", &task.id]).complains(1);
        assert!(said.contains("signed out\n    What to do: paste"), "{said}");
    });
}

#[test]
fn time_that_is_over_ends_with_3_and_the_task_goes_on() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let said = user.does(&["task", "submit", "--wait", "--wait-timeout", "1s", "--agent", &crew.slug, "p"]).complains(3);
        let tasks = crew.api.get(&format!("llm-tasks?agent_slug={}", crew.slug)).await.ok();
        let id = tasks[0]["id"].as_str().expect("the task was created");
        assert!(said.contains(&format!("bloom-runtime task wait {id}")), "the error says how to wait again: {said}");
        assert_eq!(tasks[0]["status"], "queued");
        for limit in ["1", "0"] {
            user.does(&["task", "wait", "--timeout", limit, id]).complains(3);
        }
        crew.api.task(id).cancel().await.ok();
        let done = user.does(&["task", "wait", "--timeout", "0", id]);
        assert_eq!(done.code, 1, "the task is read once without any time left: {}", done.err);
        assert!(done.err.contains("is cancelled"), "{}", done.err);
        assert!(user.does(&["task", "result", id]).complains(1).contains("Result not found"));
    });
}

#[test]
fn ctrl_c_leaves_the_task_alone_and_says_how_to_go_on() {
    run(async {
        let crew = sqlite().crew();
        for how in ["--wait", "--follow"] {
            let waiting = User::at(crew.api).starts(&["task", "submit", how, "--agent", &crew.slug, "p"]);
            waiting.says("no_worker").await;
            waiting.interrupt();
            let said = waiting.done().complains(130);
            let tasks = crew.api.get(&format!("llm-tasks?agent_slug={}&limit=1", crew.slug)).await.ok();
            assert!(said.contains(&format!("bloom-runtime task wait {}", tasks[0]["id"].as_str().unwrap())), "{said}");
            assert_eq!((&tasks[0]["status"], &tasks[0]["cancel_requested"]), (&json!("queued"), &json!(false)));
        }
    });
}

#[test]
fn several_tasks_are_waited_for() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().slots(2).register().await;
        let (one, two) = (crew.task().create().await, crew.task().create().await);
        let waiting = User::at(crew.api).starts(&["task", "wait", "-o", "json", &two.id, &one.id]);
        for _ in 0..2 {
            Run::claimed_by(&worker).await.answers("done").await;
        }
        let tasks = waiting.done().json();
        let ids: Vec<_> = tasks.as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap()).collect();
        assert_eq!(ids, [two.id.as_str(), one.id.as_str()]);
    });
}

#[test]
fn a_server_that_starts_again_is_waited_for() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        let waiting = User::at(&server).starts(&["task", "submit", "--wait", "--agent", &crew.slug, "p"]);
        waiting.says("no_worker").await;
        server.kill9();
        waiting.says("trying again").await;
        server.start_again();
        let worker = crew.worker().register().await;
        Run::claimed_by(&worker).await.answers("after all").await;
        assert_eq!(waiting.done().ok(), "after all\n");
    });
}

#[test]
fn a_server_that_is_not_there_is_told_at_once() {
    let nowhere = format!("http://127.0.0.1:{}", janitor::free_port());
    let user = User::new().with("BLOOM_SERVER", &nowhere);
    let commands: [&[&str]; 5] =
        [&["stats"], &["task", "list"], &["task", "list", "--watch"], &["task", "wait", NO_ID], &["task", "logs", "-f", NO_ID]];
    for command in commands {
        let said = user.does(command).complains(1);
        assert!(said.contains(&nowhere) && said.contains("is the server running there?"), "{command:?}: {said}");
    }
}

#[test]
fn a_task_that_is_not_there_is_named() {
    let user = User::at(sqlite());
    for command in ["get", "result", "logs", "wait", "cancel", "requeue"] {
        let said = user.does(&["task", command, NO_ID]).complains(1);
        assert!(said.contains(NO_ID) && said.contains("not found"), "{command}: {said}");
    }
    run(async {
        let open = user_task().await;
        let said = user.does(&["task", "wait", &open, NO_ID]).complains(1);
        assert!(said.contains(NO_ID), "before the first one has ended: {said}");
    });
}

async fn user_task() -> String {
    sqlite().crew().task().create().await.id
}

#[test]
fn a_cancelled_task_is_cancelled_whatever_was_before() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let user = User::at(crew.api);
        let task = crew.task().create().await;
        task.lease_for(&worker, 1).await;
        eventually("the lease expires", || async { (task.status().await == "queued").then_some(()) }).await;
        assert_eq!(task.now().await["failure"]["reason"], "worker_lost");
        task.cancel().await.ok();
        let listed = user.does(&["task", "list", "--agent", &crew.slug]).ok();
        assert!(listed.contains("cancelled") && !listed.contains("worker_lost"), "{listed}");
        let shown = user.does(&["task", "describe", &task.id]).ok();
        assert!(shown.contains("cancelled on request") && !shown.contains("cancelled: cancelled"), "{shown}");
        let said = user.does(&["task", "result", &task.id]).complains(1);
        assert!(said.contains("is cancelled on request") && !said.contains("cancelled: cancelled"), "{said}");
    });
}
