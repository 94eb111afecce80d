//! How a run's output and the way in which it is stopped decide its verdict.

use serde_json::json;

use super::*;
use crate::claude::prices::Prices;

fn task(format: &str) -> Task {
    Task::for_test(&json!({"desired_format": format}))
}

fn verdict(format: &str, lines: &[serde_json::Value], end: End) -> Completion {
    let mut reading = Reading::default();
    lines.iter().for_each(|line| reading.line(&line.to_string(), &mut Vec::new()));
    match decide(&task(format), Uuid::nil(), &reading, &end, 1_000) {
        Verdict::Complete(completion) => *completion,
        Verdict::Release { .. } => panic!("handed back"),
    }
}

fn exit(status: &str) -> End {
    End { exit: Some(status.into()), ..End::default() }
}

fn result(more: serde_json::Value) -> serde_json::Value {
    let mut result =
        json!({"type": "result", "subtype": "success", "is_error": false, "result": "done", "total_cost_usd": 0.5, "usage": {}});
    result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    result
}

#[test]
fn the_stream_decides_not_the_exit_status() {
    let good = verdict("text", &[result(json!({}))], exit("143"));
    assert_eq!((good.status, good.output.as_deref(), good.reason), (Outcome::Success, Some("done"), None));
    let late = verdict("text", &[result(json!({}))], End { stop: Some(Stop::Timeout), ..exit("9") });
    assert_eq!(late.status, Outcome::Success, "the run had succeeded before it was stopped");
    let lie = verdict("text", &[result(json!({"is_error": true, "result": "API Error: 529", "api_error_status": 529}))], exit("0"));
    assert_eq!((lie.status, lie.reason, lie.keep_attempt), (Outcome::Error, Some(Reason::Overloaded), true));
    let begun = json!({"type": "system", "subtype": "init", "session_id": "s"});
    assert_eq!(verdict("text", &[begun], exit("0")).reason, Some(Reason::AgentError), "a stream without a result");
    let unbegun = verdict("text", &[], End { tells_session: true, ..exit("1") });
    assert_eq!((unbegun.reason, unbegun.keep_attempt), (Some(Reason::SpawnFailed), true));
    assert_eq!(verdict("text", &[], exit("1")).reason, Some(Reason::AgentError), "a program that may have worked");
    assert_eq!(verdict("text", &[], End::default()).reason, Some(Reason::WorkerLost));
}

#[test]
fn another_model_than_the_one_that_was_asked_for_is_told() {
    let ran = json!({"type": "system", "subtype": "init", "session_id": "s", "model": "claude-opus-5-5"});
    let warnings = |asked: &str| {
        let end = End { model: Some(asked.into()), ..exit("0") };
        verdict("text", &[ran.clone(), result(json!({}))], end).warnings.texts().join("; ")
    };
    let told = "the model claude-opus-5-5 answered, and claude-opus-4-1 was asked for: the Claude CLI takes it for another one";
    assert_eq!(warnings("claude-opus-4-1"), told);
    for same in [
        "claude-opus-5-5",
        "claude-opus-5-5-20260801",
        "claude-opus-5-5-latest",
        "claude-opus-5-5[1m]",
        "opus",
        "us.anthropic.claude-opus-4-1-v1:0",
    ] {
        assert_eq!(warnings(same), "", "{same}");
    }
}

#[test]
fn a_cost_above_the_budget_is_told() {
    let with = |budget| End { budget, ..exit("0") };
    let told = verdict("text", &[result(json!({}))], with(Some(0.25)));
    assert_eq!(
        (told.status, told.warnings.texts()),
        (Outcome::Success, vec!["the run cost $0.5000, and its budget was $0.2500".to_owned()])
    );
    for budget in [None, Some(0.5)] {
        assert!(verdict("text", &[result(json!({}))], with(budget)).warnings.texts().is_empty());
    }
}

#[test]
fn each_reason_and_what_becomes_of_the_task() {
    let error = |more| vec![result(more)];
    let limited = json!({"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": 1_800_000_000}});
    let stop = |stop| End { stop: Some(stop), ..End::default() };
    // Reason, retryable, attempt kept.
    for (lines, end, reason, retryable, kept) in [
        (error(json!({"is_error": true, "api_error_status": 401})), exit("1"), Reason::Auth, true, true),
        (error(json!({"is_error": true, "api_error_status": 402})), exit("1"), Reason::Billing, true, true),
        (error(json!({"is_error": true, "api_error_status": 429})), exit("1"), Reason::RateLimited, true, true),
        (vec![limited], exit("1"), Reason::RateLimited, true, true),
        (error(json!({"is_error": true, "api_error_status": 503})), exit("1"), Reason::Overloaded, true, true),
        (error(json!({"is_error": true, "subtype": "error_max_budget_usd"})), exit("1"), Reason::BudgetExceeded, false, false),
        (error(json!({"is_error": true, "subtype": "error_max_turns"})), exit("1"), Reason::AgentError, true, false),
        (error(json!({"result": "no JSON"})), exit("0"), Reason::BadOutput, false, false),
        (vec![], stop(Stop::Timeout), Reason::Timeout, false, false),
        (vec![], End { retry_timeouts: true, ..stop(Stop::Timeout) }, Reason::Timeout, true, false),
        (vec![], stop(Stop::Stalled), Reason::Stalled, true, false),
        (vec![], stop(Stop::Cancelled), Reason::Cancelled, false, false),
        (vec![], stop(Stop::LeaseLost), Reason::WorkerLost, true, true),
        (vec![], stop(Stop::Unstored), Reason::WorkerDisk, true, true),
        (vec![], stop(Stop::OverBudget), Reason::BudgetExceeded, false, false),
        (vec![], stop(Stop::Refused), Reason::Auth, true, true),
        (vec![], End { not_started: Some("no such file".into()), ..End::default() }, Reason::SpawnFailed, true, true),
        (vec![], End { out_of_memory: true, ..exit("137") }, Reason::OutOfMemory, true, false),
        (vec![], End { out_of_memory: true, ..stop(Stop::Timeout) }, Reason::Timeout, false, false),
    ] {
        let told = verdict("json", &lines, end);
        assert_eq!((told.reason, told.retryable, told.keep_attempt), (Some(reason), retryable, kept), "{lines:?}");
        assert_eq!(told.retry_at.is_some(), reason == Reason::RateLimited);
    }
}

