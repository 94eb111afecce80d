//! URLs as they may be shown: in answers, logs, the audit trail and error texts.

/// A URL without its user and password. An `@` in what looks like a path may belong to a password that was not percent-encoded, so
/// everything up to the last `@` is left out. The same applies to everything before an `@` that was percent-encoded by mistake, even
/// several times.
pub fn masked_url(text: &str) -> String {
    let literal = text.rsplit_once('@');
    // After an `@` that separates the password, an encoded `@` in a path is part of that path.
    let place = literal.map_or(text, |(_, place)| place);
    let authority = if literal.is_none() { place } else { place.split(['/', '?', '#']).next().unwrap_or_default() };
    let split = after_encoded_at(authority).and_then(|at| place.get(at..)).map(|place| ("", place)).or(literal);
    match (split, text.split_once("://")) {
        (None, _) => text.to_owned(),
        (Some((_, place)), Some((scheme, _))) if !scheme.contains(['@', '%']) => format!("{scheme}://****@{place}"),
        (Some((_, place)), _) => format!("****@{place}"),
    }
}

/// Like [`masked_url`], but also without the query, which may contain a token.
pub fn masked_query(text: &str) -> String {
    let shown = masked_url(text);
    match shown.split_once('?') {
        Some((place, _)) => format!("{place}?****"),
        None => shown,
    }
}

/// The position after the last `%40`, `%2540`, `%252540` and so on.
fn after_encoded_at(text: &str) -> Option<usize> {
    let is_at = |start: &usize| {
        text.get(*start..).and_then(|rest| rest.strip_prefix('%')).is_some_and(|rest| {
            let mut rest = rest;
            while let Some(inner) = rest.strip_prefix("25") {
                rest = inner;
            }
            rest.starts_with("40")
        })
    };
    let start = text.rmatch_indices('%').map(|(start, _)| start).find(is_at)?;
    text.get(start..)?.find("40").map(|length| start + length + 2)
}

#[cfg(test)]
mod tests {
    use super::{masked_query, masked_url};

    #[test]
    fn user_and_password_are_left_out() {
        for (text, shown) in [
            ("http://h:8000/base", "http://h:8000/base"),
            ("http://me:secret@h/base", "http://****@h/base"),
            ("https://token@h", "https://****@h"),
            ("http://me:se@cr/et#x@h", "http://****@h"),
            ("me:secret@h", "****@h"),
            ("me:secret@h://x", "****@h://x"),
            ("me:secret%40h://x", "****@h://x"),
            ("http://me:very%2540secret@h/base", "http://****@h/base"),
            ("http://me:secret%40h:8000", "http://****@h:8000"),
            ("http://me:secret%2540h:8000/base", "http://****@h:8000/base"),
            ("http://me:se%252540cret%252540h", "http://****@h"),
            ("http://me:se@cret%2540h/base%40x", "http://****@h/base%40x"),
            ("http://h:8000/base%20x", "http://h:8000/base%20x"),
            ("", ""),
        ] {
            assert_eq!(masked_url(text), shown);
            assert_eq!(masked_query(text), shown);
        }
    }

    #[test]
    fn a_query_is_left_out() {
        for (text, shown) in [
            ("http://h:4318/v1?token=secret", "http://h:4318/v1?****"),
            ("http://me:se?cret@h/v1?token=secret", "http://****@h/v1?****"),
            ("http://h/v1?token=secret@x", "http://****@x"),
            ("http://h?a=1?b=secret#c", "http://h?****"),
        ] {
            assert_eq!(masked_query(text), shown);
        }
    }
}
