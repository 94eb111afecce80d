//! JSON that is stored and shown as it was sent.

use std::borrow::Cow;

use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType};

use super::wire::{Problems, Wire, problem};
use bloom_core::limits::JSON_DEPTH;

/// Any JSON of at most MAX bytes and [`JSON_DEPTH`] levels, kept as it was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Json<const MAX: usize>(pub String);

impl<const MAX: usize> Serialize for Json<MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.0).map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<const MAX: usize> Wire for Json<MAX> {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let text = raw.get();
        if text.len() > MAX {
            return problem(format!("JSON must be at most {MAX} bytes long"));
        }
        if let Err(wrong) = check(text) {
            return problem(wrong);
        }
        // Line breaks occur only between values (in strings they are escaped). In an event stream they would end the line of data.
        Ok(Self(text.replace(['\n', '\r'], " ")))
    }

    fn absent() -> Option<Self> {
        Some(Self("null".into()))
    }

    fn describe() -> Schema {
        Schema::Object(ObjectBuilder::new().schema_type(SchemaType::AnyValue).build())
    }
}

/// Whether every parser can read this JSON.
pub fn is_readable(json: &str) -> bool {
    check(json).is_ok()
}

/// Checks that every parser can read this JSON. Half of a surrogate pair and a number beyond the range of a double are valid by the
/// grammar, but many parsers refuse them.
fn check(json: &str) -> Result<(), String> {
    if is_too_deep(json) {
        return Err(format!("JSON must be nested at most {JSON_DEPTH} levels deep"));
    }
    serde_json::from_str::<Value>(json).map(drop).map_err(|error| format!("JSON that readers can't parse: {error}"))
}

/// Whether this JSON has more than [`JSON_DEPTH`] levels, which some parsers refuse to read.
fn is_too_deep(json: &str) -> bool {
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    json.bytes().any(|byte| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_text,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => depth += 1,
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > JSON_DEPTH
    })
}

/// JSON that every parser can read: unchanged if it is like that, otherwise as a JSON string.
///
/// # Errors
/// The text is not JSON.
pub fn readable(json: &str) -> Result<Cow<'_, RawValue>, serde_json::Error> {
    if is_readable(json) { serde_json::from_str(json).map(Cow::Borrowed) } else { to_raw_value(json).map(Cow::Owned) }
}
