//! Why a task waits or failed, in the words of the API. The times in these words are shown as the page shows times: relative, so that a
//! row has room for them.

use bloom_api::tasks::Waiting;
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::task::WaitingReason;
use jiff::Timestamp;

use crate::times::shortened;

/// How the API writes times: `2026-02-25T06:13:20Z`.
const TIME_BYTES: usize = 20;
/// What follows these words is what an agent said, whose times are left as they are.
const BECAUSE: &str = ", because: ";
/// The words before a time that do not fit a relative one, and those that do.
const BEFORE_TIMES: [(&str, &str); 2] = [("does not run before ", "is due "), (" at ", " ")];

/// A text, and the time that follows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub text: String,
    pub at: Option<Ms>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Note {
    pub parts: Vec<Part>,
}

impl Note {
    pub(crate) fn plain(text: String) -> Self {
        let parts = if text.is_empty() { Vec::new() } else { vec![Part { text, at: None }] };
        Self { parts }
    }

    /// `text`: the message of `waiting`, or what is left of it.
    pub(crate) fn of_waiting(waiting: &Waiting, text: &str) -> Self {
        let asks = waiting.reason == Word::Known(WaitingReason::NeedsHuman);
        // A task that waits until no time that is known has none in its message, and a question is what an agent said.
        if asks || waiting.until.is_none() {
            return Self::plain(text.to_owned());
        }
        let (server, agent) = text.split_at(text.find(BECAUSE).unwrap_or(text.len()));
        let (mut parts, mut rest) = (Vec::new(), server);
        while let Some((before, at, after)) = first_time(rest) {
            let fitting = BEFORE_TIMES.iter().find_map(|(end, other)| Some(format!("{}{other}", before.strip_suffix(end)?)));
            parts.push(Part { text: fitting.unwrap_or_else(|| before.to_owned()), at: Some(at) });
            rest = after;
        }
        parts.push(Part { text: format!("{rest}{agent}"), at: None });
        Self { parts }
    }

    /// The beginning: at most this many characters of its texts.
    pub(crate) fn shortened(mut self, most: usize) -> Self {
        let mut room = most;
        let mut is_whole = true;
        self.parts.retain_mut(|part| {
            let (length, keep) = (part.text.chars().count(), is_whole);
            if length > room {
                *part = Part { text: shortened(&part.text, room), at: None };
                is_whole = false;
            }
            room = room.saturating_sub(length);
            keep
        });
        self
    }

    pub(crate) fn has_times(&self) -> bool {
        self.parts.iter().any(|part| part.at.is_some())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Its texts, without the times.
    pub(crate) fn text(&self) -> String {
        self.parts.iter().map(|part| part.text.as_str()).collect()
    }
}

/// The first time in a text, with what is before and after it.
fn first_time(text: &str) -> Option<(&str, Ms, &str)> {
    text.char_indices().find_map(|(start, _)| {
        let word = text.get(start..start + TIME_BYTES).filter(|word| word.ends_with('Z') && !word.contains(' '))?;
        let at = word.parse::<Timestamp>().ok()?.as_millisecond();
        Some((&text[..start], at, &text[start + TIME_BYTES..]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Ms = 1_772_000_000_000;

    fn told(reason: WaitingReason, message: &str) -> Note {
        let waiting = Waiting { reason: Word::Known(reason), message: message.to_owned(), until: Some(AT) };
        Note::of_waiting(&waiting, message)
    }

    /// The note as a line, with `@` for each time.
    fn line(note: &Note) -> String {
        note.parts.iter().map(|part| format!("{}{}", part.text, if part.at.is_some() { "@" } else { "" })).collect()
    }

    #[test]
    fn the_times_of_the_server_are_shown_as_times() {
        let time = "2026-02-25T06:13:20Z";
        for (message, shown) in [
            ("is tried again at T, because: it said T", "is tried again @, because: it said 2026-02-25T06:13:20Z"),
            ("does not run before T", "is due @"),
            ("its worker has been silent since T; its lease ends at T, and", "its worker has been silent since @; its lease ends @, and"),
            ("every worker is full; at T, one may take it", "every worker is full; @, one may take it"),
            ("ї: no time", "ї: no time"),
        ] {
            let note = told(WaitingReason::NotBefore, &message.replace('T', time));
            assert_eq!(line(&note), shown);
            assert!(note.parts.iter().all(|part| part.at.is_none_or(|at| at == AT)));
        }
        assert_eq!(line(&told(WaitingReason::NeedsHuman, &format!("it asks: at {time}?"))), format!("it asks: at {time}?"));
    }

    #[test]
    fn a_note_is_cut_by_the_characters_of_its_texts() {
        let note = told(WaitingReason::NotBefore, "is tried again at 2026-02-25T06:13:20Z, because: no");
        assert_eq!(line(&note.clone().shortened(100)), "is tried again @, because: no");
        assert_eq!(line(&note.clone().shortened(18)), "is tried again @, b…");
        assert_eq!(line(&note.shortened(4)), "is t…");
        assert!(Note::plain(String::new()).is_empty());
    }
}
