//! Times that are given and shown as "ago" or "from now", by the clock of this machine.

pub use bloom_api::when::{duration, duration_with_unit, span_text, time_text, too_early};
pub use bloom_client::now_ms as now;
use bloom_core::Ms;

/// Parses a time in the past: how long ago, or an absolute time.
///
/// # Errors
/// The text is neither; the error says what is expected.
pub fn past(text: &str) -> Result<Ms, String> {
    bloom_api::when::past(text, now())
}

/// Parses a time in the future: how long from now, with or without a plus, or an absolute time.
///
/// # Errors
/// The text is neither; the error says what is expected.
pub fn future(text: &str) -> Result<Ms, String> {
    bloom_api::when::future(text, now())
}
