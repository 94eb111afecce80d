//! Reads JSON bodies field by field, so that one answer reports all errors of a request.
//!
//! Clients build bodies from the same structs. Only the server checks the values.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Object, RefOr};

use super::invalid::Invalid;
pub use super::problems::{MAX_PROBLEMS, Problem, Problems, SHOWN_CHARS, expected, kind, problem, within};
use bloom_core::similar::similar;

/// A text that is one of these words.
pub(super) fn one_of<'a>(words: impl IntoIterator<Item = &'a str>) -> Schema {
    Schema::Object(ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build())
}

/// A value of a request body: how it is read, and the OpenAPI schema that matches this.
pub trait Wire: Sized {
    /// The value of this JSON.
    ///
    /// # Errors
    /// It is not such a value; each problem has the path of the field that is wrong.
    fn read(raw: &RawValue) -> Result<Self, Problems>;

    /// The value that a missing field or `null` stands for. `None` if the field is required.
    fn absent() -> Option<Self> {
        None
    }

    /// Whether the field is left out of a body that is sent.
    fn is_absent(&self) -> bool {
        false
    }

    /// The schema of the value in full, without a reference to itself.
    fn describe() -> Schema;

    /// The schema where this value is a part of another one: a reference, if the schema has a name.
    fn refer() -> RefOr<Schema> {
        Self::describe().into()
    }

    /// Adds the schemas that the description refers to, with their names.
    fn components(_: &mut Vec<(String, RefOr<Schema>)>) {}
}

/// The members of an object in the order in which they were sent. If a name is repeated, the last member counts.
pub struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// The members of a JSON object.
    ///
    /// # Errors
    /// It is not an object, or one of its names is not valid text.
    pub fn of(raw: &'a RawValue) -> Result<Self, Problems> {
        if kind(raw) != "object" {
            return expected("object", raw);
        }
        let mut reader = serde_json::Deserializer::from_str(raw.get());
        match reader.deserialize_map(MembersVisitor) {
            Ok(members) => Ok(Self(members)),
            Err(_) => problem("A name in it is not valid text"),
        }
    }

    /// The last member of this name; `None` if there is none.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(member, _)| member == name).map(|(_, raw)| *raw)
    }

    /// All members with their names, in the order in which they were sent.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, raw)| (name.as_ref(), *raw))
    }

    /// An error for each member that is none of these, unless it is null, which says nothing.
    pub fn unknown(&self, known: &[&'static str]) -> Problems {
        let others = self.iter().filter(|(name, raw)| !known.contains(name) && raw.get() != "null").take(MAX_PROBLEMS);
        let refused = |name: &str| {
            let shown: String = name.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
            let meant = similar(&shown, known.iter().copied());
            let text = meant.map_or_else(|| format!("the fields are {}", known.join(", ")), |meant| format!("did you mean {meant}?"));
            Problem { path: vec![shown.into()], text: format!("Unknown field, so nothing was done; {text}") }
        };
        others.map(|(name, _)| refused(name)).collect()
    }

    /// Reads one field. `None` if it is invalid; its errors are then in `problems`.
    pub fn field<T: Wire>(&self, name: &'static str, default: Option<fn() -> T>, problems: &mut Problems) -> Option<T> {
        let given = self.get(name).filter(|raw| raw.get() != "null");
        let read = match (given, default) {
            (Some(raw), _) => T::read(raw),
            (None, Some(default)) => Ok(default()),
            (None, None) => T::absent().map_or_else(|| problem("Required"), Ok),
        };
        match read {
            Ok(value) => Some(value),
            Err(found) => {
                problems.extend(within(name, found));
                None
            }
        }
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(Name(name)) = map.next_key()? {
            members.push((name, map.next_value()?));
        }
        Ok(members)
    }
}

/// The name of a member, borrowed if it contains no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<T: Wire> Wire for Option<T> {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        T::read(raw).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn describe() -> Schema {
        T::describe()
    }

    fn refer() -> RefOr<Schema> {
        T::refer()
    }

    fn components(found: &mut Vec<(String, RefOr<Schema>)>) {
        T::components(found);
    }
}

