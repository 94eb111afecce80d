//! Parses lines that a JavaScript program has printed as JSON.

use serde_json::Value;

pub fn parse(line: &str) -> Option<Value> {
    serde_json::from_str(line).or_else(|_| serde_json::from_str(&without_lone_surrogates(line))).ok()
}

/// The line with U+FFFD for each escaped half of a surrogate pair without the other, which JavaScript prints and JSON's parsers refuse.
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
            // Another escape; the character behind the backslash belongs to it.
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
            let parsed = parse(&format!(r#"["{said}"]"#));
            assert_eq!(parsed.as_ref().and_then(|value| value[0].as_str()), expected, "{said}");
        }
    }
}
