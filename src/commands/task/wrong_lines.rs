//! What is wrong with a line of a file that has a task per line.

use serde_json::error::Category;
use serde_json::{Map, Value};

use bloom_api::invalid::Invalid;
use bloom_api::new_tasks::{NewPolicy, NewTask};

/// Why a line is not a JSON object.
pub fn no_object(line: &str, error: &serde_json::Error) -> String {
    match error.classify() {
        _ if line.starts_with('[') => "it begins a JSON array, but each line must be one object; `jq -c '.[]'` makes such lines".to_owned(),
        Category::Data => "it is not a JSON object".to_owned(),
        Category::Eof => format!(
            "it is not valid JSON at column {}: the line ends within the object; give one object per line; `jq -c .` makes such lines",
            error.column()
        ),
        // The parser's own line number would contradict that of the file.
        _ => format!("it is not valid JSON at column {}", error.column()),
    }
}

/// What is wrong with the names of a line's fields. The server ignores fields that it does not know, so a misspelt one would be lost.
pub fn misspelt(task: &Map<String, Value>) -> Option<String> {
    let unknown = |fields: &Map<String, Value>, known: &'static [&'static str], of: &str| {
        let name = fields.keys().find(|name| !known.contains(&name.as_str()))?;
        Some(match nearest(name, known.iter().copied()) {
            Some(near) => format!("{of}{name} is not a field of a task; the nearest is {of}{near}"),
            None => format!("{of}{name} is not a field of a task; there are: {}", known.join(", ")),
        })
    };
    let policy = task.get("policy").and_then(Value::as_object);
    unknown(task, NewTask::FIELDS, "").or_else(|| unknown(policy?, NewPolicy::FIELDS, "policy."))
}

/// The one that is most like this word, if one is like it.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|known| (strsim::jaro_winkler(known, word), known)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    near.filter(|(likeness, _)| *likeness > 0.8).map(|(_, near)| near)
}

/// What the API says of a line. It takes times only as numbers, while --not-before takes them in many forms.
pub fn told(mut invalid: Invalid) -> String {
    for text in invalid.fields.get_mut("not_before").into_iter().flatten().filter(|text| text.starts_with("Expected number")) {
        text.push_str(" (milliseconds since the epoch)");
    }
    invalid.line()
}
