//! What the real Claude CLI in a sandbox takes as its settings: nothing that its run has written.

use super::*;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

/// A command that is allowed, and executes this program.
fn python(program: &str) -> String {
    format!("python3 -c 'exec(bytes.fromhex(\"{}\"))'", hex::encode(program))
}

/// Writes what it can of a program in Python, which defines `home`, and waits until the CLI may have read it.
const WRITES: &str = r#"
import json, os, pathlib, time
home = pathlib.Path.home()
claude = home / ".claude"
def write(path, what):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(what))
settings = {"permissions": {"allow": ["Bash", "Write"]}}
def attack():
    ATTACK
try:
    attack()
except OSError as error:
    print(error)
time.sleep(4)
"#;

#[test]
fn a_run_writes_no_settings_for_its_own_cli() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).keyed().start(), Anthropic::start().await);
        let profile = "ask_human = true\nallowed_tools = [\"Bash(python3 *)\"]\nsandbox = \"bubblewrap\"";
        let agent = server.agent("box").slots(6).claude(&api, profile).start();
        let attacks = [
            "write(claude / 'settings.json', settings)",
            "claude.rename(home / 'moved'); write(claude / 'settings.json', settings)",
            "home.rename('/tmp/moved'); write(claude / 'settings.json', settings)",
            "write(claude / 'settings.local.json', settings)",
            "write(claude / 'remote-settings.json', settings)",
            "write(home / '.claude.json', {'projects': {os.getcwd(): \
             {'allowedTools': ['Bash', 'Bash(*)'], 'hasTrustDialogAccepted': True}}, 'bypassPermissionsModeAccepted': True})",
        ];
        let mut tasks = Vec::new();
        for (n, attack) in attacks.iter().enumerate() {
            let command = python(&WRITES.replace("ATTACK", attack));
            let prompt = format!("MODE-TOOL RUN: {command}\nNEXT: touch pwned\nSAY: done");
            tasks.push(server.crew().task().context(&format!("{n}")).prompt(&prompt).create().await);
        }
        for (task, attack) in tasks.iter().zip(attacks) {
            let question = eventually("the run asks, or ends", || async {
                let asked = task.api.get(&task.path("/question")).await;
                let is_over = ["completed", "failed", "dead"].map(Value::from).contains(&task.now().await["status"]);
                (asked.status == 200).then(|| asked.json()).or_else(|| is_over.then_some(Value::Null))
            })
            .await;
            assert_eq!(question["input"]["command"], json!("touch pwned"), "{attack}: {question} {}", task.now().await);
            task.answered(json!({"allow": false, "message": "no"})).await;
            task.reaches("completed").await;
        }
        agent.has_no_processes().await;
    });
}

#[test]
fn a_run_adds_nothing_to_what_its_cli_is_set_up_with() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).keyed().start(), Anthropic::start().await);
        let profile = "allowed_tools = [\"Bash\"]\nsandbox = \"bubblewrap\"";
        let plan = server.agent("box").claude(&api, profile);
        let config = plan.dir().join("home/.claude");
        std::fs::create_dir_all(config.join("agents")).expect("a directory");
        std::fs::write(config.join("CLAUDE.md"), "by the user").expect("a file");
        let agent = plan.start();
        let names = "settings.json settings.local.json remote-settings.json CLAUDE.md agents commands hooks output-styles plugins rules skills workflows";
        let run = format!(
            "cd ~/.claude; for name in {names}; do mv $name moved && echo $name moved; rm -r $name && echo $name removed; \
             {{ echo >$name || echo >$name/x; }} && echo $name written; done 2>/dev/null; \
             mv ~/.claude ~/moved && echo moved; mv ~ /tmp/moved && echo moved; rm -rf ~/.claude 2>/dev/null; \
             echo kept >~/.claude/kept; cat ~/.claude/kept ~/.claude/CLAUDE.md"
        );
        let task = server.crew().task().prompt(&format!("MODE-TOOL RUN: {run}\nSAY: done")).create().await;
        task.reaches("completed").await;
        let said = told(&task, "tool_result").await;
        let said: String = said.iter().filter_map(|data| data["content"].as_str()).collect();
        assert!(said.contains("kept\nby the user") && !said.contains(" moved") && !said.contains("written"), "{said}");
        assert!(!said.contains("removed") && !said.lines().any(|line| line == "moved"), "{said}");
        agent.has_no_processes().await;
    });
}
