//! What a run did, for people.

use serde_json::Value;

use crate::times::shortened;
use bloom_api::answers::Event;
use bloom_core::Ms;

/// Characters of an event on a page.
const CHARS: usize = 400;

pub struct Shown {
    pub number: i64,
    pub kind: String,
    pub at: Ms,
    pub text: String,
}

impl Shown {
    pub fn of(event: Event<'_>) -> Self {
        let data: Value = serde_json::from_str(event.data.get()).unwrap_or_default();
        Self { number: event.number, kind: event.kind.to_string(), at: event.at, text: shortened(&told(&data), CHARS) }
    }
}

/// The words of an event: its text, the tool and what it is to do, or its members.
fn told(data: &Value) -> String {
    let words = ["text", "message", "content"].iter().find_map(|name| data[name].as_str());
    match (data.as_str().or(words), data["name"].as_str(), data.as_object()) {
        (Some(text), ..) => text.trim().to_owned(),
        (_, Some(name), _) => format!("{name} {}", data["input"]),
        (.., Some(members)) => {
            let shown = members.iter().filter(|(_, value)| !value.is_null());
            let pairs = shown.map(|(name, value)| match value {
                Value::String(text) => format!("{name}: {text}"),
                other => format!("{name}: {other}"),
            });
            pairs.collect::<Vec<_>>().join(", ")
        }
        _ => data.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_told_in_words() {
        assert_eq!(told(&json!({ "text": " a\nb " })), "a\nb");
        assert_eq!(told(&json!({ "name": "Bash", "input": { "command": "ls" } })), "Bash {\"command\":\"ls\"}");
        assert_eq!(told(&json!({ "phase": "ended", "exit": null, "ms": 5 })), "phase: ended, ms: 5");
    }
}
