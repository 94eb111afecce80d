//! Runs of the real Claude CLI that ask a person.

use super::claude::with;
use super::*;
use crate::cli::User;
use crate::on_both;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

const ASKS: &str = "ask_human = true";

/// A task whose run wants to make this file.
async fn wants(server: &Server, file: &Path) -> Task<'static> {
    let server: &'static Api = Box::leak(Box::new(Api::clone(server)));
    server.crew().task().prompt(&format!("MODE-TOOL RUN: touch {}\nSAY: done", file.display())).create().await
}

fn new_file() -> PathBuf {
    janitor::new_path("made-by-a-run")
}

impl Task<'_> {
    /// Waits until the run asks, and returns the question.
    pub(super) async fn asks(&self) -> Value {
        eventually("the run asks", || async {
            let answer = self.api.get(&self.path("/question")).await;
            (answer.status == 200).then(|| answer.json())
        })
        .await
    }

    pub(super) async fn answered(&self, answer: Value) -> Value {
        self.api.post(&self.path("/answer"), answer).await.ok()
    }
}

/// What the model was told of its tool.
async fn outcome(task: &Task<'_>) -> String {
    told(task, "tool_result").await.iter().map(|data| data["content"].to_string()).collect()
}

on_both! { alone:
    async fn a_tool_waits_for_a_person(database) {
        let (server, api) = (Server::on(database).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, ASKS).start();
        let (user, file) = (User::at(&server), new_file());
        let task = wants(&server, &file).await;
        let question = task.asks().await;
        assert_eq!((&question["tool"], &question["questions"], &question["answer"]), (&json!("Bash"), &json!([]), &Value::Null), "{question}");
        assert_eq!(question["input"]["command"], json!(format!("touch {}", file.display())));
        assert_eq!(question["until"].as_i64().unwrap() - question["asked_at"].as_i64().unwrap(), 3_600_000);
        let waits = task.now().await;
        assert_eq!((&waits["status"], &waits["waiting"]["reason"]), (&json!("running"), &json!("needs_human")), "{waits}");
        assert_eq!((&waits["waiting"]["until"], waits["waiting"]["message"].as_str()), (&question["until"], Some("a person must decide whether it may use Bash")));
        eventually("the metric tells it", || async { server.get("/metrics").await.text.contains("bloom_tasks_needing_human 1\n").then_some(()) }).await;
        for shown in [user.does(&["task", "list"]), user.does(&["task", "get", &task.id])] {
            assert!(shown.ok().contains("needs_human ("));
        }
        let said = user.does(&["task", "describe", &task.id]).ok();
        let approve = format!("bloom-runtime task approve {} --question {},", &task.id[28..], question["id"].as_str().unwrap());
        for part in ["touch ", &approve, "task_asked"] {
            assert!(said.contains(part), "{part}:\n{said}");
        }
        assert_eq!(user.does(&["task", "describe", &task.id, "-o", "json"]).json()["question"], question);
        assert!(!file.exists());
        let said = user.does(&["task", "answer", &task.id, "yes"]).complains(2);
        assert!(said.contains("TEXT: 1 given, but the run asks whether it may use a tool"), "{said}");
        let said = user.does(&["task", "approve", &task.id, "--question", NO_ID]).complains(1);
        assert!(said.contains("its run asks something else now"), "{said}");

        let said = user.does(&["task", "approve", &task.id]).ends(0);
        assert!(said.err.contains(&format!("(question {})", question["id"].as_str().unwrap())), "{}", said.err);
        assert!(said.err.contains("allowed: Bash touch ") && said.err.contains(&file.display().to_string()), "{}", said.err);
        let done = task.reaches("completed").await;
        assert!(file.exists() && done["waiting"].is_null(), "{done}");
        let log = user.does(&["task", "logs", &task.id]).ok();
        assert!(log.contains("[question] Bash: touch ") && log.contains("[answer] allowed\n"), "{log}");
        let trail = server.get(&format!("audit?task_id={}", task.id)).await.ok();
        let of = |action: &str| trail.as_array().unwrap().iter().find(|entry| entry["action"] == action).expect("an entry").clone();
        assert_eq!((&of("task_asked")["actor"], &of("task_asked")["detail"]), (&json!("box"), &json!("whether it may use Bash")));
        assert_eq!((&of("task_answered")["actor"], &of("task_answered")["detail"]), (&json!("api"), &json!("allowed Bash")));
        let said = user.does(&["task", "deny", &task.id]).complains(1);
        assert!(said.contains("The task's run asks nothing now"), "{said}");
        task.api.post(&task.path("/answer"), json!({"allow": true})).await.fails(409, "Cannot answer task with status 'completed': its run asks nothing now");
        agent.has_no_processes().await;
        let _ = std::fs::remove_file(file);
    }

    async fn its_agent_may_be_restarted_meanwhile(database) {
        let (server, api) = (Server::on(database).env("LEASE_TTL_SECONDS", 60).start(), Anthropic::start().await);
        let agent = server.agent("box").slots(2).claude(&api, ASKS).start();
        let (one, two) = (new_file(), new_file());
        let (before, after) = (wants(&server, &one).await, wants(&server, &two).await);
        let (first, second) = (before.asks().await, after.asks().await);
        agent.kill9();
        before.answered(json!({"allow": true, "question_id": first["id"]})).await;
        assert!(!one.exists(), "nobody has told the run");
        agent.start_again();
        before.reaches("completed").await;
        eventually("the new agent has found the run", || async { (told(&before, "answer").await.len() == 1).then_some(()) }).await;
        assert_eq!(after.asks().await["id"], second["id"], "it is the same question");
        after.answered(json!({"allow": true})).await;
        assert_eq!(after.reaches("completed").await["attempts"], json!(1));
        assert!(one.exists() && two.exists());
        assert_eq!((told(&before, "question").await.len(), told(&after, "question").await.len()), (1, 1), "each is told once");
        agent.has_no_processes().await;
    }
}

