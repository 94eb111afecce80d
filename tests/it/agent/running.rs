//! How an agent runs tasks.

use super::*;
use crate::on_both;
use crate::support::{Database, Server};

on_both! { alone:
    async fn a_task_runs_and_its_answer_comes_back(database) {
        let server = Server::on(database).start();
        let agent = server.agent("box").slots(3).shell().start();
        let task = server.crew().task().prompt("echo hello; echo oops >&2").create().await;
        let done = task.reaches("completed").await;
        assert_eq!((done["worker_id"].as_str(), done["attempts"].as_i64()), (Some("box"), Some(1)));
        assert_eq!(result(&task).await["output"], json!("hello\n"));
        let phases: Vec<Value> = told(&task, "lifecycle").await.iter().map(|data| data["phase"].clone()).collect();
        assert_eq!(phases, [json!("started"), json!("ended")]);
        assert_eq!(told(&task, "text").await, [json!({"text": "hello\n"})]);
        assert_eq!(told(&task, "stderr").await, [json!({"text": "oops\n"})]);
        let worker = server.get("workers/box").await.ok();
        assert_eq!((&worker["status"], &worker["capabilities"]["max_concurrency"], &worker["capabilities"]["claude_cli"]), (&json!("online"), &json!(3), &json!(false)));
        assert_eq!(worker["agent_version"], json!(env!("CARGO_PKG_VERSION")));
        agent.has_no_processes().await;
        eventually("the run's files are removed", || async { (agent.kept_runs() == 0).then_some(()) }).await;
    }

    async fn text_is_told_while_the_run_goes_on(database) {
        let server = Server::on(database).start();
        let _agent = server.agent("box").shell().start();
        let latch = Latch::new();
        let task = server.crew().task().prompt(&format!("echo first; {}; echo second", latch.wait())).create().await;
        let first = eventually("the first text is sent", || async {
            let texts = told(&task, "text").await;
            (!texts.is_empty()).then_some(texts)
        }).await;
        assert_eq!(first, [json!({"text": "first\n"})]);
        assert_eq!(task.status().await, "running");
        latch.open();
        task.reaches("completed").await;
        assert_eq!(told(&task, "text").await, [json!({"text": "first\n"}), json!({"text": "second\n"})]);
    }
}

fn sqlite(body: impl AsyncFnOnce(Server)) {
    run(async { body(Server::on(Database::Sqlite).start()).await });
}

#[test]
fn the_echo_runner_answers_with_what_it_was_asked() {
    sqlite(async |server| {
        let _agent = server.agent("box").echo().start();
        let crew = server.crew();
        let text = crew.task().prompt("Say hello").create().await;
        let json_task = crew.task().prompt("Say hello").with("desired_format", json!("json")).create().await;
        let done = text.reaches("completed").await;
        assert_eq!(result(&text).await["output"], json!("Say hello"));
        assert!(done["session_id"].is_string());
        assert_eq!(done["usage"], json!({"input_tokens": 2, "output_tokens": 2, "cost_usd": 0.0}));
        json_task.reaches("completed").await;
        let answer = result(&json_task).await["output"].as_str().unwrap().to_owned();
        assert!(serde_json::from_str::<Value>(&answer).unwrap()["echo"].as_str().unwrap().starts_with("Say hello"));
    });
}

#[test]
fn a_context_keeps_its_directory_and_others_have_their_own() {
    sqlite(async |server| {
        let _agent = server.agent("box").shell().start();
        let crew = server.crew();
        let first = crew.task().context("a/b").prompt("echo kept > note; pwd").create().await;
        first.reaches("completed").await;
        let second = crew.task().context("a/b").prompt("cat note; pwd; exit 0").with("context_hints", json!(["note"])).create().await;
        second.reaches("completed").await;
        let directory = result(&first).await["output"].as_str().unwrap().to_owned();
        assert_eq!(result(&second).await["output"], json!(format!("kept\n{directory}")));
        let other = crew.task().context("a_b").prompt("ls").create().await;
        other.reaches("completed").await;
        assert_eq!(result(&other).await["output"], json!(""));
    });
}

#[test]
fn runs_do_not_get_the_agents_keys() {
    run(async {
        let server = Server::on(Database::Sqlite).env("RUNTIME_API_KEY", "admin-key").env("RUNTIME_WORKER_KEY", "worker-key").start();
        let agent = server.agent("box").env("BLOOM_KEY", "worker-key").env("MEMBRIDGE_AGENT_KEY", "agent-key").shell().start();
        let api = server.with_key("admin-key");
        let task = api.crew().task().prompt("env").create().await;
        task.reaches("completed").await;
        let environment = result(&task).await["output"].as_str().unwrap().to_owned();
        assert!(environment.contains(&format!("BLOOM_TASK_ID={}", task.id)), "{environment}");
        for text in [&environment, &agent.log()] {
            assert!(!text.contains("worker-key") && !text.contains("agent-key"), "{text}");
        }
    });
}

