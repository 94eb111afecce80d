//! Explains what is wrong with a profiles file, in the terms of its author instead of those of the parser.

use bloom_core::similar::similar;

use crate::profile::STALL_SECONDS;

/// The parser's names for kinds of values, and how such values are written.
const KINDS: [(&str, &str); 4] = [
    ("a sequence", "a list, such as [\"a\", \"b\"]"),
    ("a map", "a table, such as { name = \"value\" }"),
    ("a boolean", "true or false"),
    ("a string", "a text between quotes"),
];

/// Names the line that is wrong and says why. The value is left out, because it may be a secret.
pub(crate) fn told(error: &toml::de::Error, text: &str) -> String {
    let Some(span) = error.span() else { return error.message().to_owned() };
    let (before, value) = (text.get(..span.start).unwrap_or_default(), text.get(span).unwrap_or_default());
    let number = before.matches('\n').count() + 1;
    let line = before.rsplit('\n').next().unwrap_or_default();
    // The last key before the value, which may be in an inline table.
    let key = line.rsplit(['{', ',']).next().unwrap_or_default().split('=').next().unwrap_or_default().trim();
    let of = if key.is_empty() { String::new() } else { format!(", {key}") };
    format!("line {number}{of}: {}", why(error.message(), key, line, value))
}

fn why(message: &str, key: &str, line: &str, value: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match (message, names.as_slice()) {
        (_, [unknown, known @ ..]) if message.starts_with("unknown field") => match similar(unknown, known.iter().copied()) {
            Some(near) => format!("there is no key {unknown}; did you mean {near}?"),
            None => format!("there is no key {unknown}; there are: {}", known.join(", ")),
        },
        (_, [given, known @ ..]) if message.starts_with("unknown variant") => match similar(given, known.iter().copied()) {
            Some(near) => format!("\"{given}\" is not one of its values; did you mean \"{near}\"?"),
            None => format!("\"{given}\" is not one of its values; give one of: \"{}\"", known.join("\", \"")),
        },
        _ => match message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: ")) {
            Some(types) => wanted(types, key, line, value),
            None => message.to_owned(),
        },
    }
}

/// `types` has the form `string "x", expected u64`.
fn wanted(types: &str, key: &str, line: &str, value: &str) -> String {
    let expected = types.rsplit_once(", expected ").map_or(types, |(_, expected)| expected);
    if expected == "a sequence" && line.contains('=') {
        let words: Vec<String> = value.trim_matches('"').split_whitespace().map(|word| format!("{word:?}")).collect();
        return format!("write a list: {key} = [{}]", words.join(", "));
    }
    if line.trim_start().starts_with("prices") {
        return "write US dollars for a million tokens: prices = { MODEL = { input = 3.0, output = 15.0 } }".to_owned();
    }
    let known = match key {
        _ if key.ends_with("_seconds") || key.ends_with("_sec") => Some(format!("a whole number of seconds, such as {STALL_SECONDS}")),
        _ if key.ends_with("_mib") => Some("a whole number of MiB, such as 2048".to_owned()),
        _ if key.ends_with("_usd") => Some("a number of US dollars, such as 2.5".to_owned()),
        _ if ["u64", "i64", "u32", "usize"].contains(&expected) => Some("a whole number".to_owned()),
        _ if expected == "f64" => Some("a number".to_owned()),
        _ => KINDS.iter().find(|(name, _)| *name == expected).map(|(_, kind)| (*kind).to_owned()),
    };
    format!("{key} must be {}", known.unwrap_or_else(|| expected.to_owned()))
}
