//! Agents whose CLI costs money, fails, is out of quota or is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::prometheus::Prometheus;
use crate::support::agent::Agent;
use crate::support::{Database, Server, Task, janitor, json};

/// Answers as the Claude CLI does, with what the prompt asks for.
const CLI: &str = r#"#!/bin/sh
usage='"usage":{"input_tokens":10,"output_tokens":5},"num_turns":1'
case "$ACCOUNT $* $(cat)" in
*COSTS*) echo '{"type":"result","subtype":"success","is_error":false,"result":"done","total_cost_usd":60,'"$usage}" ;;
*FAILS*) echo '{"type":"result","subtype":"error_during_execution","is_error":true,"total_cost_usd":0,'"$usage}" ;;
# The agent probes an account before it pauses it, and while it is paused, with an answer of one word.
quota*QUOTA* | quota*Answer*)
    echo '{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":'"$(date +%s)"'}}'
    echo '{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"out of quota",'"$usage}" ;;
*REFUSED* | *Answer*) echo '{"type":"result","subtype":"success","is_error":true,"api_error_status":401,"result":"log in",'"$usage}" ;;
esac
"#;

pub async fn accounts_costs_and_failures(prometheus: &Prometheus) {
    const JOB: &str = "accounts";
    let server = Server::on(Database::Sqlite).start();
    prometheus.scrapes(JOB, &[&server]);
    let cli = janitor::new_path("cli");
    fs::write(&cli, CLI).unwrap();
    fs::set_permissions(&cli, fs::Permissions::from_mode(0o755)).unwrap();
    // Each agent serves the slug that has its name.
    let agent = |name: &str| -> Agent {
        let profiles = format!("[profiles.{name}]\naccount = {name:?}\nprogram = {cli:?}\nenv = {{ ACCOUNT = {name:?} }}\n");
        server.agent(name).profiles(&profiles).slots(4).start()
    };
    let (_working, _out_of_quota, refused) = (agent("working"), agent("quota"), agent("refused"));
    let crew = server.crew();
    let ask = async |agent: &str, prompt: &str| -> Task<'_> {
        crew.task().with("agent_slug", json!(agent)).prompt(prompt).attempts(1).create().await
    };
    let fail = async || {
        let mut tasks = Vec::new();
        for _ in 0..8 {
            tasks.push(ask("working", "FAILS").await);
        }
        for task in tasks {
            task.reaches("dead").await;
        }
    };
    let over_quota = ask("quota", "QUOTA").await;
    let of_refused = ask("refused", "REFUSED").await;
    for _ in 0..2 {
        ask("working", "COSTS").await.reaches("completed").await;
    }
    tokio::join!(
        prometheus.fires(JOB, "BloomCostHigh"),
        prometheus.fires(JOB, "BloomAccountRefused"),
        prometheus.fires(JOB, "BloomAccountOutOfQuota"),
        prometheus.fires_while(JOB, "BloomRunsFail", fail),
    );
    // Else it would exhaust the quota again as soon as that has reset.
    over_quota.cancel().await.ok();
    of_refused.cancel().await.ok();
    // As an administrator does who knows that there is quota again. Else the agent would probe it after five minutes.
    server.post("accounts/quota/resume", json!({})).await.ok();
    // As its user does after a correction of its key.
    refused.stop();
    refused.start_again();
    for alert in ["BloomCostHigh", "BloomAccountRefused", "BloomRunsFail", "BloomAccountOutOfQuota"] {
        prometheus.resolves(JOB, alert).await;
    }
}
