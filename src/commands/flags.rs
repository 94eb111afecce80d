//! The flags and arguments by which people give what the API calls by the names of fields.

use bloom_api::problem_texts::NEEDS_PROJECT;

/// Fields and query parameters of the API, each with the flag or argument that gives it. No name means different flags in two commands.
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

/// What is wrong with a field, by the flag that gave it. The text about a nested field begins with that field's name.
pub(crate) fn told(field: &str, text: &str) -> String {
    let text = if text == NEEDS_PROJECT { "needs a project: give --project NAME, too" } else { text };
    // Of a list: which of its elements is wrong, counted from 0.
    if let Some((index, rest)) = text.split_once(": ").and_then(|(index, rest)| Some((index.parse::<usize>().ok()?, rest))) {
        return told(field, &format!("number {}: {rest}", index.saturating_add(1)));
    }
    let flag = |field: &str| FLAGS.iter().find(|(name, _)| *name == field).map(|(_, flag)| *flag);
    let nested = text.split_once(": ").filter(|_| field == "policy").and_then(|(inner, rest)| Some((flag(inner)?, rest)));
    match nested {
        Some((flag, rest)) => format!("{flag}: {rest}"),
        None => format!("{}: {text}", flag(field).unwrap_or(field)),
    }
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
        assert_eq!(told("policy", "Expected object"), "policy: Expected object");
        assert_eq!(told("tasks", "prompt: Required"), "tasks: prompt: Required");
    }
}
