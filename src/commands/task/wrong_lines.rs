//! Errors in the lines of a file that has one task per line.

use serde_json::error::Category;
use serde_json::value::RawValue;

use bloom_api::task_fields::{self, Unknown};
use bloom_api::wire::Problems;

/// Why a line is not a JSON object.
pub(crate) fn no_object(line: &str, error: &serde_json::Error) -> String {
    match error.classify() {
        _ if line.starts_with('[') => "it begins a JSON array, but each line must be one object; `jq -c '.[]'` makes such lines".to_owned(),
        Category::Data => "it is not a JSON object".to_owned(),
        Category::Eof => format!(
            "it is not valid JSON at column {}: the line ends within the object; give one object per line; `jq -c .` makes such lines",
            error.column()
        ),
        // Only the column is used: the parser's line number would contradict that of the file.
        _ => format!("it is not valid JSON at column {}: each line is a task, such as {{\"prompt\": \"Say hello\"}}", error.column()),
    }
}

/// The error about unknown fields of a line. The server ignores unknown fields, so a misspelt one would be lost.
pub(crate) fn misspelt(line: &RawValue) -> Option<String> {
    let unknown = task_fields::unknown(line);
    let told = |Unknown { path, meant, known }: Unknown| match meant {
        Some(meant) => format!("{path} is not a field of a task; the nearest is {meant}"),
        None => format!("{path} is not a field of a task; there are: {}", known.join(", ")),
    };
    (!unknown.is_empty()).then(|| unknown.into_iter().map(told).collect::<Vec<_>>().join("; "))
}

/// The API's errors about a line, with whole paths. The API takes times only as numbers, while --not-before takes them in many forms.
pub(crate) fn told(problems: Problems) -> String {
    let told = |(path, text): (String, String)| {
        let unit = if path == "not_before" && text.starts_with("Expected number") { " (milliseconds since the epoch)" } else { "" };
        if path.is_empty() { text } else { format!("{path}: {text}{unit}") }
    };
    task_fields::by_path(problems).into_iter().map(told).collect::<Vec<_>>().join("; ")
}
