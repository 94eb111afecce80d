//! What the real Claude CLI reads of settings that runs may have left behind, and what it finds in a sandbox.

use std::os::unix::fs::PermissionsExt as _;

use super::claude::with;
use super::*;
use crate::support::claude::Anthropic;
use crate::support::{Database, Server};

/// Runs a shell command as a tool of the CLI, and returns what it printed.
async fn tool(server: &Server, context: &str, command: &str) -> String {
    let task = server.crew().task().context(context).prompt(&format!("MODE-TOOL RUN: {command}\nSAY: done")).create().await;
    task.reaches("completed").await;
    told(&task, "tool_result").await.into_iter().map(|data| data.to_string()).collect()
}

fn context_dir(agent: &agent::Agent, context: &str) -> PathBuf {
    let contexts = std::fs::read_dir(agent.work_dir().join("contexts")).expect("contexts").flatten().map(|entry| entry.path());
    let is_its = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{context}-")));
    contexts.into_iter().find(is_its).expect("its directory")
}

const HOOK: &str = r#"{"enableAllProjectMcpServers": true,
    "hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "touch hooked"}]}]}}"#;
const SERVER: &str = r#"{"mcpServers": {"left": {"command": "sh", "args": ["-c", "touch served"]}}}"#;

/// Lets a first run leave settings in the directory of its context. Returns which of them the next run heeds, `all` if it should heed them.
async fn heeded(server: &Server, api: &Anthropic, agent: &agent::Agent, all: bool) -> Vec<&'static str> {
    let script = agent.dir().join("leave.sh");
    let left = format!(
        "mkdir -p .claude\ncat >.claude/settings.json <<'END'\n{HOOK}\nEND\ncat >.mcp.json <<'END'\n{SERVER}\nEND\necho from-the-first >CLAUDE.md\n"
    );
    std::fs::write(&script, left).expect("a script");
    tool(server, "talk", &format!("sh {}", script.display())).await;
    let dir = context_dir(agent, "talk");
    assert!(dir.join(".claude/settings.json").exists() && !dir.join("hooked").exists());
    server.crew().task().context("talk").with("session", json!("none")).prompt("SAY: second").create().await.reaches("completed").await;
    let request = api.seen_with("SAY: second").pop().expect("a request").to_string();
    if all {
        eventually("the CLI has started the server", || async { dir.join("served").exists().then_some(()) }).await;
    }
    let found =
        [("hook", dir.join("hooked").exists()), ("memory", request.contains("from-the-first")), ("server", dir.join("served").exists())];
    found.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

#[test]
fn settings_that_a_run_left_behind_are_not_heeded() {
    with("allowed_tools = [\"Bash\"]", async |server, api, agent| {
        assert_eq!(heeded(server, api, agent, false).await, Vec::<&str>::new());
    });
}

#[test]
fn settings_of_the_project_are_heeded_where_the_profile_says_so() {
    with("allowed_tools = [\"Bash\"]\nsetting_sources = [\"user\", \"project\"]", async |server, api, agent| {
        assert_eq!(heeded(server, api, agent, true).await, ["hook", "memory", "server"]);
    });
}

/// Lets a first run leave a repository whose settings name a command, and that has a hook. Returns which of them the next run executes, which
/// commits something.
async fn executed(server: &Server, agent: &agent::Agent) -> Vec<&'static str> {
    let script = agent.dir().join("leave.sh");
    let left = "git init -q .\nprintf '#!/bin/sh\\ntouch hooked' >.git/hooks/pre-commit\nchmod +x .git/hooks/pre-commit\n\
                echo 1 >file\ngit add file\ngit config core.fsmonitor 'touch monitored; false'\n";
    std::fs::write(&script, left).expect("a script");
    tool(server, "talk", &format!("sh {}", script.display())).await;
    let dir = context_dir(agent, "talk");
    assert!(dir.join(".git/hooks/pre-commit").exists());
    tool(server, "talk", "git -c user.name=t -c user.email=t@localhost commit -q -m x").await;
    let marks = [("hook", "hooked"), ("monitor", "monitored")];
    marks.into_iter().filter(|(_, mark)| dir.join(mark).exists()).map(|(name, _)| name).collect()
}

#[test]
fn commands_in_a_repository_that_a_run_left_behind_are_not_executed() {
    with("allowed_tools = [\"Bash\"]", async |server, _, agent| {
        assert_eq!(executed(server, agent).await, Vec::<&str>::new());
    });
    with("allowed_tools = [\"Bash\"]\nsetting_sources = [\"user\", \"project\"]", async |server, _, agent| {
        assert_eq!(executed(server, agent).await, ["hook", "monitor"]);
    });
}

