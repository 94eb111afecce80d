//! Names of Kubernetes namespaces on the wire.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::values::{Name, Text};
use super::wire::{Problems, Wire, problem};
use bloom_core::namespace::{MAX_NAMESPACE, NAMESPACE_PATTERN, is_namespace};

/// The name of a Kubernetes namespace: a label of RFC 1123.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Namespace(pub String);

impl From<String> for Namespace {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl Wire for Namespace {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Name::read(raw)?;
        if is_namespace(&text) {
            return Ok(Self(text));
        }
        problem(format!(
            "Expected the name of a Kubernetes namespace: 1 to {MAX_NAMESPACE} of the characters a-z 0-9 -, and no '-' at an end"
        ))
    }

    fn describe() -> Schema {
        let object = ObjectBuilder::new().schema_type(Type::String).pattern(Some(NAMESPACE_PATTERN));
        Schema::Object(object.min_length(Some(1)).max_length(Some(MAX_NAMESPACE)).build())
    }
}