#[test]
fn what_is_denied_is_not_done_and_the_run_goes_on() {
    let servers = new_file();
    std::fs::write(&servers, json!({"mcpServers": {}}).to_string()).expect("a file");
    with(&format!("{ASKS}\nmcp_config = {:?}", servers.display().to_string()), async |server, _, agent| {
        let file = new_file();
        let task = wants(server, &file).await;
        task.asks().await;
        User::at(server).does(&["task", "deny", &task.id, "--message", "not on a Friday"]).ends(0);
        task.reaches("completed").await;
        assert!(!file.exists() && outcome(&task).await.contains("not on a Friday"));
        assert_eq!(told(&task, "answer").await[0]["text"], json!("denied: not on a Friday"));
        assert_eq!(told(&task, "permission_denied").await[0]["name"], json!("Bash"));
        for log in [server.log(), agent.log()] {
            assert!(!log.contains(&file.display().to_string()) && !log.contains("Friday"), "{log}");
        }
    });
}

#[test]
fn a_command_that_is_too_long_to_be_shown_whole_is_denied() {
    with(ASKS, async |server, _, _| {
        let (crew, file) = (server.crew(), new_file());
        let long = "x".repeat(17_000);
        let task = crew.task().prompt(&format!("MODE-TOOL RUN: touch {} #{long}\nSAY: done", file.display())).create().await;
        task.reaches("completed").await;
        assert!(!file.exists() && outcome(&task).await.contains("can't be shown all of it"));
    });
}

#[test]
fn questions_in_words_get_answers_in_words() {
    with(ASKS, async |server, api, _| {
        let task = server.crew().task().prompt("MODE-ASK SAY: thanks").create().await;
        let question = task.asks().await;
        assert_eq!(question["questions"], json!(["Which colour? (red / green)", "Which size? (small / big)"]), "{question}");
        let waiting = task.now().await["waiting"]["message"].clone();
        assert_eq!(waiting, json!("it asks: Which colour? (red / green)"));
        let user = User::at(server);
        let said = user.does(&["task", "approve", &task.id]).complains(2);
        assert!(said.contains("the run asks 2 questions in words: give one answer for each, or deny them"), "{said}");
        let only = question["id"].as_str().unwrap();
        assert!(said.contains(&format!("bloom-runtime task answer {} --question {only} TEXT…", task.id)), "{said}");
        user.does(&["task", "answer", &task.id, "green", "as big as it gets"]).ends(0);
        task.reaches("completed").await;
        let log = user.does(&["task", "logs", &task.id]).ok();
        assert!(
            log.contains("[question] Which colour? (red / green); Which size? (small / big)\n[answer] green; as big as it gets\n"),
            "{log}"
        );
        let told = api.seen_with("MODE-ASK").pop().expect("a request")["messages"].to_string();
        assert!(told.contains("green") && told.contains("as big as it gets"), "{told}");
    });
}

