//! The fixed words of the core, on the wire.

use serde_json::value::RawValue;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::wire::{Problems, Wire, kind, problem};
use bloom_core::audit::{Action, EntityType};
use bloom_core::task::{EventKind, Format, LeaseStatus, Outcome, Reason, Session, Status};
use bloom_core::worker::{DispatchMode, WorkerStatus};

macro_rules! words_on_the_wire {
    ($($name:ident),+ $(,)?) => {$(
        impl Wire for $name {
            fn read(raw: &RawValue) -> Result<Self, Problems> {
                let word = serde_json::from_str::<String>(raw.get());
                if let Some(value) = word.as_deref().ok().and_then(Self::parse) {
                    return Ok(value);
                }
                let known = Self::ALL.iter().map(|value| format!("'{value}'")).collect::<Vec<_>>().join(" | ");
                match word {
                    Ok(word) => problem(format!("Invalid enum value. Expected {known}, received '{}'", shorten(&word))),
                    Err(_) => problem(format!("Expected {known}, received {}", kind(raw))),
                }
            }

            fn describe() -> Schema {
                let words = Self::ALL.iter().map(|value| value.as_str());
                Schema::Object(ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build())
            }
        }
    )+};
}

words_on_the_wire!(Action, DispatchMode, EntityType, EventKind, Format, LeaseStatus, Outcome, Reason, Session, Status, WorkerStatus,);

/// So much of a stranger's word as belongs into an answer.
fn shorten(word: &str) -> String {
    word.chars().take(40).collect()
}
