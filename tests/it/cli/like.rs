//! `task submit --like`: a new task that asks for the same as another one.

use std::fs;

use super::*;

/// The fields in which the new task is as the other one.
const SAME: [&str; 14] = [
    "context_id",
    "prompt",
    "context_hints",
    "desired_format",
    "max_attempts",
    "priority",
    "exclusive_key",
    "session",
    "model",
    "ttl_after_finished_sec",
    "outputs",
    "inputs",
    "agent_slug",
    "policy",
];

#[test]
fn a_task_is_asked_for_again_with_other_fields() {
    run(async {
        let server = sqlite();
        let (user, agent, context) = (User::at(server), unique("agent"), unique("context"));
        fs::write(user.home.join("plan.md"), "the plan").unwrap();
        let first = [
            "task",
            "submit",
            "--agent",
            &agent,
            "--context",
            &context,
            "--file",
            "in/plan=plan.md",
            "--keep",
            "out/*",
            "--priority",
            "7",
            "--budget",
            "0.5",
            "--model",
            "small",
            "--label",
            "a=1",
            "--label",
            "b=2",
            "--hint",
            "x.md",
            "--exclusive-key",
            &context,
            "--max-attempts",
            "2",
            "--ttl",
            "1h",
            "--not-before",
            "2200-01-01T00:00:00Z",
            "Do it",
        ];
        let submit = |flags: &[&str]| user.does(flags).ok().trim().to_owned();
        let first = server.task(&submit(&first)).now().await;
        let id = first["id"].as_str().unwrap();
        let like = |flags: &[&str]| submit(&[&["task", "submit", "--like", id], flags].concat());

        let same = server.task(&like(&[])).now().await;
        for field in SAME {
            assert_eq!(same[field], first[field], "{field}");
        }
        assert_eq!(same["labels"], json!({ "a": "1", "b": "2" }));
        assert_eq!(same["not_before"], Value::Null, "it may run at once");
        assert_ne!(same["idempotency_key"], first["idempotency_key"]);
        assert_eq!(same["policy"]["timeout_is_default"], first["policy"]["timeout_is_default"]);

        let other =
            like(&["--agent", "reviewer", "--model", "large", "--timeout", "2h", "--label", "b=3", "--context", "other", "Do more"]);
        let other = server.task(&other).now().await;
        for (field, value) in [("agent_slug", "reviewer"), ("model", "large"), ("context_id", "other"), ("prompt", "Do more")] {
            assert_eq!(other[field], value);
        }
        assert_eq!(other["labels"], json!({ "a": "1", "b": "3" }));
        assert_eq!((&other["policy"]["timeout_sec"], &other["policy"]["budget"]), (&json!(7200), &json!(0.5)));
        let again = server.task(&submit(&["task", "submit", "--like", other["id"].as_str().unwrap()])).now().await;
        assert_eq!(again["policy"], other["policy"], "a time limit that was named is taken over");

        user.does(&["task", "submit", "--like", "00000000-0000-7000-8000-000000000000"]).complains(1);
        for flag in ["--agent", "--model"] {
            let said = user.does(&["task", "retry", id, flag, "other"]).complains(2);
            assert!(said.contains(&format!("task submit --like {id}")), "{said}");
        }
        let said = user.does(&["task", "retry", "--failed", "--model", "other", "--yes"]).complains(2);
        assert!(said.contains("task submit --like ID"), "{said}");
        for task in [&first, &same, &other, &again] {
            server.task(task["id"].as_str().unwrap()).cancel().await.ok();
        }
    });
}