#[test]
fn filters_that_a_run_left_behind_are_not_executed_when_the_cli_starts() {
    with("allowed_tools = [\"Bash\"]", async |server, _, agent| {
        let script = agent.dir().join("leave.sh");
        // The content may have changed, so `git status` compares it.
        let left = "git init -q\ngit config filter.left.clean 'touch filtered; cat'\necho '* filter=left' >.gitattributes\n\
                    echo 1 >file\ngit add file\nrm filtered\necho 2 >file\n";
        std::fs::write(&script, left).expect("a script");
        tool(server, "talk", &format!("sh {}", script.display())).await;
        tool(server, "talk", "true").await;
        assert!(!context_dir(agent, "talk").join("filtered").exists());
    });
}

#[test]
fn in_a_sandbox_a_conversation_goes_on_and_leaves_nothing_for_others() {
    with("sandbox = \"bubblewrap\"\nallowed_tools = [\"Bash\"]", async |server, api, agent| {
        let home = agent.dir().join("home/.claude");
        std::fs::create_dir_all(&home).expect("a directory");
        let hook = HOOK.replace("hooked", "hooked-by-the-user");
        std::fs::write(home.join("settings.json"), &hook).expect("settings");
        let leave = "echo x >$HOME/.claude/settings.json; echo x >$HOME/.claude/CLAUDE.md; grep -rl Kestrel $HOME/.claude/projects";
        assert!(tool(server, "talk", &format!("{leave}; echo Kestrel >bird")).await.contains(".jsonl"), "its own session");
        assert!(context_dir(agent, "talk").join("hooked-by-the-user").exists(), "the user's settings count");
        let settings = std::fs::read_to_string(home.join("settings.json")).expect("settings");
        assert_eq!((settings, home.join("CLAUDE.md").exists(), home.join("projects").exists()), (hook, false, false));

        let again = server.crew().task().context("talk").prompt("SAY: again").create().await;
        again.reaches("completed").await;
        let request = api.seen_with("SAY: again").pop().expect("a request");
        assert!(request["messages"].to_string().contains("Kestrel"), "the conversation goes on: {}", request["messages"]);
        assert!(!told(&again, "lifecycle").await.iter().any(|data| data["phase"] == json!("session_lost")));

        let seen = tool(server, "other", "grep -rl 'Kes[t]rel' $HOME .. || echo nothing").await;
        assert!(seen.contains("nothing") && !seen.contains("bird"), "the sessions and files of other contexts can't be seen: {seen}");
    });
}

#[test]
fn the_system_prompt_of_the_profile_holds_in_each_run_of_a_conversation() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, "append_system_prompt = \"FirstRule\"").start();
        for rule in ["FirstRule", "SecondRule"] {
            let task = server.crew().task().context("talk").prompt(&format!("SAY: {rule}-answer")).create().await;
            task.reaches("completed").await;
            let request = api.seen_with(&format!("SAY: {rule}-answer")).pop().expect("a request");
            let system = request["system"].to_string();
            assert_eq!(
                ["FirstRule", "SecondRule"].map(|other| system.contains(other)),
                [rule == "FirstRule", rule == "SecondRule"],
                "{system}"
            );
            agent.has_no_processes().await;
            let profiles = agent.dir().join("profiles.toml");
            let changed = std::fs::read_to_string(&profiles).expect("the profiles").replace("FirstRule", "SecondRule");
            std::fs::write(&profiles, changed).expect("the profiles");
            agent.kill9();
            agent.start_again();
        }
        agent.has_no_processes().await;
    });
}

#[test]
fn a_run_takes_no_messages_from_other_contexts() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").slots(2).claude(&api, "allowed_tools = [\"Bash\"]").start();
        let receives = "MODE-TOOL RUN: until [ -e go ]; do sleep 0.2; done\nSAY: done";
        let receiver = server.crew().task().context("receiver").prompt(receives).create().await;
        eventually("it waits", || async { (!told(&receiver, "tool_use").await.is_empty()).then_some(()) }).await;
        let call = async |what: &str| {
            let task = server.crew().task().context("sender").prompt(&format!("CALL: {what}\nSAY: sent")).create().await;
            task.reaches("completed").await;
            told(&task, "tool_result").await.into_iter().map(|data| data["content"].to_string()).collect::<String>()
        };
        // Older CLIs know no other sessions.
        let listed = call("ListAgents {}").await;
        let peer = listed.split_once("Peer sessions (1):").and_then(|(_, peers)| peers.trim_start_matches("\\n").split_whitespace().next());
        if let Some(peer) = peer {
            let sent = call(&format!("SendMessage {}", json!({"to": peer, "message": "Kestrel-order", "summary": "an order"}))).await;
            assert!(sent.contains("success"), "{sent}");
        }
        std::fs::write(context_dir(&agent, "receiver").join("go"), "").expect("a file");
        receiver.reaches("completed").await;
        assert!(!api.seen_with("until [ -e go ]").iter().any(|request| request.to_string().contains("Kestrel-order")));
        agent.has_no_processes().await;
    });
}

