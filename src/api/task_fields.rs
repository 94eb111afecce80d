//! The names of the fields of a new task: which are unknown, and where a value is wrong.

use serde_json::value::RawValue;

use super::files::NewInput;
use super::new_tasks::{NewPolicy, NewTask};
use super::wire::{Members, Problem, Problems, SHOWN_CHARS};
use bloom_core::similar::similar;

/// Unknown fields of one task that are named; the others are only ignored.
const MOST_NAMED: usize = 10;
/// Warnings in one answer.
pub const MAX_WARNINGS: usize = 100;

/// A field that a task does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Unknown {
    /// Its whole path, without characters that are not shown.
    pub path: String,
    /// The whole path of the field that may be meant.
    pub meant: Option<String>,
    /// The fields that are there.
    pub known: &'static [&'static str],
}

/// The fields of a task that it does not have, of the first `MOST_NAMED`. They are ignored, because clients may send fields of their own.
pub fn unknown(task: &RawValue) -> Vec<Unknown> {
    let mut found = Vec::new();
    of_object(task, NewTask::FIELDS, "", &mut found);
    let Ok(members) = Members::of(task) else { return found };
    if let Some(policy) = members.get("policy") {
        of_object(policy, NewPolicy::FIELDS, "policy.", &mut found);
    }
    let inputs: Vec<&RawValue> = members.get("inputs").and_then(|inputs| serde_json::from_str(inputs.get()).ok()).unwrap_or_default();
    for (at, input) in inputs.into_iter().enumerate() {
        of_object(input, NewInput::FIELDS, &format!("inputs.{at}."), &mut found);
    }
    found
}

fn of_object(object: &RawValue, known: &'static [&'static str], of: &str, found: &mut Vec<Unknown>) {
    let Ok(members) = Members::of(object) else { return };
    for (name, _) in members.iter().filter(|(name, _)| !known.contains(name)) {
        if found.len() == MOST_NAMED {
            return;
        }
        let shown: String = name.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
        found.push(Unknown { path: format!("{of}{shown}"), meant: meant(name, known, of), known });
    }
}

/// The nearest field, first of those beside it, then of the whole task and its policy: a field that stands at the wrong place is the same.
fn meant(name: &str, known: &'static [&'static str], of: &str) -> Option<String> {
    let beside = known.iter().map(|field| (*field, of));
    let others = NewTask::FIELDS.iter().map(|field| (*field, "")).chain(NewPolicy::FIELDS.iter().map(|field| (*field, "policy.")));
    let name: String = name.chars().take(SHOWN_CHARS).collect();
    let nearest = similar(&name, beside.clone().chain(others.clone()).map(|(field, _)| field))?;
    beside.chain(others).find(|(field, _)| *field == nearest).map(|(field, of)| format!("{of}{field}"))
}

/// What an answer says of the unknown fields of a task.
pub fn warnings(task: &RawValue) -> Vec<String> {
    let told = |Unknown { path, meant, .. }: Unknown| {
        let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        format!("unknown field '{path}' was ignored{meant}")
    };
    unknown(task).into_iter().map(told).collect()
}

/// As [`warnings`], for each task of a body that has many: at most [`MAX_WARNINGS`] together.
pub fn warnings_of_each(body: &RawValue) -> Vec<Vec<String>> {
    let tasks = Members::of(body).ok().and_then(|members| members.get("tasks"));
    let tasks: Vec<&RawValue> = tasks.and_then(|tasks| serde_json::from_str(tasks.get()).ok()).unwrap_or_default();
    let mut left = MAX_WARNINGS;
    let first = |task: &RawValue| {
        let mut found = if left == 0 { Vec::new() } else { warnings(task) };
        found.truncate(left);
        left -= found.len();
        found
    };
    tasks.into_iter().map(first).collect()
}

/// Each error with the whole path of the value, by path.
pub fn by_path(problems: Problems) -> Vec<(String, String)> {
    let whole = |Problem { mut path, text }: Problem| {
        path.reverse();
        (path.join("."), text)
    };
    let mut found: Vec<_> = problems.into_iter().map(whole).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(task: &str) -> Vec<String> {
        warnings(serde_json::from_str(task).unwrap())
    }

    #[test]
    fn a_field_that_stands_elsewhere_or_is_misspelt_is_found() {
        for (task, expected) in [
            (r#"{"timeout_sec": 5}"#, "'timeout_sec' was ignored; did you mean policy.timeout_sec?"),
            (r#"{"promt": "p"}"#, "'promt' was ignored; did you mean prompt?"),
            (r#"{"policy": {"timeout": 5}}"#, "'policy.timeout' was ignored; did you mean policy.timeout_sec?"),
            (r#"{"policy": {"priority": 5}}"#, "'policy.priority' was ignored; did you mean priority?"),
            (r#"{"inputs": [{}, {"pat": "x"}]}"#, "'inputs.1.pat' was ignored; did you mean inputs.1.path?"),
            (r#"{"xyz\n\u0007": 1}"#, r"'xyz\n\u{7}' was ignored"),
        ] {
            assert_eq!(told(task), [format!("unknown field {expected}")], "{task}");
        }
        for fine in ["5", "[]", r#"{"prompt": 5, "policy": 5, "inputs": {"a": 1}, "labels": {"x": "y"}}"#] {
            assert_eq!(told(fine), [] as [&str; 0], "{fine}");
        }
    }

    #[test]
    fn warnings_are_bounded() {
        let fields: Vec<String> = (0..50).map(|n| format!(r#""{}{n}": 1"#, "z".repeat(500))).collect();
        let task = format!("{{{}}}", fields.join(","));
        assert!(told(&task).len() == 10 && told(&task).iter().all(|text| text.len() < 100));
        let body = format!(r#"{{"tasks": [{}]}}"#, [&*task; 20].join(","));
        let each = warnings_of_each(serde_json::from_str(&body).unwrap());
        assert_eq!((each.len(), each.iter().map(Vec::len).sum::<usize>()), (20, MAX_WARNINGS));
    }
}
