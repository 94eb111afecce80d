//! Accounts that the API refuses, and profiles that do not start: the real Claude CLI against a stub of its API.

use super::claude::failure;
use super::*;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

const CREDENTIALS: (u16, &str, &str) = (401, "authentication_error", "invalid x-api-key");
const CREDIT: (u16, &str, &str) = (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.");

async fn status(server: &Server) -> Value {
    server.get("workers/box").await.json()["status"].clone()
}

/// What the server shows of the worker's only pause.
async fn pause(server: &Server) -> Value {
    server.get("workers/box").await.json()["pauses"][0].clone()
}

async fn has_status(server: &Server, wanted: &str) {
    eventually(&format!("the worker is {wanted}"), || async { (status(server).await == json!(wanted)).then_some(()) }).await;
}

/// What the CLI does when a person signs in.
pub fn sign_in(agent: &agent::Agent) {
    let dir = agent.dir().join("home/.claude");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(".credentials.json"), "{}").unwrap();
}

#[test]
fn a_run_whose_key_the_api_refuses_is_ended_before_the_cli_gives_up() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let (status, kind, message) = CREDENTIALS;
        api.refuse_all(status, kind, message);
        let plan = server.agent("box");
        let profile = plan
            .claude_profile("default", &api, "", "")
            .replace("CLAUDE_CODE_MAX_RETRIES = \"0\"", "ANTHROPIC_API_KEY = \"sk-ant-refused\"");
        let agent = plan.profiles(&profile.replace("CLAUDE_CODE_OAUTH_TOKEN = \"\"\n", "")).start();
        let task = server.crew().task().prompt("Say hello").create().await;
        eventually("the task waits for its worker's account", || async { (task.waits_for().await == "worker_paused").then_some(()) }).await;
        let asked_again = told(&task, "log")
            .await
            .iter()
            .filter(|data| data["text"].as_str().is_some_and(|text| text.contains("is asked again")))
            .count();
        assert_eq!(asked_again, 4, "{}", agent.log());
        assert!(task.now().await["failure"]["message"].as_str().unwrap().contains("authentication_failed"));
        agent.has_no_processes().await;
    });
}

#[test]
fn an_agent_says_at_its_start_that_claude_is_not_signed_in() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let signed_in = server.agent("in").claude(&api, "").start();
        let plan = server.agent("out");
        let profile = plan.claude_profile("default", &api, "", "");
        let agent = plan.profiles(&profile).start();
        eventually("both are registered", || async { (server.get("workers").await.ok().as_array()?.len() == 2).then_some(()) }).await;
        assert!(agent.log().contains("the Claude CLI is not signed in, so tasks of this profile wait: start `claude`"), "{}", agent.log());
        assert!(!signed_in.log().contains("not signed in"), "{}", signed_in.log());
    });
}

#[test]
fn tasks_wait_until_somebody_has_signed_in() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        api.refuse_all(CREDENTIALS.0, CREDENTIALS.1, CREDENTIALS.2);
        let agent = server.agent("box").claude(&api, "").start();
        let mut tasks = Vec::new();
        for number in 0..3 {
            tasks.push(server.crew().task().prompt(&format!("SAY: {number}")).create().await);
        }
        has_status(&server, "error").await;
        for task in &tasks {
            let waits = || async {
                let now = task.now().await;
                ((&now["status"], &now["attempts"]) == (&json!("queued"), &json!(0))).then_some(())
            };
            eventually("the task waits and keeps its attempts", waits).await;
        }
        let told = pause(&server).await;
        assert_eq!([&told["kind"], &told["name"], &told["cause"]], [&json!("account"), &json!("default"), &json!("credentials")], "{told}");
        assert!(told["message"].as_str().unwrap().contains("): sign in with claude"), "{told}");
        assert!(told["since"].as_i64() < told["until"].as_i64(), "{told}");
        eventually("a waiting task says it", || async {
            let waiting = tasks[0].now().await["waiting"].clone();
            let message = waiting["message"].as_str().unwrap_or_default().to_owned();
            (waiting["reason"] == json!("worker_paused")
                && message.contains("an account was refused, and somebody must sign in there: start `claude`"))
            .then_some(())
        })
        .await;
        assert!(server.get("/metrics").await.expect(200).text.contains("bloom_worker_pauses{cause=\"credentials\"} 1"));
        let shown = server.plan().command(&["worker", "list", "--server", server.base()]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("error,credentials"), "{shown}");
        api.heal();
        sign_in(&agent);
        for task in &tasks {
            task.reaches("completed").await;
        }
        assert_eq!(status(&server).await, json!("online"));
        assert_eq!(pause(&server).await, Value::Null);
        assert!(agent.log().contains("sign in with claude"), "{}", agent.log());
    });
}

