//! The time limit of runs: its default, and more time for a task that exists.

use std::fs;

use super::*;

#[test]
fn a_run_has_half_an_hour_unless_its_task_says_otherwise() {
    run(async {
        let server = sqlite();
        let user = User::at(server);
        let seconds = |task: &Value| task["policy"]["timeout_sec"].as_i64().unwrap();
        assert_eq!(seconds(&user.does(&["task", "submit", "-o", "json", "hello"]).json()), 1800);
        assert_eq!(seconds(&user.does(&["task", "submit", "-o", "json", "--timeout", "2h", "hello"]).json()), 7200);
        let lines = [
            json!({ "prompt": "a" }),
            json!({ "prompt": "b", "policy": { "budget": 1 } }),
            json!({ "prompt": "c", "policy": { "timeout_sec": 60 } }),
            json!({ "prompt": "d", "policy": { "timeout_sec": null } }),
        ];
        fs::write(user.home.join("limits.jsonl"), lines.map(|line| line.to_string()).join("\n")).unwrap();
        let flags = ["task", "submit", "-o", "json", "--again", "--from", "limits.jsonl"];
        let is_default = |task: &Value| task["policy"]["timeout_is_default"] == true;
        let defaults = user.does(&flags).json();
        assert_eq!(defaults.as_array().unwrap().iter().map(is_default).collect::<Vec<_>>(), [true, true, false, true]);
        let all =
            |more: &[&str]| user.does(&[&flags[..], more].concat()).json().as_array().unwrap().iter().map(seconds).collect::<Vec<_>>();
        assert_eq!(all(&[]), [1800, 1800, 60, 1800]);
        assert_eq!(all(&["--timeout", "5m"]), [300, 300, 60, 300]);
        let shown = |flags: &[&str]| {
            let id = user.does(&[&["task", "submit", "-o", "name", "hello"], flags].concat()).ok().trim().to_owned();
            user.does(&["task", "describe", &id]).ok()
        };
        assert!(shown(&[]).contains("30m for a run (or the limit of the agent's profile)"));
        let named = shown(&["--timeout", "30m"]);
        assert!(named.contains("30m for a run") && !named.contains("limit of the agent's profile"), "{named}");
        let said = user.does(&["task", "submit", "--timeout", "2d", "hello"]).complains(2);
        assert!(said.contains("--timeout: at most 24h") && said.contains("MAX_TIMEOUT_SECONDS"), "{said}");
    });
}

#[test]
fn a_task_gets_more_time_when_it_is_retried_or_edited() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let (task, other) = (crew.task().create().await, crew.task().create().await);
        let edited = user.does(&["task", "edit", &task.id, "--timeout", "90m", "-o", "json"]).json();
        assert_eq!(edited["policy"]["timeout_sec"], 5400);
        user.does(&["task", "cancel", &task.id, &other.id]).ends(0);
        assert_eq!(task.status().await, "cancelled");
        user.does(&["task", "retry", &task.id, "--timeout", "2h"]).ends(0);
        assert_eq!(task.now().await["policy"]["timeout_sec"], 7200);
        user.does(&["task", "cancel", &task.id]).ends(0);
        user.does(&["task", "retry", &task.id, &other.id, "--timeout", "3h"]).ends(0);
        for task in [&task, &other] {
            assert_eq!(task.now().await["policy"]["timeout_sec"], 10_800);
        }
        user.does(&["task", "cancel", &task.id, &other.id]).ends(0);
        user.does(&["task", "retry", "--agent", &crew.slug, "--yes", "--timeout", "4h"]).ends(0);
        for task in [&task, &other] {
            assert_eq!(task.now().await["policy"]["timeout_sec"], 14_400);
        }
        let said = user.does(&["task", "retry", "--agent", &crew.slug, "--yes", "--timeout", "2d"]).complains(2);
        assert!(said.contains("--timeout: at most 24h"), "{said}");
        let said = user.does(&["task", "edit", &task.id, "--timeout", "2d"]).complains(2);
        assert!(said.contains("--timeout: at most 24h"), "{said}");
    });
}
