//! The usage of runs according to `result` lines that versions of the Claude CLI printed, shortened to the fields that are read.

use super::*;

const BACKGROUND_197: &str = include_str!("recorded/background-2.1.197.jsonl");
const BACKGROUND_332: &str = include_str!("recorded/background-2.1.332.jsonl");
const FAILED_FOLLOW_UP_332: &str = include_str!("recorded/failed-follow-up-2.1.332.jsonl");
const RESUMED_197: &str = include_str!("recorded/resumed-2.1.197.jsonl");
const RESUMED_332: &str = include_str!("recorded/resumed-2.1.332.jsonl");

/// Input tokens, output tokens, and thousandths of a dollar that a process used which printed these lines.
fn used<'a>(lines: impl IntoIterator<Item = &'a str>) -> (i64, i64, f64) {
    let mut reading = Reading::new(false, Prices::default());
    lines.into_iter().for_each(|line| reading.line(line, &mut Vec::new()));
    let usage = reading.usage().unwrap();
    assert!(!usage.cost_estimated);
    (usage.input_tokens, usage.output_tokens, (usage.cost_usd * 1e6).round() / 1e3)
}

#[test]
fn each_run_of_a_session_costs_what_it_used_itself() {
    for turn in RESUMED_332.lines() {
        assert_eq!(used([turn]), (1_000, 200, 8.0), "{turn}");
    }
    assert_eq!(used(RESUMED_197.lines()), (1_000, 200, 10.0));
}

#[test]
fn all_results_of_a_run_count() {
    assert_eq!(used(BACKGROUND_332.lines()), (3_000, 600, 24.0));
    assert_eq!(used(BACKGROUND_197.lines()), (2_000, 400, 20.0));
    assert_eq!(used(FAILED_FOLLOW_UP_332.lines()), (2_000, 400, 16.0), "the second one used nothing");
    // A result after an internal error of the CLI may lack the field, or have zeros.
    let without = r#"{"type":"result","subtype":"error_during_execution","is_error":true,"total_cost_usd":0,"usage":{},"modelUsage":{}}"#;
    assert_eq!(used(BACKGROUND_332.lines().chain([without])), (3_000, 600, 24.0));
}
