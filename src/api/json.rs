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
        if is_too_deep(text) {
            return problem(format!("JSON must be nested at most {} levels deep", JSON_DEPTH));
        }
        if let Err(error) = serde_json::from_str::<Value>(text) {
            return problem(format!("JSON that readers can't parse: {error}"));
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

/// Whether readers can parse this JSON. A text with half of a surrogate pair and a number beyond the range of a double are valid by the
/// grammar, but many parsers refuse them.
pub fn is_readable(json: &str) -> bool {
    !is_too_deep(json) && serde_json::from_str::<Value>(json).is_ok()
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

/// JSON that every parser can read: unchanged, or as a JSON string if it is nested too deep.
///
/// # Errors
/// The text is not JSON.
pub fn readable(json: &str) -> Result<Cow<'_, RawValue>, serde_json::Error> {
    if is_readable(json) { serde_json::from_str(json).map(Cow::Borrowed) } else { to_raw_value(json).map(Cow::Owned) }
}
