//! A reply to a task: a new task that goes on with the conversation of another one.

use serde_json::{Map, Value};

/// What the new task takes over: all that says where and how the conversation goes on.
const TAKEN: [&str; 9] = ["context_id", "agent_slug", "project", "ref", "push", "labels", "model", "exclusive_key", "desired_format"];

/// The fields of the new task that are those of the task, as the API shows it.
pub fn taken_over(task: &Value) -> Map<String, Value> {
    TAKEN.iter().filter_map(|field| Some(((*field).to_owned(), task.get(field).filter(|value| !value.is_null())?.clone()))).collect()
}
