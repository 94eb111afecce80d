//! What runs cost, also those that end without the CLI's total, and how attempts share the budget of their task.

use super::claude::failure;
use super::*;
use crate::on_both;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

/// A thousandth of a dollar for a token that the model reads, and a hundredth for one that it writes.
const PRICES: &str = "prices = { claude-stub = { input = 1000, output = 10000 } }";
/// The stub's answers have 10 and 1 tokens when they begin.
const BEGUN: f64 = 0.02;

fn cost(task: &Value) -> (f64, bool) {
    (task["usage"]["cost_usd"].as_f64().unwrap_or_default(), task["usage"]["cost_estimated"] == json!(true))
}

fn is_about(cost: f64, expected: f64) -> bool {
    (cost - expected).abs() < 1e-9
}

on_both! { alone:
    async fn a_run_that_takes_too_long_costs_what_it_used(database) {
        let (server, api) = (Server::on(database).env("LEASE_TTL_SECONDS", 900).start(), Anthropic::start().await);
        let clock = BootClock::new();
        let agent = clock.of(server.agent("box").claude(&api, &format!("{}\n{PRICES}", BootClock::PASSED))).start();
        let policy = json!({"timeout_sec": 600});
        let task = server.crew().task().prompt("MODE-WAIT SAY: Kestrel").with("policy", policy).attempts(1).create().await;
        has_begun(&task).await;
        clock.advance(600);
        let late = failure(&task, "failed", "timeout").await;
        let (usd, is_estimated) = cost(&late);
        assert!(is_about(usd, BEGUN) && is_estimated, "{late}");
        assert_eq!((&late["usage"]["input_tokens"], &late["usage"]["output_tokens"]), (&json!(10), &json!(1)));
        let leases = server.get(&format!("leases?task_id={}", task.id)).await.ok();
        assert_eq!(leases[0]["usage"], late["usage"], "{leases}");
        agent.has_no_processes().await;
    }

    async fn a_run_that_is_killed_costs_what_it_used(database) {
        let (server, api) = (Server::on(database).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, PRICES).start();
        let task = server.crew().task().prompt("MODE-WAIT SAY: Kestrel").create().await;
        has_begun(&task).await;
        agent.kill9();
        agent.kill_processes();
        agent.has_no_processes().await;
        agent.start_again();
        let first = eventually("the attempt ends", || async {
            let now = task.now().await;
            now["usage"].is_object().then_some(now)
        })
        .await;
        let (usd, is_estimated) = cost(&first);
        assert!(is_about(usd, BEGUN) && is_estimated, "{first}");
        api.go_on();
        let done = task.reaches("completed").await;
        let leases = server.get(&format!("leases?task_id={}", task.id)).await.ok();
        assert_eq!(leases[0]["usage"]["cost_estimated"], Value::Null, "the CLI told the total of the second one: {leases}");
        let sum: f64 = leases.as_array().unwrap().iter().filter_map(|lease| lease["usage"]["cost_usd"].as_f64()).sum();
        let (usd, is_estimated) = cost(&done);
        assert!(is_about(usd, sum) && usd > BEGUN && is_estimated, "a part is estimated: {done}");
        agent.has_no_processes().await;
    }

    async fn attempts_share_the_budget(database) {
        let server = Server::on(database).start();
        // It waits until it may go, tells what it may cost, and costs a fifth of a dollar.
        let (program, go) = (janitor::new_path("program"), janitor::new_path("go"));
        std::fs::write(&program, concat!(
            "#!/bin/sh\ncase \"$*\" in *--version* | *--session-id=none*) exit;; esac\ncat >/dev/null\nwhile ! rm \"$GO\" 2>/dev/null; do sleep 0.02; done\nmay=$(printf '%s\\n' \"$@\" | sed -n 's/^--max-budget-usd=//p')\n",
            "echo '{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"s\",\"model\":\"m\"}'\n",
            "echo '{\"type\":\"result\",\"subtype\":\"error_during_execution\",\"is_error\":true,\"total_cost_usd\":0.2,\"errors\":[\"may cost '$may'\"]}'\n",
        ))
        .unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let profile = format!("program = {program:?}\nmax_budget_usd = 0.4\nenv = {{ GO = {go:?} }}");
        let agent = server.agent("box").profile(&profile).start();
        let task = server.crew().task().with("policy", json!({"timeout_sec": 60, "budget": 0.5})).create().await;
        for (spent, may) in [(0.2, "may cost 0.4"), (0.4, "may cost 0.3")] {
            std::fs::write(&go, "").unwrap();
            let now = eventually("the attempt ends", || async {
                let now = task.now().await;
                is_about(cost(&now).0, spent).then_some(now)
            })
            .await;
            assert_eq!((&now["failure"]["reason"], &now["failure"]["message"]), (&json!("agent_error"), &json!(may)), "{now}");
            // The next attempt has begun already, or begins now.
            server.patch(&task.path(""), json!({"not_before": null})).await;
        }
        std::fs::write(&go, "").unwrap();
        let dead = failure(&task, "dead", "budget_exceeded").await;
        let message = dead["failure"]["message"].as_str().unwrap();
        assert!(message.contains("cost 0.6000 USD") && message.ends_with("agent_error: may cost 0.1"), "{message}");
        assert_eq!((&dead["attempts"], cost(&dead).1), (&json!(3), false));
        agent.has_no_processes().await;
    }

    async fn a_command_is_ended_when_it_costs_more_than_the_budget(database) {
        let server = Server::on(database).start();
        // It tells what it has used, and goes on; or it tells that at its end.
        let said = json!({"type": "assistant", "message": {"id": "m", "model": "claude-stub", "usage": {"input_tokens": 900, "output_tokens": 1}}});
        let told = json!({"type": "result", "subtype": "success", "is_error": false, "result": "done", "total_cost_usd": 0.9});
        let script = format!("case \"$(cat)\" in *slow*) echo '{said}'; sleep 1000;; *) echo '{told}';; esac");
        let profile = format!("runner = \"command\"\ncommand = [\"sh\", \"-c\", {script:?}]\noutput = \"stream-json\"\n{PRICES}");
        let agent = server.agent("box").profile(&profile).start();
        let policy = json!({"timeout_sec": 60, "budget": 0.5});
        let ended = server.crew().task().prompt("slow").with("policy", policy.clone()).create().await;
        let failed = failure(&ended, "failed", "budget_exceeded").await;
        assert!(is_about(cost(&failed).0, 0.91), "{failed}");
        let late = server.crew().task().prompt("at the end").with("policy", policy).create().await;
        late.reaches("completed").await;
        assert_eq!(result(&late).await["warnings"], json!(["the run cost $0.9000, and its budget was $0.5000"]));
        agent.has_no_processes().await;
    }
}

