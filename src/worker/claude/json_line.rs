//! Parses lines that a JavaScript program has printed as JSON.

use serde_json::Value;

/// Deeper values are replaced by `null`, because parsers refuse a text that could exhaust their stack.
const MAX_DEPTH: usize = 100;

/// The objects in a line; empty if it contains anything else.
pub(crate) fn objects(line: &str) -> Vec<Value> {
    let line = without_controls(line);
    let values = parse(line).or_else(|| parse(&without_lone_surrogates(&shallow(line))));
    values.filter(|values| values.iter().all(Value::is_object)).unwrap_or_default()
}

/// Returns several objects if two programs that write to one stream share a line.
fn parse(line: &str) -> Option<Vec<Value>> {
    serde_json::Deserializer::from_str(line).into_iter().collect::<Result<_, _>>().ok()
}

/// Removes what terminals and editors add at both ends: escape sequences, byte order marks, carriage returns.
fn without_controls(mut line: &str) -> &str {
    loop {
        let trimmed = line.trim_matches(|char: char| char.is_whitespace() || (char.is_control() && char != '\u{1b}') || char == '\u{feff}');
        let begun = trimmed.strip_prefix('\u{1b}').map_or(trimmed, behind_escape);
        // An escape sequence at the end begins after the last brace.
        let end = begun.rfind('}').map_or(begun.len(), |at| at + 1);
        let shorter = if begun[end..].starts_with(|char: char| char == '\u{1b}' || char.is_control()) { &begun[..end] } else { begun };
        if shorter.len() == line.len() {
            return line;
        }
        line = shorter;
    }
}

/// The text after the rest of an escape sequence, which is parameters with a final letter, or a title that ends with a bell.
fn behind_escape(rest: &str) -> &str {
    let end = match rest.as_bytes().first() {
        Some(b'[') => rest[1..].find(|char: char| ('@'..='~').contains(&char)).map(|at| at + 2),
        Some(b']') => rest.find(['\u{7}', '\u{1b}']).map(|at| at + 1),
        Some(_) => rest.chars().next().map(char::len_utf8),
        None => None,
    };
    end.map_or("", |end| &rest[end..])
}

/// The line with `null` in place of each list and object that is nested too deeply.
fn shallow(line: &str) -> String {
    let (mut result, mut depth, mut in_text, mut is_escaped) = (String::with_capacity(line.len()), 0_usize, false, false);
    for char in line.chars() {
        let begins = !in_text && matches!(char, '[' | '{');
        let ends = !in_text && matches!(char, ']' | '}');
        if begins {
            depth += 1;
            if depth == MAX_DEPTH + 1 {
                result.push_str("null");
            }
        }
        if depth <= MAX_DEPTH {
            result.push(char);
        }
        if ends {
            depth = depth.saturating_sub(1);
        }
        in_text ^= char == '"' && !is_escaped;
        is_escaped = in_text && char == '\\' && !is_escaped;
    }
    result
}

/// The line with U+FFFD in place of each escaped surrogate without its other half. JavaScript prints such escapes, but JSON parsers refuse
/// them.
fn without_lone_surrogates(line: &str) -> String {
    let unit = |at: usize| {
        let digits = line.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let (mut result, mut kept, mut at) = (String::with_capacity(line.len()), 0, 0);
    while let Some(escape) = line[at..].find('\\') {
        at += escape;
        match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(0xd800..=0xdfff), _) => {
                result.push_str(&line[kept..at]);
                result.push_str("\\ufffd");
                at += 6;
                kept = at;
            }
            // Another escape, to which the character after the backslash belongs.
            _ => at += 1 + line[at + 1..].chars().next().map_or(0, char::len_utf8),
        }
    }
    result.push_str(&line[kept..]);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_surrogate_pair_spoils_no_line() {
        for (said, expected) in [
            (r"a\ud83d \ud83d\ude00 \\ud83d \ude00", Some("a\u{fffd} 😀 \\ud83d \u{fffd}")),
            (r"a\ud83d \ud83", None),
            (r"\ud83d\ud83d\ude00\", None),
            (r"\ud83d\ud83d\ude00\n", Some("\u{fffd}😀\n")),
        ] {
            let parsed = objects(&format!(r#"{{"a":"{said}"}}"#));
            assert_eq!(parsed.first().and_then(|value| value["a"].as_str()), expected, "{said}");
        }
    }

    #[test]
    fn what_surrounds_objects_spoils_none() {
        let one = r#"{"a":"}\u001b["}"#;
        for line in [
            "\u{feff}{}",
            "{}\r",
            "\u{1b}[2K\u{1b}[0m{}",
            "\u{1b}]0;title\u{7}{}",
            "{}\u{1b}[0m",
            "\u{1b}[1A\r{}\u{1b}[0m\r",
            " {}\t",
            "\0{}",
        ] {
            assert_eq!(objects(&line.replace("{}", one)).len(), 1, "{line:?}");
        }
        assert_eq!(objects(&format!("{one}{one} {one}")).len(), 3);
        for line in ["", "\u{1b}", "\u{1b}[", "\u{1b}]0;", "[1]", "1", "null", "{} 1", "text {}", "{", "\u{1b}[0m", "\u{feff}"] {
            assert_eq!(objects(line), Vec::<Value>::new(), "{line:?}");
        }
    }

    #[test]
    fn the_rest_of_an_object_is_read_although_a_part_is_nested_deeply() {
        for (begin, end) in [("[", "]"), (r#"{"\"[":"#, "}")] {
            let deep = format!(r#"{{"a":{}1{},"b":"]\""}}"#, begin.repeat(100_000), end.repeat(100_000));
            let read = objects(&deep);
            assert_eq!(read[0]["b"], "]\"");
        }
    }
}