#[test]
fn json_is_taken_out_of_its_fence() {
    for answer in ["{\"a\": 1}", "```json\n{\"a\": 1}\n```", "```\n{\"a\": 1}\n```"] {
        assert_eq!(verdict("json", &[result(json!({"result": answer}))], exit("0")).output.as_deref(), Some("{\"a\": 1}"));
    }
    let bad = verdict("json", &[result(json!({"result": "Here: {}"}))], exit("0"));
    assert_eq!((bad.reason, bad.output.as_deref()), (Some(Reason::BadOutput), Some("Here: {}")));
}

#[test]
fn an_answer_that_is_too_long_is_cut_and_marked() {
    let long = result(json!({"result": "ä".repeat(MAX_OUTPUT / 2 + 1)}));
    let cut = verdict("text", std::slice::from_ref(&long), exit("0"));
    assert_eq!((cut.status, cut.output.unwrap().len()), (Outcome::Success, MAX_OUTPUT));
    assert_eq!(cut.artifact_tags.texts(), vec!["output_cut".to_owned()]);
    assert_eq!(verdict("json", &[long], exit("0")).reason, Some(Reason::BadOutput));

    let mut reading = Reading::new(true, Prices::default());
    reading.line("the beginning", &mut Vec::new());
    reading.cut();
    let Verdict::Complete(plain) = decide(&task("text"), Uuid::nil(), &reading, &exit("0"), 1_000) else { panic!("handed back") };
    assert_eq!((plain.status, plain.output.as_deref()), (Outcome::Success, Some("the beginning\n")));
    assert_eq!(plain.artifact_tags.texts(), vec!["output_cut".to_owned()]);
}

#[test]
fn denied_tools_are_marked() {
    let denied = verdict("text", &[result(json!({"permission_denials": [{"tool_name": "Bash"}]}))], exit("0"));
    assert_eq!((denied.status, denied.artifact_tags.texts()), (Outcome::Success, vec!["tools_denied".to_owned()]));
    let told = denied.warnings.texts();
    assert!(
        told.len() == 1
            && told[0].starts_with("the tool Bash was denied: to allow it, set allowed_tools or permission_mode in the profile"),
        "{told:?}"
    );
    let line = |denial: serde_json::Value| {
        let mut warnings = verdict("text", &[result(json!({"permission_denials": [denial]}))], exit("0")).warnings.texts();
        warnings.remove(0)
    };
    let bash = |command: &str| line(json!({"tool_name": "Bash", "tool_input": {"command": command}}));
    assert!(
        bash("curl http://x").starts_with("the tool Bash was denied (curl http://x): to allow it, set allowed_tools = [\"Bash(curl *)\"]")
    );
    assert!(bash("cd x && rm y").contains("set allowed_tools or permission_mode in"), "one of several commands is not the whole");
    assert!(line(json!({"tool_name": "Write"})).contains("permission_mode = \"acceptEdits\""));
    assert!(line(json!({"tool_name": "WebFetch"})).contains("allowed_tools = [\"WebFetch\"]"));
    // It is unknown who denied it, but somebody may have been asked.
    let mut reading = Reading::new(false, Prices::default());
    reading.asks_human = true;
    let denials = json!([{"tool_name": "Bash"}, {"tool_name": "AskUserQuestion"}]);
    reading.line(&result(json!({"permission_denials": denials})).to_string(), &mut Vec::new());
    let asked = reading.warnings.texts();
    assert!(asked.len() == 2 && asked.iter().all(|text| text.contains("a person denied it or did not answer")), "{asked:?}");
}

#[test]
fn a_warning_says_why_a_run_was_cut_off() {
    let began = |version| {
        let begins = json!({"type": "system", "subtype": "task_started", "task_id": "a", "description": "the build"});
        vec![json!({"type": "system", "subtype": "init", "claude_code_version": version}), result(json!({})), begins]
    };
    let warning = |version, end| {
        let warnings = verdict("text", &began(version), end).warnings;
        warnings.0.first().map(|text| text.to_string()).unwrap_or_default()
    };
    let ended_for = |stop| End { ended_for: Some(stop), ..exit("143") };
    for (version, end, why) in [
        ("2.1.332", exit("0"), "background_seconds"),
        ("2.1.332", ended_for(Stop::Stalled), "background_seconds"),
        ("2.1.197", exit("0"), "version 2.1.197 of the Claude CLI"),
        ("2.1.332", ended_for(Stop::Timeout), "its time limit was reached"),
        ("2.1.332", End { stop: Some(Stop::Cancelled), ..ended_for(Stop::Cancelled) }, "it was cancelled"),
    ] {
        let told = warning(version, end);
        let begins = "the run was ended while it still worked (in the background: the build); ";
        assert!(told.starts_with(begins) && told.contains(why), "{why}: {told}");
        assert_eq!(told.contains("background_seconds"), why == "background_seconds", "{told}");
    }
}
