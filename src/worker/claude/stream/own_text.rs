//! The text of the model's own messages: it becomes events while it is written, and the last text is the answer of a turn whose result is
//! empty.

use super::{MAX_OUTPUT, cut};

/// Text arrives in pieces first, and then as a whole. Each part of it must become an event exactly once.
#[derive(Debug, Default)]
pub(crate) struct OwnText {
    /// Streamed text that is in no event yet.
    pending: String,
    /// The streamed text of the message that is being written, as far as no complete text has confirmed it.
    streamed: String,
    /// The last text of this turn.
    last: String,
}

impl OwnText {
    pub(crate) fn message_begins(&mut self) {
        self.streamed.clear();
    }

    /// Adds text to the pending events. It may also be text that never arrives as a whole.
    pub(crate) fn tell(&mut self, text: &str) {
        self.pending.push_str(text);
    }

    pub(crate) fn piece(&mut self, text: &str) {
        self.tell(text);
        if self.streamed.len() <= MAX_OUTPUT {
            self.streamed.push_str(text);
        }
    }

    /// Handles a complete text. Returns the part that was not streamed: nothing, or all of it if there are no partial messages or the
    /// stream was interrupted.
    pub(crate) fn whole<'a>(&mut self, text: &'a str) -> &'a str {
        if !text.trim().is_empty() {
            cut(text, MAX_OUTPUT).clone_into(&mut self.last);
        }
        match self.streamed.strip_prefix(text) {
            Some(rest) if !text.is_empty() => {
                self.streamed = rest.to_owned();
                ""
            }
            _ => text,
        }
    }

    pub(crate) fn take_pending(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    pub(crate) fn forget_pending(&mut self) {
        self.pending.clear();
    }

    /// Returns the last text of the turn, which is ending.
    pub(crate) fn take_last(&mut self) -> String {
        std::mem::take(&mut self.last)
    }
}
