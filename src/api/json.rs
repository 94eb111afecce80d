//! JSON that is kept as it comes, and shown so.

use std::borrow::Cow;

use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType};

use super::wire::{Problems, Wire, problem};
use bloom_core::limits::JSON_DEPTH;

/// Any JSON, of MAX bytes at most and not nested too deep, kept as it came.
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
        // Line breaks stand between values only (in text they are escaped), and the event stream has a meaning of its own for them.
        Ok(Self(text.replace(['\n', '\r'], " ")))
    }

    fn absent() -> Option<Self> {
        Some(Self("null".into()))
    }

    fn describe() -> Schema {
        Schema::Object(ObjectBuilder::new().schema_type(SchemaType::AnyValue).build())
    }
}

/// Whether this JSON is nested deeper than readers can be expected to follow.
pub fn is_too_deep(json: &str) -> bool {
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

/// JSON that readers can follow: as it came, or as a text if it is nested too deep.
///
/// # Errors
/// It is no JSON.
pub fn readable(json: &str) -> Result<Cow<'_, RawValue>, serde_json::Error> {
    if is_too_deep(json) { to_raw_value(json).map(Cow::Owned) } else { serde_json::from_str(json).map(Cow::Borrowed) }
}
