//! Completions in the shells themselves. `tests/run` installs them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;
use crate::support::server::BINARY;

/// What a shell offers for the last of these words, by its own functions for completion.
fn offers(shell: &str, user: &User, server: &Api, words: &str) -> String {
    let script = match shell {
        "bash" => {
            r#"source <(bloom-runtime completions bash)
COMP_LINE="$WORDS"; COMP_POINT=${#COMP_LINE}; read -ra COMP_WORDS <<< "$COMP_LINE"
[[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_TYPE=9
_clap_complete_bloom_runtime bloom-runtime "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}""#
        }
        "zsh" => {
            r#"autoload -Uz compinit && compinit -u -D
# Prints what the function of the script would offer.
_describe() { local offered=$argv[-1]; print -rl -- "${(@P)offered}" }
source <(bloom-runtime completions zsh)
words=(${(s: :)WORDS}); [[ "$WORDS" == *" " ]] && words+=(""); CURRENT=${#words}
_clap_dynamic_completer_bloom_runtime"#
        }
        _ => {
            r#"bloom-runtime completions fish | source
complete --do-complete="$WORDS""#
        }
    };
    let bin = Path::new(BINARY).parent().expect("its directory").display();
    let path = format!("{bin}:{}", std::env::var("PATH").expect("a path"));
    let mut command = Command::new(shell);
    command
        .arg("-c")
        .arg(script)
        .env_clear()
        .env("PATH", path)
        .env("HOME", &user.home)
        .env("WORDS", words)
        .env("BLOOM_SERVER", server.base());
    let output = command
        .current_dir(&user.home)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{shell}: {error}; tests/run installs it"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shell}: {said}");
    String::from_utf8_lossy(&output.stdout).replace('\u{b}', "\n")
}

/// The line that bash makes of this one when its user presses TAB, and then types its end.
fn completed_by_bash(user: &User, server: &Api, line: &str, end: &str) -> String {
    let bin = Path::new(BINARY).parent().expect("its directory").display();
    let path = format!("{bin}:{}", std::env::var("PATH").expect("a path"));
    let mut command = Command::new("script");
    command.args(["-qec", "bash --norc -i", "/dev/null"]).env_clear().env("PATH", path).env("HOME", &user.home).env("TERM", "dumb");
    command.env("BLOOM_SERVER", server.base()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut bash = command.current_dir(&user.home).spawn().expect("script starts");
    // Ctrl-A and `echo`: the completed line is printed, not run.
    let typed = format!("source <(bloom-runtime completions bash)\n{line}\t{end}\u{1}echo \nexit\n");
    bash.stdin.take().expect("its stdin").write_all(typed.as_bytes()).expect("bash reads");
    let shown = bash.wait_with_output().expect("bash ends");
    let shown = String::from_utf8_lossy(&shown.stdout).replace(['\r', '\u{7}'], "");
    shown.lines().rfind(|line| line.starts_with("bloom-runtime ")).unwrap_or_else(|| panic!("no line was printed: {shown:?}")).to_owned()
}

#[test]
fn bash_completes_what_follows_an_equals_sign() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        crew.task().with("labels", json!({ "color": "blue", "due": "10:30" })).create().await;
        let user = User::at(&server);
        for (typed, completed) in [
            ("task list --status=ca", "task list --status=cancelled"),
            ("task list --status=queued,ca", "task list --status=queued,cancelled"),
            ("task list \"--status=ca", "task list --status=cancelled"),
            ("task list --status ca", "task list --status cancelled"),
            ("task list -l color=", "task list -l color=blue"),
            ("task list --label=color=b", "task list --label=color=blue"),
            ("task list --label due=10:", "task list --label due=10:30"),
            ("task list --since=10:30 -l col", "task list --since=10:30 -l color=blue"),
            ("task list --out", "task list --output"),
        ] {
            let line = completed_by_bash(&user, &server, &format!("bloom-runtime {typed}"), "");
            assert_eq!(line.trim_end(), format!("bloom-runtime {completed}"), "{typed}");
        }
    });
}

/// Others choose the names that a server offers, and the person who completes them must not carry them out.
#[test]
fn bash_quotes_what_it_completes() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let labels = json!({ "team": "blue$(touch made)", "tick": "a`touch made`", "star": "*", "end": "a; touch made;", "space": "a b" });
        server.crew().task().with("labels", labels).create().await;
        let user = User::at(&server);
        for (typed, completed) in [
            ("team=b", "team=blue$(touch made)"),
            ("tick=", "tick=a`touch made`"),
            ("star=", "star=*"),
            ("end=", "end=a; touch made;"),
            ("space=", "space=a b"),
            ("\"space=", "space="),
        ] {
            let end = if typed.starts_with('"') { "\"" } else { "" };
            let line = completed_by_bash(&user, &server, &format!("bloom-runtime task list -l {typed}"), end);
            assert_eq!(line.trim_end(), format!("bloom-runtime task list -l {completed}"), "{typed}");
            assert!(!user.home.join("made").exists(), "{typed} was carried out");
        }
    });
}

