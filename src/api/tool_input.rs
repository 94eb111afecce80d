//! What a tool is to do, as a person reads it before allowing it.

use serde_json::Value;

use super::questions::Question;
use super::visible::compact;

/// The field of the tools that execute a command.
const COMMAND: &str = "command";

/// A part of what a tool is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputField {
    /// Its name; empty if the input has no fields.
    pub name: String,
    /// All of its text, without what would hide a part of it.
    pub text: String,
}

impl InputField {
    /// Whether it is the command that is to be executed.
    pub fn is_command(&self) -> bool {
        self.name == COMMAND
    }
}

/// All that a person must know of a tool's input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolInput {
    /// The command first, if there is one.
    pub fields: Vec<InputField>,
    /// The worker has sent only the beginning, because the input is too long.
    pub is_cut: bool,
}

impl Question<'_> {
    /// What the tool is to do.
    pub fn tool_input(&self) -> ToolInput {
        let input: Value = serde_json::from_str(self.input.get()).unwrap_or_default();
        let is_cut = input.as_str().is_some_and(|text| text.ends_with('…'));
        let field = |name: &str, value: &Value| InputField { name: compact(name), text: text_of(value) };
        let fields = match &input {
            Value::Null => Vec::new(),
            Value::Object(members) => {
                let (command, others): (Vec<_>, Vec<_>) = members.iter().partition(|(name, _)| *name == COMMAND);
                command.into_iter().chain(others).map(|(name, value)| field(name, value)).collect()
            }
            other => vec![field("", other)],
        };
        ToolInput { fields, is_cut }
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => compact(text),
        other => compact(&serde_json::to_string_pretty(other).unwrap_or_default()),
    }
}

impl ToolInput {
    /// In one text: a command as it is, other fields with their names.
    pub fn text(&self) -> String {
        let parts = self.fields.iter().map(|field| match field.name.as_str() {
            "" | COMMAND => field.text.clone(),
            name => format!("{name}: {}", field.text),
        });
        parts.collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, value::RawValue};
    use std::borrow::Cow;
    use uuid::Uuid;

    fn shown(input: &Value) -> ToolInput {
        let input = RawValue::from_string(input.to_string()).unwrap();
        let question = Question {
            id: Uuid::nil(),
            task_id: Uuid::nil(),
            tool: "Bash".into(),
            input: Cow::Owned(input),
            questions: Cow::Borrowed(&[]),
            asked_at: 0,
            until: 0,
            answer: None,
        };
        question.tool_input()
    }

    #[test]
    fn nothing_of_the_input_is_hidden() {
        let hidden = json!({ "a": 1, "command": format!("echo{}; rm x\u{2069}", " ".repeat(100)), "dangerouslyDisableSandbox": true });
        let input = shown(&hidden);
        assert!(input.fields[0].is_command() && !input.is_cut);
        assert_eq!(input.text(), "echo⟨100 blank characters⟩; rm x\\u2069\na: 1\ndangerouslyDisableSandbox: true");
        assert_eq!(shown(&json!({ "edits": [{ "old": "x" }] })).text(), "edits: [\n  {\n    \"old\": \"x\"\n  }\n]");
        assert_eq!(shown(&json!(null)), ToolInput::default());
        let cut = shown(&json!("{\"content\": \"aaa…"));
        assert!(cut.is_cut && cut.text() == "{\"content\": \"aaa…");
    }
}
