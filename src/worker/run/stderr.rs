//! The standard error of a run's process, as events.

use std::path::Path;

use serde_json::json;

use crate::claude::stream::{Found, chunks};
use crate::run::spool::Tail;
use bloom_core::event::EventKind;

/// Follows the file while the supervisor writes it.
pub(crate) struct Stderr(Option<Tail>);

impl Stderr {
    /// Without the file there are no events: an agent that could not create it has already reported that.
    pub(crate) fn open(path: &Path) -> Self {
        Self(Tail::open(path).ok())
    }

    /// Adds what was printed since the last call. `is_stored` returns whether an earlier agent has stored the events up to an offset.
    /// Returns false if there is nothing new.
    pub(crate) fn read(&mut self, found: &mut Vec<Found>, is_stored: impl Fn(u64) -> bool) -> bool {
        let Some(tail) = &mut self.0 else { return false };
        let mut text = String::new();
        let grew = tail.read(|line, offset| {
            if !is_stored(offset) {
                text.push_str(line);
                text.push('\n');
            }
        });
        found.extend(events(&text));
        // If reading fails and the run fails, too, the message of the failure contains the output.
        grew.unwrap_or(false)
    }

    /// Adds the incomplete last line, once the writer has ended.
    pub(crate) fn rest(&mut self, found: &mut Vec<Found>) {
        let rest = self.0.as_mut().and_then(Tail::rest);
        found.extend(rest.iter().flat_map(|text| events(text)));
    }

    pub(crate) fn offset(&self) -> u64 {
        self.0.as_ref().map_or(0, |tail| tail.offset)
    }
}

fn events(text: &str) -> impl Iterator<Item = Found> + '_ {
    chunks(text).map(|text| (EventKind::Stderr, json!({"text": text})))
}
