//! Trace contexts: which distributed trace something belongs to, and which span of the trace is its parent.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ids::LeaseId;

/// The content of the header `traceparent` of W3C Trace Context (level 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Never 0.
    pub trace_id: u128,
    /// The span that is the parent of the following spans. Never 0.
    pub span_id: u64,
    /// Whether the spans of the trace are recorded.
    pub is_sampled: bool,
}

/// The lowest bit of the flags. The meaning of the other flags is unknown, so they are not passed on.
const SAMPLED: u8 = 1;
/// Length of `00-<32 digits>-<16 digits>-<2 digits>`.
const LENGTH: usize = 55;

impl TraceContext {
    /// The context of a span of the same trace.
    #[must_use]
    pub fn with_span(self, span_id: u64) -> Self {
        Self { span_id, ..self }
    }

    /// The context of the attempt of this lease. The id of its span is derived from the lease's id, so every replica can compute it without
    /// storing it. The last 64 bits of an id of version 7 begin with the bits 10.
    #[must_use]
    pub fn of_attempt(self, lease: LeaseId) -> Self {
        self.with_span(lease.as_u128() as u64)
    }

    /// The context of the run that a worker starts for this lease. A restarted agent computes the same context again. The inverted bits
    /// begin with 01, so this is never the id of an attempt.
    #[must_use]
    pub fn of_run(self, lease: LeaseId) -> Self {
        self.with_span(!(lease.as_u128() as u64))
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.is_sampled))
    }
}

/// The text is not a `traceparent`. As the specification requires, it is then ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotATraceContext;

impl fmt::Display for NotATraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a traceparent of W3C Trace Context")
    }
}

impl FromStr for TraceContext {
    type Err = NotATraceContext;

    fn from_str(text: &str) -> Result<Self, NotATraceContext> {
        // Later versions may add parts after the flags, but nothing else.
        let (known, rest) = text.split_at_checked(LENGTH).ok_or(NotATraceContext)?;
        let mut parts = known.split('-');
        let mut part =
            |length: usize| parts.next().filter(|part| part.len() == length && part.bytes().all(is_digit)).ok_or(NotATraceContext);
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        if version == "ff" || !(rest.is_empty() || (version != "00" && rest.starts_with('-'))) {
            return Err(NotATraceContext);
        }
        let trace_id = u128::from_str_radix(trace, 16).map_err(|_| NotATraceContext)?;
        let span_id = u64::from_str_radix(span, 16).map_err(|_| NotATraceContext)?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| NotATraceContext)?;
        if trace_id == 0 || span_id == 0 {
            return Err(NotATraceContext);
        }
        Ok(Self { trace_id, span_id, is_sampled: flags & SAMPLED != 0 })
    }
}

/// Whether the byte is a lower-case hexadecimal digit. Capital letters are not allowed.
fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

impl Serialize for TraceContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceContext {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_read_and_written() {
        let context: TraceContext = PLAIN.parse().unwrap();
        assert_eq!(context.to_string(), PLAIN);
        let unsampled: TraceContext = PLAIN.replace("-01", "-00").parse().unwrap();
        assert!(context.is_sampled && !unsampled.is_sampled);
        assert_eq!(unsampled.to_string(), PLAIN.replace("-01", "-00"));
        // Only the known flag is passed on.
        assert_eq!(PLAIN.replace("-01", "-ff").parse::<TraceContext>().unwrap().to_string(), PLAIN);
    }

    #[test]
    fn a_later_version_may_have_more() {
        for later in [PLAIN.replacen("00", "cc", 1), PLAIN.replacen("00", "cc", 1) + "-more"] {
            assert_eq!(later.parse::<TraceContext>().map(|context| context.to_string()).as_deref(), Ok(PLAIN), "{later}");
        }
        for wrong in [PLAIN.replacen("00", "ff", 1), PLAIN.replacen("00", "cc", 1) + "more", format!("{PLAIN}-more")] {
            assert_eq!(wrong.parse::<TraceContext>(), Err(NotATraceContext), "{wrong}");
        }
    }

    #[test]
    fn other_texts_are_no_contexts() {
        let wrong = [
            "",
            "00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-000f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0é",
        ];
        for text in wrong {
            assert_eq!(text.parse::<TraceContext>(), Err(NotATraceContext), "{text}");
        }
    }

    #[test]
    fn attempts_and_runs_have_spans_of_their_own() {
        let context: TraceContext = PLAIN.parse().unwrap();
        let lease = LeaseId::from_u128(0x0190_a0a0_0000_7000_8000_0000_0000_0001);
        assert_eq!(context.of_attempt(lease).span_id, 0x8000_0000_0000_0001);
        assert_eq!(context.of_run(lease).span_id, 0x7fff_ffff_ffff_fffe);
        assert_eq!(context.of_run(lease).trace_id, context.trace_id);
    }
}
