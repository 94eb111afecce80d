//! Addresses as they may be shown: in answers, logs, the audit trail and error texts.

/// A URL without user and password. What looks like an `@` in a path may belong to a password that was not percent-encoded, so
/// everything up to the last `@` is left out.
pub fn masked_url(text: &str) -> String {
    match (text.rsplit_once('@'), text.split_once("://")) {
        (None, _) => text.to_owned(),
        (Some((_, place)), Some((scheme, _))) if !scheme.contains('@') => format!("{scheme}://****@{place}"),
        (Some((_, place)), _) => format!("****@{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::masked_url;

    #[test]
    fn user_and_password_are_left_out() {
        for (text, shown) in [
            ("http://h:8000/base", "http://h:8000/base"),
            ("http://me:secret@h/base", "http://****@h/base"),
            ("https://token@h", "https://****@h"),
            ("http://me:se@cr/et#x@h", "http://****@h"),
            ("me:secret@h", "****@h"),
            ("me:secret@h://x", "****@h://x"),
            ("", ""),
        ] {
            assert_eq!(masked_url(text), shown);
        }
    }
}
