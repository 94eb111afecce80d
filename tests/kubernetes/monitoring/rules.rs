//! The shipped rules, and what becomes of them in tests: alerts that fire within seconds.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::chart::{root, text, yaml};

/// Minutes become seconds.
const FACTOR: u64 = 60;
/// In seconds. So a day is no longer than this, too: what happened is over after this time.
const LONGEST: u64 = 20;

fn shipped() -> String {
    text(&root().join("manifests/prometheus/rules.yaml"))
}

fn rules(file: &str) -> Vec<Value> {
    let groups = yaml(file).remove(0)["groups"].as_array().unwrap().clone();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

/// The names of all alerts.
pub fn alerts() -> BTreeSet<String> {
    rules(&shipped()).iter().filter_map(|rule| rule["alert"].as_str().map(str::to_owned)).collect()
}

/// The names of all recorded series.
pub fn records() -> BTreeSet<String> {
    rules(&shipped()).iter().filter_map(|rule| rule["record"].as_str().map(str::to_owned)).collect()
}

/// The rules for this job, with all durations shortened. Nothing else changes.
pub fn shortened(job: &str) -> String {
    let own = shipped().replace("job=\"bloom-runtime\"", &format!("job=\"{job}\"")).replace("job: bloom-runtime", &format!("job: {job}"));
    let own = own.replace("name: bloom-runtime", &format!("name: {job}"));
    let mut short = String::new();
    let mut rest = own.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        let digits = number.len() - number.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = number.split_at(digits);
        short += before;
        let unit = after.chars().next().filter(|_| before.ends_with(['[', ':', ' ']));
        let ends = after.get(1..).is_none_or(|tail| tail.starts_with(['\n', ']', ':', ' ', ')']));
        match unit.and_then(seconds).filter(|_| ends) {
            Some(seconds) => {
                short += &format!("{}s", (number.parse::<u64>().unwrap() * seconds / FACTOR).clamp(1, LONGEST));
                rest = &after[1..];
            }
            None => {
                short += number;
                rest = after;
            }
        }
    }
    short + rest
}

fn seconds(unit: char) -> Option<u64> {
    match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3600),
        'd' => Some(86_400),
        _ => None,
    }
}

#[test]
fn only_durations_are_shortened() {
    let short = shortened("mine");
    assert!(!short.contains("job=\"bloom-runtime\"") && !short.contains("job: bloom-runtime"), "{short}");
    assert!(short.contains("[20s]) unless bloom_cost_usd_total{job=\"mine\"} offset 20s"), "{short}");
    assert!(short.contains("        for: 5s\n") && short.contains("[15s:1s])) > 4\n") && short.contains("< 14 * 86400\n"), "{short}");
    assert!(short.contains("job_reason:bloom_run_failures:ratio30m{") && short.contains("> 1800\n"), "{short}");
}