#[test]
fn runs_inherit_what_is_named() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let profiles = "[profiles.plain]\nrunner = \"command\"\ncommand = [\"sh\"]\n\
                        [profiles.more]\nrunner = \"command\"\ncommand = [\"sh\"]\npass_env = [\"NPM_TOKEN\", \"MINIO_*\"]\nenv = { ADDED = \"6\" }\n";
        let agent = server.agent("box").profiles(profiles);
        let of_agent =
            ["MINIO_SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT", "NPM_TOKEN", "ANTHROPIC_MODEL", "LC_TIME"];
        let values = of_agent.iter().filter(|name| !name.starts_with("OTEL"));
        let _agent = values.fold(agent, |agent, name| agent.env(name, "1")).env(of_agent[2], "http://127.0.0.1:9").start();
        let environment = async |profile: &str| {
            let task = server.crew().task().with("agent_slug", json!(profile)).prompt("env").create().await;
            task.reaches("completed").await;
            let printed = result(&task).await["output"].as_str().unwrap().to_owned();
            let names = printed.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.to_owned());
            names.filter(|name| name == "ADDED" || of_agent.contains(&name.as_str())).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(environment("plain").await, ["ANTHROPIC_MODEL", "LC_TIME"].map(str::to_owned).into());
        let more = ["ADDED", "ANTHROPIC_MODEL", "LC_TIME", "MINIO_SECRET_KEY", "NPM_TOKEN"].map(str::to_owned);
        assert_eq!(environment("more").await, more.into());
        let wrong = server.agent("other").profile("runner = \"echo\"\npass_env = [\"BLOOM_KEY\"]");
        let (_, said) = wrong.start_in_vain();
        assert!(said.contains("profile default: pass_env: BLOOM_KEY is the agent's own"), "{said}");
    });
}

#[test]
fn profiles_decide_what_runs_and_what_is_offered() {
    sqlite(async |server| {
        let profiles = "[profiles.lower]\nrunner = \"command\"\ncommand = [\"cat\"]\n\
                        [profiles.upper]\nrunner = \"command\"\ncommand = [\"tr\", \"a-z\", \"A-Z\"]\n";
        let _agent = server.agent("box").slots(2).profiles(profiles).start();
        let create = async |slug: &str| server.crew().task().with("agent_slug", json!(slug)).prompt("quiet").create().await;
        let (upper, other) = (create("upper").await, create("nobody").await);
        upper.reaches("completed").await;
        assert_eq!(result(&upper).await["output"], json!("QUIET\n"));
        assert_eq!(server.get("workers/box").await.ok()["capabilities"]["agents"], json!(["lower", "upper"]));
        assert_eq!(other.waits_for().await, "no_worker");
    });
}

#[test]
fn set_ups_that_cannot_work_are_told() {
    sqlite(async |server| {
        let (code, said) = server.agent("box").arg(&["--runner", "nonsense"]).start_in_vain();
        assert_eq!(code, Some(2));
        assert!(said.contains("there is no runner nonsense"), "{said}");
        let (code, said) = server.agent("box").echo().arg(&["--listen", "127.0.0.1:0"]).start_in_vain();
        assert_eq!(code, Some(2));
        assert!(said.contains("--agent-key-file"), "{said}");
        let running = server.agent("box").echo().start();
        eventually("the agent is registered", || async { server.get("workers/box").await.status.eq(&200).then_some(()) }).await;
        let work = running.work_dir().display().to_string();
        let (code, said) = server.agent("other").echo().env("BLOOM_WORK_DIR", work).start_in_vain();
        assert_eq!(code, Some(1));
        assert!(said.contains("another agent uses"), "{said}");
    });
    run(async {
        let server = Server::on(Database::Sqlite).env("RUNTIME_API_KEY", "admin-key").start();
        let (code, said) = server.agent("box").env("BLOOM_KEY", "wrong").echo().start_in_vain();
        assert_eq!(code, Some(1));
        assert!(said.contains("the server refuses this key") && !said.contains("wrong-key"), "{said}");
    });
}

#[test]
fn hints_that_lead_out_of_the_directory_are_refused() {
    sqlite(async |server| {
        let tally = Tally::new();
        let _agent = server.agent("box").shell().start();
        let task = server.crew().task().prompt(&tally.mark()).with("context_hints", json!(["../../agent.json"])).create().await;
        let failed = task.reaches("failed").await;
        assert_eq!(failed["failure"]["reason"], json!("agent_error"));
        assert!(failed["failure"]["message"].as_str().unwrap().contains("leads out of the context's directory"));
        assert_eq!(tally.count(), 0);
    });
}

#[test]
fn a_server_with_its_default_limits_is_no_hindrance() {
    run(async {
        let limits = ["RATE_LIMIT_PER_MINUTE", "WORKER_RATE_LIMIT_PER_MINUTE", "TEST_CONNECTION_PER_MINUTE"];
        let server = limits.iter().fold(Server::on(Database::Sqlite), |plan, name| plan.env(name, "")).start();
        let _agent = server.agent("box").slots(32).echo().start();
        let tasks: Vec<Value> = (0..150).map(|n| json!({"context_id": format!("c{n}"), "agent_slug": "a", "prompt": "hello"})).collect();
        server.post("llm-tasks:batch", json!({"tasks": tasks})).await.created();
        eventually("all are completed", || async {
            let stats = server.try_get("/metrics").await.ok()?;
            stats.text.contains("bloom_tasks{status=\"completed\"} 150").then_some(())
        })
        .await;
    });
}