#[test]
fn an_account_that_has_credit_again_goes_on_by_itself() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        api.refuse_all(CREDIT.0, CREDIT.1, CREDIT.2);
        let agent = server.agent("box").claude(&api, "").start();
        let task = server.crew().task().prompt("SAY: hello").attempts(1).create().await;
        has_status(&server, "error").await;
        eventually("the run is reported", || async { (task.now().await["failure"]["reason"] == json!("billing")).then_some(()) }).await;
        api.heal();
        task.reaches("completed").await;
        assert!(agent.log().contains("top it up"), "{}", agent.log());
    });
}

#[test]
fn a_model_that_the_account_may_not_use_fails_its_task_and_nothing_else() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let _agent = server.agent("box").claude(&api, "").start();
        for model in ["claude-forbidden-1", "claude-unknown-1"] {
            let task = server.crew().task().prompt("SAY: hello").with("model", json!(model)).create().await;
            let failed = failure(&task, "failed", "model_unavailable").await;
            assert_eq!(failed["attempts"], json!(1), "{failed}");
        }
        assert_eq!(status(&server).await, json!("online"));
        server.crew().task().prompt("SAY: hello").create().await.reaches("completed").await;
    });
}

#[test]
fn a_profile_whose_runs_do_not_start_costs_no_attempts() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let plan = server.agent("box");
        let config = plan.dir().join("mcp.json");
        std::fs::create_dir_all(plan.dir()).unwrap();
        std::fs::write(&config, "no JSON").unwrap();
        let agent = plan.claude(&api, &format!("mcp_config = {:?}", config.display().to_string())).start();
        let mut tasks = Vec::new();
        for _ in 0..3 {
            tasks.push(server.crew().task().prompt("SAY: hello").attempts(1).create().await);
        }
        has_status(&server, "error").await;
        eventually("the log says what to do", || async { agent.log().contains("the profile default end before they begin").then_some(()) })
            .await;
        std::fs::write(&config, r#"{"mcpServers":{}}"#).unwrap();
        for task in &tasks {
            let done = task.reaches("completed").await;
            assert_eq!(done["attempts"], json!(1), "{done}");
        }
        assert_eq!(status(&server).await, json!("online"));
    });
}

#[test]
fn a_profile_whose_program_is_not_the_cli_is_paused() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").profile("program = \"/bin/true\"").start();
        let task = server.crew().task().prompt("SAY: hello").attempts(1).create().await;
        has_status(&server, "error").await;
        let told = pause(&server).await;
        assert!(told["cause"] == "start" && told["message"].to_string().contains("printed no stream of the Claude CLI"), "{told}");
        // The worker tells its pause before it gives the task back.
        let now = eventually("the task is given back", || async { Some(task.now().await).filter(|now| now["status"] == "queued") }).await;
        assert_eq!((&now["attempts"], &now["infra_retries"]), (&json!(0), &json!(1)), "{}", agent.log());
    });
}

#[test]
fn a_fallback_runs_the_tasks_of_a_paused_account() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let other = "fallback = \"other\"\n[profiles.other]\nrunner = \"command\"\ncommand = [\"sh\"]\naccount = \"b\"";
        let _agent = server.agent("box").claude(&api, other).start();
        let task = server.crew().task().prompt("echo by the fallback # MODE-429").attempts(1).create().await;
        let done = task.reaches("completed").await;
        assert_eq!((&done["attempts"], &done["infra_retries"]), (&json!(1), &json!(1)), "{done}");
        assert_eq!(result(&task).await["output"], json!("by the fallback\n"));
        let worker = server.get("workers/box").await.ok();
        let told = (&worker["status"], &worker["pauses"][0]["cause"], &worker["pauses"][0]["agents"]);
        assert_eq!(told, (&json!("online"), &json!("quota"), &json!([])), "nothing is closed: {worker}");
        let runs = api.seen_with("MODE-429").len();
        let task = server.crew().task().prompt("echo at once # MODE-429").create().await;
        assert_eq!(task.reaches("completed").await["infra_retries"], json!(0));
        assert_eq!(api.seen_with("MODE-429").len(), runs, "the paused account is not tried");
    });
}