#[test]
fn queues_that_are_set_are_offered_without_tasks() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let user = User::at(&server);
        user.does(&["queue", "pause", "--agent", "docs"]).ok();
        user.does(&["queue", "limit", "--agent", "mail", "2"]).ok();
        let task = server.crew();
        task.task().create().await;
        for (typed, offered) in [("queue resume --agent ", "docs"), ("queue limit --agent ", "mail"), ("queue resume --agent d", "docs")] {
            let shown = offers("bash", &user, &server, &format!("bloom-runtime {typed}"));
            assert!(shown.lines().any(|line| line.starts_with(offered)), "{typed}: {shown}");
        }
    });
}

#[test]
fn they_work_in_every_shell() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let crew = server.crew();
        let task = crew.task().with("labels", json!({ "color": "blue" })).create().await;
        let worker = crew.worker().register().await;
        server.post("queues/reviewer/limit", json!({ "max_concurrency": 2 })).await.ok();
        let user = User::at(&server);
        user.does(&["context", "set", "home-server", "--server", server.base()]).ok();
        for shell in ["bash", "zsh", "fish"] {
            let check = |words: &str, offered: &str| {
                let shown = offers(shell, &user, &server, words);
                assert!(
                    shown.lines().any(|line| line.split([' ', '\t', ':']).next() == Some(offered)),
                    "{shell}: {words:?} offers {offered}: {shown:?}"
                );
            };
            check("bloom-runtime wor", "worker");
            check("bloom-runtime task get ", &task.id);
            check(&format!("bloom-runtime task get {}", &task.id[..20]), &task.id);
            check(&format!("bloom-runtime task describe {}", short(&task.id)), &task.id);
            check("bloom-runtime queue pause --agent ", "reviewer");
            check("bloom-runtime queue list --sort pa", "paused");
            check("bloom-runtime task list --sort ", "priority");
            check("bloom-runtime worker get ", &worker.name);
            check("bloom-runtime task list --status ca", "cancelled");
            check("bloom-runtime task list --label ", "color=blue");
            check("bloom-runtime task list --agent ", &crew.slug);
            check("bloom-runtime context use ", "home-server");
            let shown = offers(shell, &user, &server, "bloom-runtime ");
            assert!(shown.contains("agent") && !shown.contains("echo-runner"), "{shell}: {shown}");
            if shell == "bash" {
                continue;
            }
            check("bloom-runtime task list --status=ca", "--status=cancelled");
            check("bloom-runtime task list --label=color=", "--label=color=blue");
            check("bloom-runtime task list -l color=", "color=blue");
        }
        server.kill9();
        let shown = offers("bash", &user, &server, "bloom-runtime task get ");
        assert!(!shown.contains(&task.id), "without a server there is nothing to offer: {shown}");
    });
}

#[test]
fn a_warning_does_not_get_into_the_line_that_is_completed() {
    use std::os::unix::fs::PermissionsExt as _;
    run(async {
        let user = User::new();
        let key = user.home.join("open.key");
        std::fs::write(&key, "a-key-that-everybody-can-read").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let crew = sqlite().crew();
        let task = crew.task().create().await;
        let mut command = Command::new(BINARY);
        command.env_clear().env("HOME", &user.home).env("BLOOM_COMPLETE", "fish").env("BLOOM_SERVER", sqlite().base());
        let output = command.args(["--", "bloom-runtime", "task", "get", "--key-file"]).arg(&key).arg("").output().unwrap();
        let offered = String::from_utf8_lossy(&output.stdout);
        assert!(offered.contains(&task.id), "{offered}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    });
}