/// Writes a line into the standard output of each CLI of this run, by its name below /proc.
const FORGE: &str = r#"
for process in /proc/[0-9]*; do
    words=$(tr '\0' ' ' <$process/cmdline)
    case $words in *supervise-run*) continue ;; *--output-format*) ;; *) continue ;; esac
    tr '\0' '\n' <$process/environ | grep -qx "BLOOM_TASK_ID=$BLOOM_TASK_ID" || continue
    echo one-tried
    text='{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"forged"}}}'
    printf '\n%s\n' "$text" >$process/fd/1
done 2>/dev/null
"#;

#[test]
fn tools_cannot_write_into_the_output_of_their_cli() {
    for sandbox in ["", "sandbox = \"bubblewrap\"\n"] {
        with(&format!("{sandbox}allowed_tools = [\"Bash\"]"), async |server, _, _| {
            let script: String = FORGE.bytes().map(|byte| format!("\\{byte:03o}")).collect();
            let prompt = format!("MODE-TOOL RUN: printf '{script}' >forge; sh ./forge\nSAY: done");
            let task = server.crew().task().prompt(&prompt).create().await;
            task.reaches("completed").await;
            let tried = told(&task, "tool_result").await;
            assert!(tried.iter().any(|data| data.to_string().contains("one-tried")), "{tried:?}");
            let texts = told(&task, "text").await;
            assert!(!texts.iter().any(|data| data.to_string().contains("forged")), "{texts:?}");

            let long = "y".repeat(300_000);
            let task = server.crew().task().prompt(&format!("SAY: {long}")).create().await;
            task.reaches("completed").await;
            assert!(result(&task).await["output"] == json!(long), "all of it arrives");
        });
    }
}

#[test]
fn runs_have_temporary_directories_of_their_own() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        // Those of the agent are not passed on.
        let shared = janitor::new_path("shared");
        std::fs::create_dir(&shared).expect("a directory");
        let plan = server.agent("box").slots(2).claude(&api, "allowed_tools = [\"Bash\"]");
        let names = ["TMPDIR", "CLAUDE_CODE_TMPDIR", "XDG_RUNTIME_DIR"];
        let agent = names.iter().fold(plan, |plan, name| plan.env(name, shared.display())).start();
        let temp = agent.work_dir().join("tmp");
        let waits = "MODE-TOOL RUN: echo >$TMPDIR/left; until [ -e go ]; do sleep 0.2; done\nSAY: done";
        let waits = server.crew().task().context("first").prompt(waits).create().await;
        let (first, socket) = eventually("the first run has its socket", || async {
            let dir = std::fs::read_dir(&temp).ok()?.flatten().next()?.path();
            let socket = std::fs::read_dir(dir.join("cc-socks")).ok()?.flatten().next()?.file_name();
            dir.join("left").exists().then(|| (dir, socket.to_string_lossy().into_owned()))
        })
        .await;
        assert_eq!(std::fs::metadata(&first).expect("it").permissions().mode() & 0o777, 0o700);

        let looks = "find $TMPDIR $XDG_RUNTIME_DIR; find /tmp -maxdepth 2 -name '*.sock' 2>/dev/null; true";
        let seen = tool(&server, "second", looks).await;
        assert!(seen.contains(&format!("{}/", temp.display())) && seen.contains("/cc-socks/"), "it sees its own: {seen}");
        assert!(![&*first.to_string_lossy(), &socket, "/left"].iter().any(|of_first| seen.contains(of_first)), "{seen}");

        std::fs::write(context_dir(&agent, "first").join("go"), "").expect("a file");
        waits.reaches("completed").await;
        agent.has_no_processes().await;
        eventually("the directories are gone", || async { std::fs::read_dir(&temp).ok()?.next().is_none().then_some(()) }).await;
    });
}

#[test]
fn sockets_have_room_for_their_path_below_a_long_work_directory() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let plan = server.agent("box").claude(&api, "allowed_tools = [\"Bash\"]");
        let long = plan.dir().join("d".repeat(80));
        let agent = plan.env("BLOOM_WORK_DIR", long.display()).start();
        let seen = tool(&server, "talk", "find $TMPDIR").await;
        let (_, path) = seen.split_once("/tmp/bloom-").expect("a directory in that of the machine");
        let temp = PathBuf::from(format!("/tmp/bloom-{}", path.split(['\\', '/', '"']).next().expect("its name")));
        assert!(seen.contains(&format!("{}/cc-socks/", temp.display())), "{seen}");
        eventually("it is gone", || async { (!temp.exists()).then_some(()) }).await;
        agent.has_no_processes().await;
    });
}
