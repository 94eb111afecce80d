//! Accounts that several workers use: what one of them finds out, the others learn. With the real Claude CLI.

use super::accounts::sign_in;
use super::*;
use crate::on_both;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

/// The pause of a worker, if it has one.
async fn pause(server: &Server, worker: &str) -> Option<Value> {
    server.get(&format!("workers/{worker}")).await.json()["pauses"].get(0).cloned()
}

/// Waits until the worker was told of a pause, and takes no tasks.
async fn is_told(server: &Server, worker: &str) -> Value {
    eventually("the other worker learns of the pause", || async {
        let shown = server.get(&format!("workers/{worker}")).await.json();
        let told = shown["pauses"].get(0).filter(|pause| pause["told_by"].is_string())?;
        (shown["status"] == json!("syncing")).then(|| told.clone())
    })
    .await
}

fn said(server: &Server, words: &[&str]) -> String {
    let words = [words, &["--server", server.base()]].concat();
    let output = server.plan().command(&words).output().expect("the program starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

on_both! { alone:
    async fn one_worker_finds_out_for_all(database) {
        let (server, api) = (Server::on(database).start(), Anthropic::start().await);
        let agents = ["a", "b"].map(|name| server.agent(name).claude(&api, "account = \"team\"").start());
        let task = server.crew().task().prompt("MODE-429 SAY: hello").create().await;
        let first = eventually("one worker finds out", || async { task.now().await["failure"]["message"].as_str()?; Some(()) });
        first.await;
        let runs = api.seen_with("MODE-429").len();
        let (origin, other) = if pause(&server, "a").await.is_some_and(|pause| pause["told_by"].is_null()) { (0, 1) } else { (1, 0) };
        let names = ["a", "b"];
        let told = is_told(&server, names[other]).await;
        let own = pause(&server, names[origin]).await.expect("its pause");
        assert_eq!([&told["kind"], &told["name"], &told["cause"], &told["until"]], [&own["kind"], &own["name"], &own["cause"], &own["until"]]);
        assert_eq!((&told["told_by"], &told["cause"]), (&json!(names[origin]), &json!("quota")));
        assert!(told["message"].as_str().unwrap().contains(&format!("(as worker {} found out)", names[origin])), "{told}");

        let waiting = eventually("the task waits for the end of the pause", || async {
            let waiting = task.now().await["waiting"].clone();
            (waiting["reason"] == json!("worker_paused")).then_some(waiting)
        })
        .await;
        assert_eq!(waiting["until"], own["until"], "{waiting}");
        let message = waiting["message"].as_str().unwrap();
        assert!(message.contains("an account is out of quota; tried again at 20"), "{waiting}");
        assert!(!["team", "worker 'a'", "worker 'b'", "used up"].iter().any(|name| message.contains(name)), "{waiting}");
        assert_eq!(server.get(&format!("llm-tasks?agent_slug={}", task.now().await["agent_slug"].as_str().unwrap())).await.ok()[0]["waiting"], waiting);
        for (words, text) in [
            (&["task", "list"][..], "worker_paused ("),
            (&["task", "get", &task.id], "worker_paused ("),
            (&["task", "get", &task.id, "-o", "yaml"], "is out of quota"),
            (&["task", "describe", &task.id], "is out of quota"),
        ] {
            let shown = said(&server, words);
            assert!(shown.contains(text), "{words:?}: {shown}");
        }

        agents[other].kill9();
        agents[other].start_again();
        eventually("it registers again", || async { agents[other].log().matches("registered").nth(1).map(drop) }).await;
        is_told(&server, names[other]).await;
        task.reaches("queued").await;
        assert_eq!(api.seen_with("MODE-429").len(), runs, "it hands the task back: no other run meets the quota");

        api.heal();
        agents[origin].stop();
        let done = task.reaches("completed").await;
        assert_eq!(done["worker_id"], json!(names[other]), "the pause ends with its origin");
        assert_eq!(pause(&server, names[other]).await, None);
    }
}

#[test]
fn the_account_default_is_that_of_each_machine() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let _agents = ["a", "b"].map(|name| server.agent(name).claude(&api, "").start());
        let _task = server.crew().task().prompt("MODE-429 SAY: hello").create().await;
        for worker in ["a", "b"] {
            let own = eventually("it finds out by itself", || pause(&server, worker)).await;
            assert_eq!((&own["name"], &own["told_by"]), (&json!("default"), &Value::Null), "{own}");
        }
    });
}

