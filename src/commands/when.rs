//! Times that are given and shown relative to now, by the clock of this machine.

pub(crate) use bloom_api::time_text::{duration, limit_text, span_text, time_text, too_early};
pub(crate) use bloom_client::now_ms as now;
use bloom_core::Ms;

use crate::CommandError;

/// Parses a time in the past: how long ago, or an absolute time.
///
/// # Errors
/// The text is neither; the error says what is expected.
pub(crate) fn past(text: &str) -> Result<Ms, String> {
    bloom_api::time_text::past(text, now())
}

/// Parses a time in the future: how long from now, with or without a plus, `tomorrow`, or an absolute time.
///
/// # Errors
/// The text is neither; the error says what is expected.
pub(crate) fn future(text: &str) -> Result<Ms, String> {
    bloom_api::time_text::future(text, now())
}

/// # Errors
/// The range is empty: `since` is not before `until`.
pub(crate) fn in_order(since: Option<Ms>, until: Option<Ms>) -> Result<(), CommandError> {
    match since.zip(until) {
        Some((since, until)) if since >= until => Err(CommandError::usage("--since is not before --until, so nothing can match")),
        _ => Ok(()),
    }
}
