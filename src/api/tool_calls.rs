//! Calls of tools, as people read them: the name of the tool, and what tells most of its input.

use serde_json::Value;

/// The fields of inputs that tell most, the most telling first.
const TELLING: [&str; 9] = ["command", "file_path", "notebook_path", "path", "pattern", "url", "query", "description", "prompt"];

/// "Bash: rm -rf build". Of an input that has none of the telling fields, all of it; of an empty one, nothing.
pub fn told(tool: &str, input: &Value) -> String {
    let telling = TELLING.iter().find_map(|field| input[*field].as_str().filter(|text| !text.trim().is_empty()));
    match telling {
        Some(text) => format!("{tool}: {}", text.trim()),
        None if input.is_null() || input.as_object().is_some_and(serde_json::Map::is_empty) => tool.to_owned(),
        None => format!("{tool} {input}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_most_telling_field_is_told() {
        assert_eq!(told("Bash", &json!({ "description": "Clean up", "command": "rm -rf build" })), "Bash: rm -rf build");
        assert_eq!(told("Grep", &json!({ "pattern": "a.b", "glob": "*.rs" })), "Grep: a.b");
        assert_eq!(told("Odd", &json!({ "n": 1 })), "Odd {\"n\":1}");
        assert_eq!(told("List", &json!({})), "List");
    }
}