#[test]
fn a_run_that_is_refused_while_its_account_works_says_why_the_attempt_counts() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let _agent = server.agent("box").claude(&api, "").start();
        let task = server.crew().task().prompt("SAY: hello # MODE-401").attempts(1).create().await;
        let failed = failure(&task, "dead", "agent_error").await;
        assert_eq!(failed["attempts"], json!(1));
        let message = failed["failure"]["message"].as_str().unwrap();
        assert!(message.ends_with("; the account works without this task, so the attempt counts"), "{message}");
    });
}

#[test]
fn what_a_task_brings_pauses_nothing() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "setting_sources = [\"user\", \"project\"]").start();
        // The CLI ends with status 0, and without a session.
        let blank = server.crew().task().prompt(" ").attempts(1).create().await;
        assert_eq!(failure(&blank, "dead", "agent_error").await["attempts"], json!(1));
        let context = async |name: &str| {
            server.crew().task().context(name).prompt("SAY: hello").create().await.reaches("completed").await;
            let contexts = std::fs::read_dir(agent.dir().join("work/contexts")).unwrap().map(|entry| entry.unwrap().path());
            contexts.max_by_key(|path| path.metadata().unwrap().created().unwrap()).unwrap()
        };
        // A hook that an earlier run of the context has left.
        let settings = context("evil").await.join(".claude");
        std::fs::create_dir_all(&settings).unwrap();
        let hook = json!({ "hooks": { "SessionStart": [{ "hooks": [{ "type": "command", "command": "kill -9 $PPID" }] }] } });
        std::fs::write(settings.join("settings.json"), hook.to_string()).unwrap();
        let killed = server.crew().task().context("evil").prompt("SAY: hello").attempts(1).create().await;
        failure(&killed, "dead", "agent_error").await;
        // A file where the directory of the context should be.
        let directory = context("file").await;
        std::fs::remove_dir_all(&directory).unwrap();
        std::fs::write(&directory, "").unwrap();
        let file = server.crew().task().context("file").prompt("SAY: hello").create().await;
        eventually("it has failed once", || async { (file.now().await["failure"]["reason"] == json!("spawn_failed")).then_some(()) }).await;
        assert_eq!((status(&server).await, pause(&server).await), (json!("online"), Value::Null));
        server.crew().task().prompt("SAY: hello").create().await.reaches("completed").await;
    });
}

#[test]
fn the_model_of_a_profile_pauses_the_profile_and_not_its_account() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "");
        // All profiles of the agent have the same environment.
        let text = std::fs::read_to_string(agent.dir().join("profiles.toml")).unwrap();
        let own = |name: &str, model: &str| {
            text.replace("profiles.default", &format!("profiles.{name}")).replacen('\n', &format!("\n{model}\n"), 1)
        };
        let agent = agent.profiles(&format!("{}\n{}", own("good", ""), own("zbad", "model = \"claude-forbidden-1\""))).start();
        let task = |slug: &str| server.crew().task().with("agent_slug", json!(slug)).prompt("SAY: hello");
        let bad = task("zbad").create().await;
        eventually("the profile is paused", || async {
            let told = pause(&server).await;
            ([&told["kind"], &told["name"], &told["cause"]] == [&json!("profile"), &json!("zbad"), &json!("model")]).then_some(())
        })
        .await;
        task("good").create().await.reaches("completed").await;
        assert_eq!((bad.status().await.as_str(), status(&server).await), ("queued", json!("online")), "{}", agent.log());
    });
}

#[test]
fn a_model_without_quota_keeps_its_own_task_waiting_and_nobody_else() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let other = "account = \"team\"\nfallback = \"other\"\n[profiles.other]\nrunner = \"command\"\ncommand = [\"sh\"]\naccount = \"b\"";
        let agent = server.agent("box").claude(&api, other).start();
        let limited = server.crew().task().with("model", json!("claude-limited-1")).prompt("SAY: hello").attempts(1).create().await;
        let waiting = eventually("the task waits", || async {
            let now = limited.now().await;
            (now["failure"]["reason"] == json!("rate_limited")).then_some(now)
        })
        .await;
        assert_eq!([&waiting["status"], &waiting["attempts"], &waiting["infra_retries"]], [&json!("queued"), &json!(0), &json!(1)]);
        assert!(waiting["failure"]["message"].as_str().unwrap().contains("only this task waits"), "{waiting}");
        assert!(waiting["not_before"].as_i64().unwrap() - now_ms() > 60_000, "a probe is paid for each of its tries: {waiting}");
        assert_eq!((status(&server).await, pause(&server).await), (json!("online"), Value::Null), "{}", agent.log());
        let task = server.crew().task().prompt("SAY: hello").create().await;
        task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("hello"), "not by the fallback");
    });
}