#[test]
fn sub_agents_count() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "allowed_tools = [\"Agent\"]").start();
        let task = server.crew().task().prompt("MODE-AGENT SAY: all done").create().await;
        let done = task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("all done"));
        // Two messages of the run, and one of its sub-agent.
        assert_eq!((&done["usage"]["input_tokens"], &done["usage"]["output_tokens"]), (&json!(30), &json!(27)), "{done}");
        assert_eq!(told(&task, "usage").await[0]["input_tokens"], json!(30));
        agent.has_no_processes().await;
    });
}

#[test]
fn each_turn_of_a_conversation_costs_what_it_used_itself() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "").start();
        let mut costs = Vec::new();
        for turn in 1..=3 {
            let task = server.crew().task().context("talk").prompt(&format!("SAY: turn {turn}")).create().await;
            let done = task.reaches("completed").await;
            // What the stub served for one message.
            assert_eq!((&done["usage"]["input_tokens"], &done["usage"]["output_tokens"]), (&json!(10), &json!(9)), "turn {turn}: {done}");
            let (usd, is_estimated) = cost(&done);
            assert!(usd > 0.0 && !is_estimated, "{done}");
            costs.push(usd);
        }
        assert_eq!(api.seen().len(), 3, "one request a turn");
        assert!(costs.iter().all(|usd| is_about(*usd, costs[0])), "{costs:?}");
        agent.has_no_processes().await;
    });
}

#[test]
fn a_cancelled_run_costs_what_it_used() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, PRICES).start();
        let task = server.crew().task().prompt("MODE-WAIT SAY: Kestrel").create().await;
        has_begun(&task).await;
        task.cancel().await.ok();
        let (usd, is_estimated) = cost(&failure(&task, "cancelled", "cancelled").await);
        assert!(is_about(usd, BEGUN) && is_estimated, "{usd}");
        agent.has_no_processes().await;
    });
}