/// A field in a body's description.
pub struct FieldSchema {
    /// The name in the JSON object.
    pub name: &'static str,
    /// The description, as the lines of its doc comment.
    pub doc: &'static str,
    /// The schema of its values.
    pub schema: RefOr<Schema>,
    /// Whether it must be sent: it has neither a default nor a value that its absence stands for.
    pub required: bool,
    /// The value that its absence stands for, as the schema shows it; `None` if the schema shows none.
    pub default: Option<serde_json::Value>,
}

impl FieldSchema {
    /// The field of this type. It is required if it has no `default` and its type no value for absence.
    pub fn of<T: Wire>(name: &'static str, doc: &'static str, default: Option<serde_json::Value>) -> Self {
        let required = default.is_none() && T::absent().is_none();
        // Generators of clients can't express a default that is an object; the field's text names it.
        let default = default.filter(|value| !value.is_object());
        Self { name, doc, schema: T::refer(), required, default }
    }
}

/// The schema of an object with these fields. `doc` is its description, as the lines of a doc comment.
pub fn object_schema(doc: &str, fields: Vec<FieldSchema>) -> Schema {
    let mut object = ObjectBuilder::new().schema_type(Type::Object).description(text_of(doc));
    for field in fields {
        if field.required {
            object = object.required(field.name);
        }
        let schema = if field.required { field.schema } else { nullable(field.schema) };
        object = object.property(field.name, describe(schema, field.doc, field.default));
    }
    Schema::Object(object.build())
}

/// The schema of an object that has no other fields.
pub fn closed(mut schema: Schema) -> Schema {
    if let Schema::Object(object) = &mut schema {
        object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
    }
    schema
}

fn text_of(doc: &str) -> Option<String> {
    let text = doc.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn describe(mut schema: RefOr<Schema>, doc: &str, default: Option<serde_json::Value>) -> RefOr<Schema> {
    let doc = text_of(doc);
    match &mut schema {
        RefOr::Ref(named) => named.description = doc.unwrap_or_default(),
        RefOr::T(Schema::Object(object)) => {
            object.description = doc.or(object.description.take());
            object.default = default;
        }
        RefOr::T(Schema::Array(array)) => {
            array.description = doc.or(array.description.take());
            array.default = default;
        }
        RefOr::T(Schema::OneOf(either)) => {
            either.description = doc;
            either.default = default;
        }
        RefOr::T(_) => {}
    }
    schema
}

/// `null` is the same as absent, so every optional field may be `null`.
fn nullable(schema: RefOr<Schema>) -> RefOr<Schema> {
    let or_null = |schema_type: SchemaType| match schema_type {
        SchemaType::Type(one) if one != Type::Null => SchemaType::Array(vec![one, Type::Null]),
        other => other,
    };
    let schema = match schema {
        RefOr::T(Schema::Object(mut object)) => {
            object.schema_type = or_null(object.schema_type);
            if let Some(values) = &mut object.enum_values {
                values.push(serde_json::Value::Null);
            }
            Schema::Object(object)
        }
        RefOr::T(Schema::Array(mut array)) => {
            array.schema_type = or_null(array.schema_type);
            Schema::Array(array)
        }
        other => Schema::OneOf(OneOfBuilder::new().item(Object::with_type(Type::Null)).item(other).build()),
    };
    RefOr::T(schema)
}

/// For clients that store a body and send it later.
pub fn deserialize<'de, T: Wire, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let raw = Box::<RawValue>::deserialize(deserializer)?;
    T::read(&raw).map_err(|problems| D::Error::custom(Invalid::from(problems).line()))
}

