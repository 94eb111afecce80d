//! README is true: its commands run as they stand, and its table has every setting.

use std::process::{Command, Stdio};

use bloom_config::SETTINGS;

use crate::support::*;

const README: &str = include_str!("../../README.md");
const ARROW: &str = "# → ";

/// The commands of a section, with what is to be seen in their answers.
fn steps(heading: &str) -> Vec<(String, Vec<String>)> {
    let section = README.split(heading).nth(1).expect("the section").split("\n## ").next().expect("its text");
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    for block in section.split("```sh\n").skip(1) {
        for line in block.split("```").next().expect("a block").lines() {
            match line.strip_prefix(ARROW) {
                Some(seen) => steps.last_mut().expect("a command before an arrow").1.push(seen.to_owned()),
                None => steps.push((line.to_owned(), Vec::new())),
            }
        }
    }
    steps
}

/// Waits of the text become: ask again until it is so.
fn script(heading: &str, base: &str) -> String {
    let mut script = String::from(
        r#"set -euo pipefail
shows() {
  local tries=$1 command=$2 out missing text; shift 2
  while :; do
    out=$(eval "$command"); missing=
    for text; do [[ $out == *"$text"* ]] || missing=$text; done
    [ -n "$missing" ] || return 0
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { echo "$command: no $missing in: $out"; exit 1; }
    sleep 0.1
  done
}
"#,
    );
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let mut tries = 1;
    for (command, seen) in steps(heading) {
        if command.starts_with("sleep ") {
            tries = 200;
        } else if seen.is_empty() {
            script.push_str(&format!("{command}\n"));
        } else {
            let seen: Vec<String> = seen.iter().map(|text| quoted(text)).collect();
            script.push_str(&format!("shows {tries} {} {}\n", quoted(&command), seen.join(" ")));
            tries = 1;
        }
    }
    script.replace("http://127.0.0.1:5000", base)
}

fn succeeds(bash: &mut Command) {
    let output = bash.stdin(Stdio::null()).output().expect("bash");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
}

#[test]
fn its_commands_run_as_they_stand() {
    let server = Server::on(Database::Sqlite).env("WORKER_OFFLINE_AFTER_SECONDS", 4).start();
    let script = script("## A task's life, by curl", server.base());
    assert!(script.matches("shows ").count() > 12, "{script}");
    succeeds(Command::new("bash").arg("-c").arg(&script));
}

#[test]
fn its_command_line_runs_as_it_stands() {
    let server = Server::on(Database::Sqlite).start();
    let script = script("## From the command line", server.base());
    assert!(script.matches("shows ").count() > 5, "{script}");
    let _agent = server.agent("readme").echo().start();
    let home = janitor::new_path("home");
    std::fs::create_dir_all(&home).unwrap();
    let bin = std::path::Path::new(server::BINARY).parent().expect("its directory").display();
    let path = format!("{bin}:{}", std::env::var("PATH").expect("a path"));
    let mut bash = Command::new("bash");
    let base = server.base();
    succeeds(bash.arg("-c").arg(&script).env_clear().env("PATH", path).env("HOME", &home).env("BLOOM_SERVER", base).current_dir(&home));
}

#[test]
fn its_table_has_every_setting() {
    let rows = SETTINGS.iter().map(|setting| {
        let default = if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
        format!("| `{}` | {default} | {} |", setting.env_name(), setting.help)
    });
    let table = rows.collect::<Vec<_>>().join("\n");
    assert!(README.contains(&table), "README's table of settings should be:\n{table}");
}