#[test]
fn a_task_runs_by_the_fallback_at_once_if_another_worker_has_found_out() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let until = now_ms() + 3_600_000;
        let pause = json!({
            "kind": "account", "name": "team", "cause": "quota", "since": until - 3_700_000, "until": until, "message": "", "agents": [],
        });
        server.post("workers", json!({ "name": "other", "status": "syncing", "pauses": [pause] })).await.created();
        let more = "account = \"team\"\nfallback = \"other\"\n[profiles.other]\nrunner = \"command\"\ncommand = [\"sh\"]\naccount = \"b\"";
        let _agent = server.agent("box").claude(&api, more).start();
        let task = server.crew().task().prompt("echo by the fallback # MODE-429").attempts(1).create().await;
        assert_eq!(task.reaches("completed").await["infra_retries"], json!(0));
        assert_eq!(result(&task).await["output"], json!("by the fallback\n"));
        assert!(api.seen().is_empty());
    });
}

/// A run prints what the CLI prints when the quota is used up until next week.
const FORGER: &str = r#"[profiles.forger]
runner = "command"
output = "stream-json"
account = "team"
command = ["sh", "-c", """
echo '{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":'"$(($(date +%s) + 691000))"'}}'
echo '{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"SECRET-WORDS"}'"""]
"#;
const MINUTE_MS: i64 = 60_000;

#[test]
fn a_forged_quota_closes_the_account_for_minutes_only() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let _forger = server.agent("forger").profiles(FORGER).start();
        let _task = server.crew().task().with("agent_slug", json!("forger")).prompt("hello").create().await;
        let own = eventually("the forger is paused", || pause(&server, "forger")).await;
        let minutes = |pause: &Value| (pause["until"].as_i64().unwrap() - now_ms()) / MINUTE_MS;
        assert!((1..15).contains(&minutes(&own)), "{own}");
        let agent = server.agent("other").claude(&api, "account = \"team\"").start();
        let told = is_told(&server, "other").await;
        assert!((1..10).contains(&minutes(&told)), "{told}");
        assert!(!told.to_string().contains("SECRET-WORDS"), "{told}");
        // A login has the account probed at once, instead of in some minutes.
        sign_in(&agent);
        eventually("it looks for itself, and takes tasks again", || async { pause(&server, "other").await.is_none().then_some(()) }).await;
        server.crew().task().with("agent_slug", json!("default")).prompt("SAY: hello").create().await.reaches("completed").await;
        assert!(pause(&server, "forger").await.is_some(), "the other worker still says that the account is out of quota");
    });
}

#[test]
fn a_quota_is_probed_while_its_pause_lasts() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "").start();
        let task = server.crew().task().prompt("MODE-429 SAY: hello").create().await;
        let own = eventually("it is paused", || pause(&server, "box")).await;
        assert!(own["until"].as_i64().unwrap() - now_ms() <= 5 * MINUTE_MS, "the API named a reset in an hour: {own}");
        api.heal();
        sign_in(&agent);
        task.reaches("completed").await;
        assert_eq!(pause(&server, "box").await, None);
    });
}

#[test]
fn an_administrator_ends_a_pause_on_all_workers() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let _agents = ["a", "b"].map(|name| server.agent(name).claude(&api, "account = \"team\"").start());
        let task = server.crew().task().prompt("MODE-429 SAY: hello").create().await;
        for worker in ["a", "b"] {
            eventually("both are paused", || pause(&server, worker)).await;
        }
        let listed = server.get("accounts").await.ok();
        let account = &listed[0];
        assert_eq!(
            [&account["kind"], &account["name"], &account["cause"]],
            [&json!("account"), &json!("team"), &json!("quota")],
            "{listed}"
        );
        assert_eq!((&account["workers"], &account["resumed"]), (&json!(["a", "b"]), &json!(false)), "{listed}");
        assert!(said(&server, &["account", "list"]).contains("team"));
        api.heal();
        let resumed = said(&server, &["account", "resume", "team"]);
        assert!(resumed.contains("resumed"), "{resumed}");
        task.reaches("completed").await;
        let is_over = || async { (server.get("accounts").await.ok() == json!([])).then_some(()) };
        eventually("no pause is left", is_over).await;
        server.post("accounts/team/resume", json!({})).await.expect(404);
        let audit = server.get("audit?limit=1000").await.ok();
        let entries = audit.as_array().unwrap().iter().filter(|entry| entry["action"] == json!("account_resumed"));
        assert_eq!(entries.count(), 2, "{audit}");
    });
}

#[test]
fn a_worker_key_pauses_an_account_for_an_hour_at_most() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let until = now_ms() + 8 * 24 * 60 * MINUTE_MS;
        let pause = json!({
            "kind": "account", "name": "team", "cause": "quota", "since": now_ms(), "until": until, "message": "", "agents": [],
        });
        let worker = json!({ "name": "liar", "status": "syncing", "pauses": [pause] });
        let shown = server.post("workers", worker.clone()).await.created();
        let end = shown["pauses"][0]["until"].as_i64().unwrap();
        assert!(end <= now_ms() + 60 * MINUTE_MS, "{shown}");
        assert_eq!(server.post("workers", worker).await.ok()["pauses"], shown["pauses"], "a repetition is no change");
    });
}
