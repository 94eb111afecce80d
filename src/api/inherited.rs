//! What a new task takes over from another one.

use serde_json::{Map, Value, json};

/// All that says where and how a conversation goes on, and how often a task of it may be tried.
const OF_CONVERSATION: [&str; 10] =
    ["context_id", "agent_slug", "project", "ref", "push", "labels", "model", "exclusive_key", "desired_format", "max_attempts"];

/// The rest of what a client asks for, except when the task begins and for which others it waits, its idempotency key, and its inputs, which are
/// shown with more than a client sends.
const OF_WORK: [&str; 6] = ["prompt", "context_hints", "priority", "session", "ttl_after_finished_sec", "outputs"];

/// The fields of a task that goes on with the conversation of this one, which is as the API shows it.
pub fn for_reply(task: &Value) -> Map<String, Value> {
    let mut body = taken(task, &OF_CONVERSATION);
    // Each task of a conversation is paid for: it has the limits that the first one was given.
    body.insert("policy".into(), policy(task));
    body
}

/// The fields of a task that asks for the same as this one, which is as the API shows it.
pub fn for_the_same(task: &Value) -> Map<String, Value> {
    let mut body = for_reply(task);
    body.extend(taken(task, &OF_WORK));
    let inputs = task["inputs"].as_array().into_iter().flatten();
    body.insert("inputs".into(), inputs.map(|input| Value::Object(taken(input, &["artifact_id", "path"]))).collect());
    body
}

/// A time limit that nobody gave is left to the agent's profile again.
fn policy(task: &Value) -> Value {
    let mut policy = taken(&task["policy"], &["budget"]);
    if task["policy"]["timeout_is_default"] != json!(true) {
        policy.extend(taken(&task["policy"], &["timeout_sec"]));
    }
    Value::Object(policy)
}

fn taken(object: &Value, fields: &[&str]) -> Map<String, Value> {
    fields.iter().filter_map(|field| Some(((*field).to_owned(), object.get(field).filter(|value| !value.is_null())?.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::new_tasks::NewTask;

    /// A new field of tasks is either taken over or named here.
    #[test]
    fn each_field_of_a_new_task_is_decided_on() {
        let not_taken = ["not_before", "depends_on", "idempotency_key", "suspend"];
        let mut known = [&OF_CONVERSATION[..], &OF_WORK, &["policy", "inputs"], &not_taken].concat();
        let mut fields = NewTask::FIELDS.to_vec();
        known.sort_unstable();
        fields.sort_unstable();
        assert_eq!(known, fields);
    }
}
