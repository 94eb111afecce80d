//! What a tool is to do, as a person reads it before allowing it.

use serde_json::Value;

use super::questions::Question;
use super::visible_text::compact;

/// The field of the tools that execute a command.
const COMMAND: &str = "command";
/// The field of the tool that asks in words.
const QUESTIONS: &str = "questions";

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
                // What it asks in words is shown as that.
                let shown = members.iter().filter(|(name, _)| self.questions.is_empty() || *name != QUESTIONS);
                let (command, others): (Vec<_>, Vec<_>) = shown.partition(|(name, _)| *name == COMMAND);
                command.into_iter().chain(others).map(|(name, value)| field(name, value)).collect()
            }
            other => vec![field("", other)],
        };
        ToolInput { fields, is_cut }
    }

    /// What it asks in words, each question with what is said about its choices.
    pub fn in_words(&self) -> Vec<String> {
        let input: Value = serde_json::from_str(self.input.get()).unwrap_or_default();
        let asked = self.questions.iter().enumerate().map(|(at, text)| {
            let options = input[QUESTIONS][at]["options"].as_array().into_iter().flatten();
            let about = options.filter_map(|option| Some((option["label"].as_str()?, option["description"].as_str()?)));
            about.fold(compact(text), |told, (label, about)| format!("{told}\n  {}: {}", compact(label), compact(about)))
        });
        asked.collect()
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => compact(text),
        other => compact(&serde_json::to_string_pretty(other).unwrap_or_default()),
    }
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n  ")
}

impl ToolInput {
    /// In one text: a command, and the other fields with their names. Further lines of a field are indented, so that none looks like a field.
    pub fn text(&self) -> String {
        let parts = self.fields.iter().map(|field| match field.name.as_str() {
            "" | COMMAND => indented(&field.text),
            name => format!("{name}: {}", indented(&field.text)),
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
        assert_eq!(shown(&json!({ "edits": [{ "old": "x" }] })).text(), "edits: [\n    {\n      \"old\": \"x\"\n    }\n  ]");
        assert_eq!(shown(&json!(null)), ToolInput::default());
        assert_eq!(shown(&json!({ "command": "ls\ndescription: lists" })).text(), "ls\n  description: lists");
        let cut = shown(&json!("{\"content\": \"aaa…"));
        assert!(cut.is_cut && cut.text() == "{\"content\": \"aaa…");
    }
}