#[test]
fn an_account_that_is_mended_while_it_is_probed_is_no_fault_of_the_model() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        api.refuse_all(CREDENTIALS.0, CREDENTIALS.1, CREDENTIALS.2);
        api.heal_between_probes();
        let agent = server.agent("box").claude(&api, "").start();
        let task = server.crew().task().prompt("SAY: hello").attempts(1).create().await;
        let done = task.reaches("completed").await;
        assert_eq!((&done["attempts"], &done["infra_retries"]), (&json!(1), &json!(1)), "{done}");
        assert!(!agent.log().contains("choose another one"), "{}", agent.log());
    });
}

/// One account of an agent that serves all slugs is refused: only the tasks of its profile wait.
#[test]
fn a_paused_profile_beside_the_default_one_stops_its_own_tasks_only() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        api.refuse_all(CREDENTIALS.0, CREDENTIALS.1, CREDENTIALS.2);
        let plan = server.agent("box");
        let other = plan.claude_profile("other", &api, "sk-ant-oat01-dummy", "account = \"other\"");
        let _agent = plan.profiles(&format!("[profiles.default]\nrunner = \"echo\"\n{other}")).start();
        let of = async |slug: &str| server.crew().task().with("agent_slug", json!(slug)).prompt("SAY: hello").create().await;
        let refused = of("other").await;
        eventually("its task waits for the account", || async { (refused.waits_for().await == "worker_paused").then_some(()) }).await;
        assert_eq!(status(&server).await, json!("online"));
        assert_eq!(pause(&server).await["agents"], json!(["other"]));
        of("anyone").await.reaches("completed").await;
        api.heal();
        server.post("accounts/other/resume", json!({})).await.ok();
        refused.reaches("completed").await;
        of("anyone").await.reaches("completed").await;
    });
}

/// Both are probed after a login. The first one's provider does not answer for as long as a probe lasts.
#[test]
fn an_account_does_not_wait_for_the_probe_of_another() {
    run(async {
        let (server, hangs, works) = (Server::on(Database::Sqlite).start(), Anthropic::start().await, Anthropic::start().await);
        for api in [&hangs, &works] {
            api.refuse_all(CREDENTIALS.0, CREDENTIALS.1, CREDENTIALS.2);
        }
        let plan = server.agent("box").slots(2);
        let of = |name, api| plan.claude_profile(name, api, "sk-ant-oat01-dummy", &format!("account = \"{name}\""));
        let profiles = [of("first", &hangs), of("second", &works)].concat();
        let agent = plan.profiles(&profiles).start();
        let task = async |slug: &str| server.crew().task().with("agent_slug", json!(slug)).prompt("SAY: hello").create().await;
        let (first, second) = (task("first").await, task("second").await);
        for task in [&first, &second] {
            eventually("its account is paused", || async { (task.waits_for().await == "worker_paused").then_some(()) }).await;
        }
        hangs.hold(true);
        works.heal();
        sign_in(&agent);
        eventually("the first is probed", || async { hangs.holds_one().then_some(()) }).await;
        second.reaches("completed").await;
        assert!(hangs.holds_one(), "the probe of the first still waits");
        hangs.heal();
        hangs.hold(false);
        first.reaches("completed").await;
    });
}

#[test]
fn a_probe_that_began_before_a_resume_pauses_nothing() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        api.refuse_all(CREDENTIALS.0, CREDENTIALS.1, CREDENTIALS.2);
        let agent = server.agent("box").claude(&api, "account = \"team\"").start();
        let task = server.crew().task().prompt("SAY: hello").create().await;
        eventually("its account is paused", || async { (task.waits_for().await == "worker_paused").then_some(()) }).await;
        let paused = || agent.log().matches("): sign in with claude").count();
        let before = paused();
        api.hold(true);
        sign_in(&agent);
        eventually("it is probed", || async { api.holds_one().then_some(()) }).await;
        server.post("accounts/team/resume", json!({})).await.ok();
        let is_resumed = || async { agent.log().contains("an administrator has ended the pause").then_some(()) };
        eventually("the agent has resumed it", is_resumed).await;
        // What the probe asked is refused; a run that has begun since is not.
        api.heal_and_release();
        task.reaches("completed").await;
        assert_eq!((paused(), pause(&server).await), (before, Value::Null), "{}", agent.log());
    });
}
