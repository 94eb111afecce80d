//! README and `docs/` match the program: their commands run unchanged, and their tables list every setting and every metric.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::*;

const README: &str = include_str!("../../README.md");
const COMMAND_LINE: &str = include_str!("../../docs/command-line.md");
const API_BY_CURL: &str = include_str!("../../docs/api-by-curl.md");
const LIMITS_PAGE: &str = include_str!("../../docs/limits.md");
const METRICS_PAGE: &str = include_str!("../../docs/metrics.md");
const PROMISES_PAGE: &str = include_str!("../../docs/promises.md");
const ARROW: &str = "# → ";

/// README without its first section, whose commands build the program and run all tests.
fn readme() -> &'static str {
    README.split_once("\n## ").expect("a section").1
}

/// The commands of a page, each with the texts that its output must contain.
fn steps(page: &str) -> Vec<(String, Vec<String>)> {
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    for block in page.split("```sh\n").skip(1) {
        for line in block.split("```").next().expect("a block").lines() {
            match line.strip_prefix(ARROW) {
                Some(seen) => steps.last_mut().expect("a command before an arrow").1.push(seen.to_owned()),
                None => steps.push((line.to_owned(), Vec::new())),
            }
        }
    }
    steps
}

/// A `sleep` in the text becomes a loop that repeats the next command until its output is as shown.
fn script(page: &str, base: &str) -> String {
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
    for (command, seen) in steps(page) {
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

/// Runs a page's commands with a server and an echo agent, and with the program in the PATH.
fn runs_beside_an_agent(page: &str, checks: usize) {
    let server = Server::on(Database::Sqlite).start();
    let script = script(page, server.base());
    assert!(script.matches("shows ").count() > checks, "{script}");
    let _agent = server.agent("readme").echo().start();
    let home = janitor::new_path("home");
    std::fs::create_dir_all(&home).unwrap();
    let bin = Path::new(server::BINARY).parent().expect("its directory").display();
    let path = format!("{bin}:{}", std::env::var("PATH").expect("a path"));
    let mut bash = Command::new("bash");
    let base = server.base();
    succeeds(bash.arg("-c").arg(&script).env_clear().env("PATH", path).env("HOME", &home).env("BLOOM_SERVER", base).current_dir(&home));
}

#[test]
fn its_commands_run_as_they_stand() {
    runs_beside_an_agent(readme(), 4);
}

#[test]
fn its_command_line_runs_as_it_stands() {
    runs_beside_an_agent(COMMAND_LINE, 5);
}

#[test]
fn its_calls_by_curl_run_as_they_stand() {
    let server = Server::on(Database::Sqlite).env("WORKER_OFFLINE_AFTER_SECONDS", 4).start();
    let script = script(API_BY_CURL, server.base());
    assert!(script.matches("shows ").count() > 12, "{script}");
    succeeds(Command::new("bash").arg("-c").arg(&script));
}

/// Commands that can't run unchanged are in `console` blocks.
#[test]
fn no_other_page_has_commands() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let has_commands = |path: &Path| std::fs::read_to_string(path).expect("a page").contains("```sh\n");
    let files = |dir: &Path| std::fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    let pages = files(&docs).chain(files(&docs.join("runbooks")));
    let found: BTreeSet<_> = pages.filter(|path| has_commands(path)).map(|path| path.file_name().unwrap().to_owned()).collect();
    assert_eq!(found, BTreeSet::from(["api-by-curl.md", "command-line.md"].map(Into::into)), "run its commands in a test of this file");
}

/// The names of the program's metrics that stand between two of these marks.
fn metric_names(text: &str, mark: char) -> BTreeSet<&str> {
    let is_name = |word: &&str| word.starts_with("bloom_") && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    text.split(mark).filter(is_name).collect()
}

#[test]
fn its_table_has_every_metric() {
    let families = [
        include_str!("../../src/telemetry/kubernetes.rs"),
        include_str!("../../src/telemetry/metrics.rs"),
        include_str!("../../src/telemetry/objects.rs"),
        include_str!("../../src/telemetry/scrape.rs"),
    ];
    let known: BTreeSet<_> = families.iter().flat_map(|source| metric_names(source, '"')).collect();
    assert!(known.len() > 25, "{known:?}");
    assert_eq!(metric_names(METRICS_PAGE, '`'), known);
}

/// Each row of docs/limits.md names fields and their limit, and OpenAPI has that limit for them.
#[test]
fn the_limits_of_reports_are_those_of_the_api() {
    let printed = Command::new(server::BINARY).arg("openapi").output().expect("the program").stdout;
    let document: Value = serde_json::from_slice(&printed).expect("JSON");
    let mut compared = 0;
    for (section, bodies) in [
        ("## Registration", &["NewWorker"][..]),
        ("## Completion", &["Completion"]),
        ("## Claims", &["Claim", "WorkerHeartbeat", "NewEvents", "WorkerEvents", "NewCompletions", "WorkerContexts", "Release"]),
    ] {
        let text = LIMITS_PAGE.split_once(section).expect(section).1.split("\n## ").next().expect("a section");
        // A schema can't tell of bytes and of depth.
        for row in text.lines().filter(|line| line.starts_with("| `") && !line.contains(" bytes ") && !line.contains(" levels ")) {
            let (names, limit) = row.trim_matches('|').split_once('|').expect("two cells");
            let digits: String = limit.split('(').next().unwrap_or(limit).chars().filter(char::is_ascii_digit).collect();
            for name in names.split('`').skip(1).step_by(2) {
                let found = bodies.iter().find_map(|body| {
                    let start = &document["components"]["schemas"][body];
                    let field = name.split('.').try_fold(start, |schema, part| {
                        // A body within a body is a reference, in an alternative if the field may be null.
                        let named = schema["oneOf"].as_array().and_then(|all| all.last()).unwrap_or(schema)["$ref"].as_str();
                        let schema = named.and_then(|name| document.pointer(name.trim_start_matches('#'))).unwrap_or(schema);
                        schema["properties"].get(part)
                    })?;
                    let field = if names.contains("each") { &field["items"] } else { field };
                    ["maxLength", "maxItems", "maximum"].iter().find_map(|limit| field[limit].as_u64())
                });
                assert_eq!(found.map(|found| found.to_string()), Some(digits.clone()), "{name}: {row}");
                compared += 1;
            }
        }
    }
    assert!(compared > 25, "{compared}");
}

/// What docs/promises.md says to be shown by a test is: the test exists, in the file that is named before it.
#[test]
fn each_promise_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let promises: Vec<_> = PROMISES_PAGE.split("\n## ").skip(1).collect();
    assert!(promises.len() > 8, "{promises:?}");
    for promise in promises {
        let (title, rest) = promise.split_once('\n').expect("a title");
        let shown = rest.split_once("\n- Shown by ").unwrap_or_else(|| panic!("{title}: no tests")).1.split("\n- ").next().expect("a list");
        assert!(rest.contains("\n- Tried under") && rest.contains("\n- Not promised:"), "{title}");
        let mut file = None;
        for name in shown.split('`').skip(1).step_by(2) {
            if name.contains('/') {
                file = Some((name, std::fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{title}: {name}: {error}"))));
            } else {
                let (path, code) = file.as_ref().unwrap_or_else(|| panic!("{title}: {name} has no file before it"));
                assert!(code.contains(&format!("fn {name}(")), "{title}: {path} has no test {name}");
            }
        }
    }
}