#[test]
fn nobody_answers_in_time() {
    with("ask_human = true\nask_human_seconds = 1", async |server, _, _| {
        let file = new_file();
        let task = wants(server, &file).await;
        let question = task.asks().await;
        assert_eq!(question["until"].as_i64().unwrap() - question["asked_at"].as_i64().unwrap(), 1_000);
        task.reaches("completed").await;
        assert_eq!(told(&task, "answer").await[0]["text"], json!("denied: Nobody has answered within 1 s"));
        assert!(!file.exists() && outcome(&task).await.contains("Nobody has answered within 1 s"));
        assert_eq!(result(&task).await["warnings"], json!(["the tool Bash was denied: Nobody has answered within 1 s"]));
    });
}

#[test]
fn a_cancel_ends_a_run_that_waits() {
    with(ASKS, async |server, _, agent| {
        let file = new_file();
        let task = wants(server, &file).await;
        task.asks().await;
        task.cancel().await.ok();
        let ended = task.reaches("cancelled").await;
        assert!(ended["waiting"].is_null() && !file.exists(), "{ended}");
        task.api.get(&task.path("/question")).await.fails(404, "The task's run asks nothing now");
        agent.has_no_processes().await;
    });
}

#[test]
fn the_limits_of_the_run_stand_still_while_it_waits() {
    run(async {
        let (api, clock) = (Anthropic::start().await, BootClock::new());
        let server = Server::on(Database::Sqlite).env("LEASE_TTL_SECONDS", 900).start();
        let profile = format!("ask_human = true\nstall_seconds = 300\n{}", BootClock::PASSED);
        let agent = clock.of(server.agent("box").slots(2).claude(&api, &profile)).start();
        let file = new_file();
        let task = wants(&server, &file).await;
        // The policy of the task: less than what the person takes.
        let short = server.crew().task().with("policy", json!({"timeout_sec": 600}));
        let short = short.prompt(&format!("MODE-TOOL RUN: touch {}\nSAY: done", file.display())).create().await;
        task.asks().await;
        task.answered(json!({"allow": false})).await;
        short.asks().await;
        // Longer than the run may take without a person.
        clock.advance(601);
        assert_eq!(short.status().await, "running");
        short.answered(json!({"allow": true})).await;
        short.reaches("completed").await;
        assert!(file.exists());
        agent.has_no_processes().await;
    });
}

#[test]
fn a_run_in_a_sandbox_asks_and_can_not_answer_itself() {
    with("sandbox = \"bubblewrap\"\nask_human = true", async |server, _, agent| {
        let forge = "for dir in $BLOOM_AGENT_HOME/runs/*; do ls $dir; touch $dir/answer/x $dir/x || echo refused; done";
        let task = server.crew().task().prompt(&format!("MODE-TOOL RUN: {forge}\nSAY: done")).create().await;
        task.asks().await;
        task.answered(json!({"allow": true})).await;
        task.reaches("completed").await;
        let seen = outcome(&task).await;
        assert!(seen.contains("answer") && seen.contains("question") && seen.contains("refused") && !seen.contains("run.json"), "{seen}");
        agent.has_no_processes().await;
    });
}

#[test]
fn profiles_that_would_ask_nobody_are_refused() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        for (lines, expected) in [
            ("runner = \"echo\"\nask_human = true", "ask_human needs runner = \"claude\""),
            (
                "program = \"/bin/true\"\nask_human = true\npermission_mode = \"dontAsk\"",
                "with permission_mode = \"dontAsk\" the Claude CLI asks nobody",
            ),
            ("program = \"/bin/true\"\nask_human_seconds = 60", "ask_human_seconds needs ask_human = true"),
            ("program = \"/bin/true\"\nask_human = true\nask_human_seconds = 86401", "ask_human_seconds must be 1 to 86400"),
            ("program = \"/bin/true\"\nask_human = true\nask_human_seconds = 0", "ask_human_seconds must be 1 to 86400"),
        ] {
            let (code, said) = server.agent("box").profile(lines).start_in_vain();
            assert!(code != Some(0) && said.contains(expected), "{lines}: {said}");
        }
    });
}
