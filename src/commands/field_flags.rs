//! The flags and arguments by which people set the fields that the API knows by name.

use super::when::span_text;
use bloom_api::problem_texts::{NEEDS_PROJECT, too_large, too_small};
use bloom_core::Ms;

/// The suffix for the name of a flag whose value the API takes in seconds.
const IN_SECONDS: &str = ", in seconds";

/// The end of the name of a field in seconds, followed by the error about it.
const IN_FIELD: &str = "_sec: ";

/// Fields and query parameters of the API, each with its flag or argument. A name that means different flags in different commands is not
/// listed.
const FLAGS: &[(&str, &str)] = &[
    ("action", "--action"),
    ("actor", "--actor"),
    ("agent_slug", "--agent"),
    ("answers", "TEXT"),
    ("asks", "--asks"),
    ("budget", "--budget"),
    ("context_hints", "--hint"),
    ("context_id", "--context"),
    ("created_after", "--since"),
    ("created_before", "--until"),
    ("depends_on", "--depends-on"),
    ("desired_format", "--format"),
    ("exclusive_key", "--exclusive-key"),
    ("expires_in_sec", "--expires, in seconds"),
    ("finished_after", "--finished-since"),
    ("from", "--since"),
    ("idempotency_key", "--idempotency-key"),
    ("inputs", "--file"),
    ("kind", "--kind"),
    ("label", "--label"),
    ("labels", "--label"),
    ("max_attempts", "--max-attempts"),
    ("max_concurrency", "N"),
    ("message", "--message"),
    ("model", "--model"),
    ("name", "NAME"),
    ("namespaces", "--namespace"),
    ("not_before", "--not-before"),
    ("outputs", "--keep"),
    ("overlap_sec", "--overlap, in seconds"),
    ("owner", "--owner"),
    ("priority", "--priority"),
    ("project", "--project"),
    ("prompt", "the prompt"),
    ("push", "--push"),
    ("quota", "--max-open-tasks, --max-tasks-per-minute, --max-stored-mib"),
    ("ref", "--ref"),
    ("scope", "--scope"),
    ("search", "TEXT"),
    ("session", "--session"),
    ("task_id", "--task"),
    ("team", "--team"),
    ("timeout_sec", "--timeout, in seconds"),
    ("to", "--until"),
    ("ttl_after_finished_sec", "--ttl, in seconds"),
    ("worker", "--worker"),
    ("worker_id", "--worker"),
];

/// The error about a field, with the name of its flag. The text about a nested field begins with the name of that field.
pub(crate) fn told(field: &str, text: &str) -> String {
    let text = if text == NEEDS_PROJECT { "needs a project: give --project NAME, too" } else { text };
    // For a list, the text begins with the index of the wrong element, counted from 0.
    if let Some((index, rest)) = text.split_once(": ").and_then(|(index, rest)| Some((index.parse::<usize>().ok()?, rest))) {
        return told(field, &format!("number {}: {rest}", index.saturating_add(1)));
    }
    // The value may come from a line of a file, so no flag is named.
    if let Some((name, rest)) = text.split_once(IN_FIELD).filter(|_| field == "tasks")
        && let Some(limit) = limit_of_time(rest)
    {
        return format!("{field}: {name}{IN_FIELD}{limit}");
    }
    let flag = |field: &str| FLAGS.iter().find(|(name, _)| *name == field).map(|(_, flag)| *flag);
    let of_flag = |flag: &str, text: &str| match flag.strip_suffix(IN_SECONDS).zip(limit_of_time(text)) {
        Some((flag, limit)) => format!("{flag}: {limit}"),
        None => format!("{flag}: {text}"),
    };
    let nested = text.split_once(": ").filter(|_| field == "policy").and_then(|(inner, rest)| Some((flag(inner)?, rest)));
    match nested {
        Some((flag, rest)) => of_flag(flag, rest),
        None => of_flag(flag(field).unwrap_or(field), text),
    }
}

/// Converts the API's text about a number of seconds, for example to "at most 7d".
fn limit_of_time(text: &str) -> Option<String> {
    let (begin, word) = [(too_large(""), "at most"), (too_small(""), "at least")].into_iter().find(|(begin, _)| text.starts_with(begin))?;
    let text = &text[begin.len()..];
    let (seconds, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    Some(format!("{word} {}{rest}", span_text(seconds.parse::<Ms>().ok()?.checked_mul(1_000)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_lists_and_missing_projects_are_told_by_their_flags() {
        assert_eq!(told("outputs", "1: The glob must not begin with /"), "--keep: number 2: The glob must not begin with /");
        assert_eq!(told("ref", NEEDS_PROJECT), "--ref: needs a project: give --project NAME, too");
    }

    #[test]
    fn a_field_is_told_by_its_flag() {
        assert_eq!(told("context_id", "Required"), "--context: Required");
        assert_eq!(told("policy", "timeout_sec: Too much"), "--timeout, in seconds: Too much");
        assert_eq!(told("policy", &format!("timeout_sec: {}: that is X", too_large(604_800))), "--timeout: at most 7d: that is X");
        assert_eq!(told("overlap_sec", &too_small(60)), "--overlap: at least 60s");
        assert_eq!(told("priority", &too_large(9)), "--priority: Number must be less than or equal to 9");
        assert_eq!(told("policy", "Expected object"), "policy: Expected object");
        assert_eq!(told("tasks", "prompt: Required"), "tasks: prompt: Required");
        let of_line = told("tasks", &format!("policy: timeout_sec: {}: that is X", too_large(86_400)));
        assert_eq!(of_line, "tasks: policy: timeout_sec: at most 24h: that is X");
    }
}
