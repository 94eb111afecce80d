//! The object that `submit` creates.

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// An LLMTask.
pub(crate) struct Object(pub Value);

impl Object {
    /// Creates the object from the fields of a task, which have the names of the HTTP API.
    pub(crate) fn new(name: Option<&str>, fields: Map<String, Value>, prompt: String) -> Self {
        let mut spec = Map::new();
        for (field, value) in fields {
            match field.as_str() {
                "not_before" => spec.insert("notBefore".into(), time(&value)),
                "ttl_after_finished_sec" => spec.insert("ttlSecondsAfterFinished".into(), value),
                "policy" => spec.insert(field, camel_keys(value)),
                _ => spec.insert(camel(&field), value),
            };
        }
        spec.insert("prompt".into(), prompt.into());
        spec.entry("contextId").or_insert_with(|| json!(Uuid::now_v7()));
        let metadata = match name {
            Some(name) => json!({ "name": name }),
            None => json!({ "generateName": "task-" }),
        };
        Self(json!({ "apiVersion": "bloom-runtime.dev/v1alpha1", "kind": "LLMTask", "metadata": metadata, "spec": spec }))
    }
}

fn time(ms: &Value) -> Value {
    ms.as_i64().and_then(|ms| Timestamp::from_millisecond(ms).ok()).map_or(Value::Null, |at| json!(at.to_string()))
}

fn camel_keys(value: Value) -> Value {
    match value {
        Value::Object(members) => members.into_iter().map(|(key, value)| (camel(&key), value)).collect::<Map<_, _>>().into(),
        other => other,
    }
}

fn camel(snake: &str) -> String {
    let mut words = snake.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let mut letters = word.chars();
        name + &letters.next().map(|letter| letter.to_ascii_uppercase().to_string()).unwrap_or_default() + letters.as_str()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_names_of_the_object() {
        let fields = json!({
            "agent_slug": "a", "context_id": "c", "policy": { "timeout_sec": 60, "budget": 1.5 }, "labels": { "a_b": "x" },
            "not_before": 1_000, "ttl_after_finished_sec": 3600, "depends_on": ["first"], "max_attempts": 1,
        });
        let Object(object) = Object::new(Some("n"), fields.as_object().unwrap().clone(), "p".into());
        assert_eq!(object["metadata"], json!({ "name": "n" }));
        let expected = json!({
            "agentSlug": "a", "contextId": "c", "policy": { "timeoutSec": 60, "budget": 1.5 }, "labels": { "a_b": "x" },
            "notBefore": "1970-01-01T00:00:01Z", "ttlSecondsAfterFinished": 3600, "dependsOn": ["first"], "maxAttempts": 1, "prompt": "p",
        });
        assert_eq!(object["spec"], expected);
        let Object(object) = Object::new(None, Map::new(), "p".into());
        assert_eq!(object["metadata"], json!({ "generateName": "task-" }));
        assert!(object["spec"]["contextId"].is_string(), "each task has a context of its own, unless one is named");
    }
}