/// The name of a field on the wire: without the mark of a name that is a keyword of Rust.
pub const fn name_of(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

/// Declares a request body: each field's type defines what is accepted; `= value` is its default, for absent and `null`. A body that
/// clients build with few of its fields is declared as `struct Name: Default`; its required fields are then empty until they are set. Behind a body, `checked by` names a
/// function that checks its fields together.
macro_rules! body {
    ($($(#[doc = $doc:literal])+ $(#[derive($derive:ident)])? pub struct $name:ident $(: $with_defaults:ident)? {
        $($(#[doc = $field_doc:literal])* $field:ident: $ty:ty $(= $default:expr)?),+ $(,)?
    } $(with no $unknown:ident fields)? $(checked by $check:path)?)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq $(, $derive)?)]
        pub struct $name { $($(#[doc = $field_doc])* pub $field: $ty),+ }

        impl $name {
            /// The names of the fields in JSON.
            pub const FIELDS: &'static [&'static str] = &[$($crate::wire::name_of(stringify!($field))),+];
        }

        body!(@with_defaults ($($with_defaults)?) $name { $($field $(= $default)?),+ });

        // Absent fields and defaults are not sent.
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut members = serializer.serialize_map(None)?;
                $(if !body!(@is_absent &self.$field $(, $default)?) {
                    serde::ser::SerializeMap::serialize_entry(&mut members, $crate::wire::name_of(stringify!($field)), &self.$field)?;
                })+
                serde::ser::SerializeMap::end(members)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::wire::deserialize(deserializer)
            }
        }

        impl $crate::wire::Wire for $name {
            fn read(raw: &serde_json::value::RawValue) -> Result<Self, $crate::wire::Problems> {
                let members = $crate::wire::Members::of(raw)?;
                let mut problems = $crate::wire::Problems::new();
                $(problems.extend(members.$unknown(Self::FIELDS));)?
                $(let $field = members.field::<$ty>($crate::wire::name_of(stringify!($field)), body!(@default $($default)?), &mut problems);)+
                match ($($field,)+) {
                    ($(Some($field),)+) if problems.is_empty() => {
                        let read = Self { $($field),+ };
                        $($check(&read)?;)?
                        Ok(read)
                    }
                    _ => Err(problems),
                }
            }

            fn describe() -> utoipa::openapi::schema::Schema {
                body!(@closed ($($unknown)?) $crate::wire::object_schema(concat!($($doc),+), vec![
                    $($crate::wire::FieldSchema::of::<$ty>(
                        $crate::wire::name_of(stringify!($field)),
                        concat!($($field_doc),*),
                        body!(@value $ty $(, $default)?),
                    )),+
                ]))
            }

            fn refer() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::schema::Ref::from_schema_name(stringify!($name)).into()
            }

            fn components(found: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>) {
                found.push((stringify!($name).to_owned(), <Self as $crate::wire::Wire>::describe().into()));
                $(<$ty as $crate::wire::Wire>::components(found);)+
            }
        }

        $crate::wire::named_schema!($name);
    )+};
    (@closed () $schema:expr) => { $schema };
    (@closed (unknown) $schema:expr) => { $crate::wire::closed($schema) };
    (@with_defaults () $name:ident $fields:tt) => {};
    (@with_defaults (Default) $name:ident { $($field:ident $(= $default:expr)?),+ }) => {
        impl Default for $name {
            fn default() -> Self {
                Self { $($field: body!(@unset $($default)?)),+ }
            }
        }
    };
    (@unset) => { Default::default() };
    (@unset $default:expr) => { $default };
    (@is_absent $field:expr) => { $crate::wire::Wire::is_absent($field) };
    (@is_absent $field:expr, $default:expr) => { *$field == $default };
    (@default) => { None };
    (@default $default:expr) => { Some(|| $default) };
    (@value $ty:ty) => { None };
    (@value $ty:ty, $default:expr) => {{
        let default: $ty = $default;
        serde_json::to_value(default).ok()
    }};
}
pub(crate) use body;

/// Gives a body its schema in OpenAPI, with the schemas that it refers to.
macro_rules! named_schema {
    ($name:ident) => {
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                <Self as $crate::wire::Wire>::describe().into()
            }
        }

        impl utoipa::ToSchema for $name {
            fn schemas(found: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>) {
                <Self as $crate::wire::Wire>::components(found);
            }
        }
    };
}
pub(crate) use named_schema;
