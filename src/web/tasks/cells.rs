//! What the cells of the list of tasks show: names that lead to the tasks that have them, and where a text was found.

use url::form_urlencoded::byte_serialize;
use uuid::Uuid;

use crate::times::{beginning, shortened};

const NAME_CHARS: usize = 32;
/// A longer name has no link: its page has no room for that.
const LINK_BYTES: usize = 100;
/// How much of a text that was found is shown.
const FOUND_CHARS: usize = 60;
/// How much of a text is searched, as by the API.
const SEARCHED_CHARS: usize = 65_536;

/// The end of an id, by which a person tells it from others: ids that were made at the same time begin alike.
pub(crate) fn short_id(id: &str) -> String {
    format!("…{}", id.get(id.len().saturating_sub(8)..).unwrap_or(id))
}

/// A name as far as a column has room for it: of an id its end, of another long name its beginning and its end.
pub(crate) fn short_name(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    match Uuid::parse_str(name) {
        Ok(_) => short_id(name),
        Err(_) if letters.len() <= NAME_CHARS => name.to_owned(),
        Err(_) => {
            let (beginning, end) = (&letters[..NAME_CHARS / 2], &letters[letters.len() - NAME_CHARS / 2..]);
            beginning.iter().chain(&['…']).chain(end).collect()
        }
    }
}

/// Whether the name of a context is one that programs make, with random digits: it tells people nothing.
pub(crate) fn is_generated(context: &str) -> bool {
    const DIGITS: usize = 12;
    context.split(['-', '/', ':']).any(|part| part.len() >= DIGITS && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// A name or a few words about a task, as far as a row has room for them.
pub(crate) struct Named {
    pub shown: String,
    /// The whole name, if only the end of it is shown.
    pub whole: String,
    /// The tasks that have it; empty if it is no filter.
    pub link: String,
}

impl Named {
    /// Words that are no filter.
    pub(crate) fn words(text: &str) -> Self {
        Self { shown: beginning(text, NAME_CHARS), whole: String::new(), link: String::new() }
    }

    /// A value of this filter.
    pub(crate) fn of(filter: &str, value: &str) -> Self {
        let encoded: String = byte_serialize(value.as_bytes()).collect();
        let link = if encoded.len() <= LINK_BYTES { format!("/tasks?{filter}={encoded}") } else { String::new() };
        match Uuid::parse_str(value) {
            Ok(_) => Self { shown: short_id(value), whole: value.to_owned(), link },
            Err(_) => Self { link, ..Self::words(value) },
        }
    }
}

/// A part of a text with what was found in it.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub before: String,
    pub hit: String,
    pub after: String,
}

impl Found {
    /// The first place that has what is wanted, in capitals or not, and so many characters before and after it.
    pub(crate) fn of(text: &str, wanted: &str, around: usize) -> Option<Self> {
        let small = |letter: &char| letter.to_lowercase().next();
        let text: Vec<char> = text.chars().take(SEARCHED_CHARS).collect();
        let wanted: Vec<char> = wanted.chars().collect();
        if wanted.is_empty() {
            return None;
        }
        let at = text.windows(wanted.len()).position(|part| part.iter().map(small).eq(wanted.iter().map(small)))?;
        let end = at + wanted.len();
        let part = |from: usize, to: usize| text[from..to].iter().collect::<String>();
        let from = at.saturating_sub(around);
        let cut = if from > 0 { "…" } else { "" };
        Some(Self {
            before: format!("{cut}{}", part(from, at)),
            hit: shortened(&part(at, end), FOUND_CHARS),
            after: shortened(&part(end, text.len()), around),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_has_a_little_around_it() {
        let found = |text, wanted| Found::of(text, wanted, 4).map(|found| [found.before, found.hit, found.after]);
        assert_eq!(found("a long text with ЇЖАК in the middle", "їжак"), Some(["…ith ".into(), "ЇЖАК".into(), " in …".into()]));
        assert_eq!(found("ab", "AB"), Some(["".into(), "ab".into(), "".into()]));
        assert_eq!((found("ab", "abc"), found("ab", "")), (None, None));
    }

    #[test]
    fn a_long_name_keeps_its_beginning_and_its_end() {
        assert_eq!(short_name("0190a0a0-0000-7000-8000-0000b4ccefc3"), "…b4ccefc3");
        assert_eq!((short_name("nightly"), short_name(&"ї".repeat(32))), ("nightly".into(), "ї".repeat(32)));
        assert_eq!(short_name(&format!("{}end", "ї".repeat(40))), format!("{}…{}end", "ї".repeat(16), "ї".repeat(13)));
    }

    #[test]
    fn names_that_programs_make_are_told_from_others() {
        for generated in ["019c936e-3800-7000-8000-000000000001", "team:web/line-d75a01b2c3d4e5f6-0", "ci/key-0123456789abcdef"] {
            assert!(is_generated(generated), "{generated}");
        }
        for named in ["release-2026", "team:web/nightly", "facade", "2026-02-25"] {
            assert!(!is_generated(named), "{named}");
        }
    }

    #[test]
    fn a_name_leads_to_its_tasks() {
        let shown = |value: &str| {
            let Named { shown, whole, link } = Named::of("label", value);
            (shown, whole, link)
        };
        assert_eq!(shown("a=b c"), ("a=b c".into(), String::new(), "/tasks?label=a%3Db+c".into()));
        let id = "0190a0a0-0000-7000-8000-0000b4ccefc3";
        assert_eq!(shown(id), ("…b4ccefc3".into(), id.into(), format!("/tasks?label={id}")));
        assert_eq!(shown(&"ї".repeat(40)).2, "");
    }
}
