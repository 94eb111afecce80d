//! The types of the values in request bodies.

use std::collections::BTreeMap;
use std::ops::Deref;

use serde::Serialize;
use serde_json::value::RawValue;
use url::Url;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, KnownFormat, ObjectBuilder, Ref, Schema, SchemaFormat, Type};
use uuid::Uuid;

use super::problem_texts;
use super::wire::{MAX_PROBLEMS, Members, Problems, Wire, expected, kind, problem, within};
use bloom_core::{Ms, limits};

pub use bloom_core::limits::MAX_SAFE;
/// The latest time that fits into an id of version 7; it is in the year 10889.
pub const MAX_MS: Ms = 281_474_976_710_655;
/// The largest accepted amount of US dollars.
pub const MAX_USD: f64 = 1_000_000.0;

/// Text of MIN to MAX characters without NUL, which PostgreSQL can't store.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Text<const MIN: usize = 0, const MAX: usize = { usize::MAX }>(pub String);

impl<T: Into<String>, const MIN: usize, const MAX: usize> From<T> for Text<MIN, MAX> {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl<const MIN: usize, const MAX: usize> Deref for Text<MIN, MAX> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Text in indexed columns. A page of an index must have room for several entries.
pub type Name = Text<1, 255>;
/// Names of agents, models, workers and the like: 1 to [`limits::NAME_CHARS`] characters.
pub type ShortName = Text<1, { limits::NAME_CHARS }>;
/// The name of the worker that a call refers to.
pub type WorkerName = Text<0, { limits::NAME_CHARS }>;
/// Text with at least one character.
pub type NonEmpty = Text<1>;

/// The pattern of text without NUL in schemas.
pub const TEXT_PATTERN: &str = r"^[^\x00]*$";

impl<const MIN: usize, const MAX: usize> Wire for Text<MIN, MAX> {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let text = string(raw)?;
        if let Some(wrong) = text_problem(&text, MIN, MAX) {
            return problem(wrong);
        }
        Ok(Self(text))
    }

    fn describe() -> Schema {
        let object = ObjectBuilder::new().schema_type(Type::String).pattern(Some(TEXT_PATTERN));
        let object = object.min_length((MIN > 0).then_some(MIN)).max_length((MAX < usize::MAX).then_some(MAX));
        Schema::Object(object.build())
    }
}

/// Why this is not text of `min` to `max` characters.
pub fn text_problem(text: &str, min: usize, max: usize) -> Option<String> {
    // The characters are counted only if the number of bytes does not decide.
    let chars = || text.chars().count();
    if text.len() < min || (min > 1 && chars() < min) {
        Some(problem_texts::too_short(min))
    } else if text.len() > max && chars() > max {
        Some(problem_texts::too_long(max))
    } else if text.as_bytes().contains(&0) {
        Some(problem_texts::NUL.into())
    } else {
        None
    }
}

fn string(raw: &RawValue) -> Result<String, Problems> {
    if kind(raw) != "string" {
        return expected("string", raw);
    }
    serde_json::from_str(raw.get()).or_else(|_| problem("Not valid text: an escape in it stands for no character"))
}

/// Text of at least one character that is valid in a header.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeaderText(pub String);

/// The pattern of [`HeaderText`] in schemas.
const HEADER_PATTERN: &str = r"^[^\x00-\x1F\x7F]+$";

impl Wire for HeaderText {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = NonEmpty::read(raw)?;
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            return problem("String must be in one line, without control characters: it is sent as a header");
        }
        Ok(Self(text))
    }

    fn describe() -> Schema {
        Schema::Object(ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).pattern(Some(HEADER_PATTERN)).build())
    }
}

/// An integer from MIN to MAX. `3.0` is accepted too.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Int<const MIN: i64, const MAX: i64>(pub i64);

/// A time in milliseconds since the epoch.
pub type Moment = Int<0, MAX_MS>;

impl<const MIN: i64, const MAX: i64> Wire for Int<MIN, MAX> {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let number = number(raw)?;
        let whole = raw.get().parse::<i64>().ok();
        // Floats above 2^53 are not exact, but every bound here is below that.
        let value = whole.or_else(|| (number.fract() == 0.0).then_some(number as i64));
        value.map_or_else(|| problem("Expected integer, received float"), |value| Self::try_from(value).or_else(problem))
    }

    fn describe() -> Schema {
        let object = ObjectBuilder::new().schema_type(Type::Integer);
        Schema::Object(object.minimum(Some(MIN as isize)).maximum(Some(MAX as isize)).build())
    }
}

impl<const MIN: i64, const MAX: i64> TryFrom<i64> for Int<MIN, MAX> {
    type Error = String;

    fn try_from(value: i64) -> Result<Self, String> {
        match value {
            value if value < MIN => Err(problem_texts::too_small(MIN)),
            value if value > MAX => Err(problem_texts::too_large(MAX)),
            value => Ok(Self(value)),
        }
    }
}

impl<const MIN: i64, const MAX: i64> Int<MIN, MAX> {
    /// The value, clamped to MIN..=MAX.
    pub fn nearest(value: i64) -> Self {
        Self(value.clamp(MIN, MAX))
    }
}

fn number(raw: &RawValue) -> Result<f64, Problems> {
    if kind(raw) != "number" {
        return expected("number", raw);
    }
    raw.get().parse().or_else(|_| expected("number", raw))
}

/// US dollars, 0 or more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Usd(pub f64);

impl Wire for Usd {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        Self::try_from(number(raw)?).or_else(problem)
    }

    fn describe() -> Schema {
        let object = ObjectBuilder::new().schema_type(Type::Number);
        Schema::Object(object.minimum(Some(0_isize)).maximum(Some(MAX_USD as isize)).build())
    }
}

impl TryFrom<f64> for Usd {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        match value {
            value if value < 0.0 => Err(problem_texts::too_small(0)),
            // Adding 0.0 turns `-0` into `0`.
            value if value <= MAX_USD => Ok(Self(value + 0.0)),
            _ => Err(problem_texts::too_large(MAX_USD)),
        }
    }
}

impl Wire for bool {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        match raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => expected("boolean", raw),
        }
    }

    fn describe() -> Schema {
        Schema::Object(ObjectBuilder::new().schema_type(Type::Boolean).build())
    }
}

/// An id in its usual form, 36 characters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Id(pub Uuid);

impl Wire for Id {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        parse_id(&string(raw)?).map_or_else(|| problem("Invalid uuid"), |id| Ok(Self(id)))
    }

    fn describe() -> Schema {
        Schema::Object(ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid))).build())
    }
}

/// Only the form of a UUID with hyphens is an id.
pub fn parse_id(text: &str) -> Option<Uuid> {
    if text.len() == 36 { Uuid::try_parse(text).ok() } else { None }
}

impl From<Uuid> for Id {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

/// A list of MIN to MAX values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct List<T, const MIN: usize = 0, const MAX: usize = { usize::MAX }>(pub Vec<T>);

impl<T, const MIN: usize, const MAX: usize> Default for List<T, MIN, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Wire, const MIN: usize, const MAX: usize> Wire for List<T, MIN, MAX> {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        if kind(raw) != "array" {
            return expected("array", raw);
        }
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(raw.get()) else { return expected("array", raw) };
        if items.len() < MIN {
            return problem(problem_texts::too_few(MIN));
        }
        if items.len() > MAX {
            return problem(problem_texts::too_many(MAX));
        }
        let mut values = Vec::with_capacity(items.len());
        let mut problems = Problems::new();
        for (n, item) in items.into_iter().enumerate() {
            match T::read(item) {
                Ok(value) => values.push(value),
                Err(found) => problems.extend(within(n.to_string(), found)),
            }
            if problems.len() >= MAX_PROBLEMS {
                break;
            }
        }
        if problems.is_empty() { Ok(Self(values)) } else { Err(problems) }
    }

    fn describe() -> Schema {
        let array = ArrayBuilder::new().items(T::refer());
        Schema::Array(array.min_items((MIN > 0).then_some(MIN)).max_items((MAX < usize::MAX).then_some(MAX)).build())
    }

    fn components(found: &mut Vec<(String, RefOr<Schema>)>) {
        T::components(found);
    }
}

impl<T: From<U>, U, const MIN: usize, const MAX: usize> FromIterator<U> for List<T, MIN, MAX> {
    fn from_iter<I: IntoIterator<Item = U>>(values: I) -> Self {
        Self(values.into_iter().map(T::from).collect())
    }
}

impl<T, const MIN: usize, const MAX: usize> List<T, MIN, MAX> {
    /// Each element, converted.
    pub fn map<U>(self, each: impl FnMut(T) -> U) -> Vec<U> {
        self.0.into_iter().map(each).collect()
    }
}

impl<const MIN: usize, const MAX: usize, const FEWEST: usize, const MOST: usize> List<Text<MIN, MAX>, FEWEST, MOST> {
    /// The elements as plain texts.
    pub fn texts(self) -> Vec<String> {
        self.map(|text| text.0)
    }
}

/// The most labels of a task.
pub const MAX_LABELS: usize = limits::TASK_LABELS;
/// The most characters in the name of a label.
pub const MAX_LABEL_KEY: usize = 63;
/// The most characters in the value of a label.
pub const MAX_LABEL_VALUE: usize = 255;

/// Labels of a task: names with values, by which lists can be filtered.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Labels(pub BTreeMap<String, String>);

impl Wire for Labels {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let members = Members::of(raw)?;
        let mut labels = BTreeMap::new();
        let mut problems = Problems::new();
        for (key, value) in members.iter().take(MAX_PROBLEMS) {
            let wrong = text_problem(key, 1, MAX_LABEL_KEY).map(|wrong| format!("The name of a label: {wrong}"));
            match (wrong, Text::<0, MAX_LABEL_VALUE>::read(value)) {
                (Some(wrong), _) => problems.extend(problem::<()>(wrong).err().into_iter().flatten()),
                (None, Ok(text)) => {
                    labels.insert(key.to_owned(), text.0);
                }
                (None, Err(found)) => problems.extend(within(key.to_owned(), found)),
            }
        }
        if labels.len() > MAX_LABELS || members.iter().count() > MAX_PROBLEMS {
            return problem(problem_texts::too_many_labels(MAX_LABELS));
        }
        if problems.is_empty() { Ok(Self(labels)) } else { Err(problems) }
    }

    fn describe() -> Schema {
        let values = AdditionalProperties::RefOr(Text::<0, MAX_LABEL_VALUE>::describe().into());
        let object = ObjectBuilder::new().schema_type(Type::Object).max_properties(Some(MAX_LABELS));
        let object = object.description(Some("Label names of 1 to 63 characters, with values of at most 255 characters."));
        Schema::Object(object.additional_properties(Some(values)).property_names(Some(Text::<1, MAX_LABEL_KEY>::describe())).build())
    }

    fn refer() -> RefOr<Schema> {
        Ref::from_schema_name("Labels").into()
    }

    fn components(found: &mut Vec<(String, RefOr<Schema>)>) {
        found.push(("Labels".to_owned(), Self::describe().into()));
    }
}

/// A label to filter by, written as `name=value`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(into = "String")]
pub struct LabelText {
    /// The name of the label, without `=`.
    pub name: String,
    /// The value that the label must have; it may be empty, and contain `=`.
    pub value: String,
}

/// The pattern of [`LabelText`] in schemas.
pub const LABEL_PATTERN: &str = r"^[^=\x00]*=[^\x00]*$";

impl From<LabelText> for String {
    fn from(label: LabelText) -> Self {
        format!("{}={}", label.name, label.value)
    }
}

impl LabelText {
    /// # Errors
    /// The text is not a label; the error says why.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(wrong) = text_problem(text, 0, usize::MAX) {
            return Err(wrong);
        }
        let (name, value) = text.split_once('=').ok_or("Expected name=value")?;
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

impl Wire for LabelText {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        Self::parse(&string(raw)?).or_else(problem)
    }

    fn describe() -> Schema {
        Schema::Object(ObjectBuilder::new().schema_type(Type::String).pattern(Some(LABEL_PATTERN)).build())
    }
}

/// The address of an HTTP service.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HttpUrl(pub String);

/// The pattern of [`HttpUrl`] in schemas. Every match is a valid URL; some other valid URLs (IPv6, with a query) are accepted as well.
pub const URL_PATTERN: &str = concat!(
    r"^https?://(([A-Za-z0-9-]+\.)*[A-Za-z][A-Za-z0-9-]*",
    r"|((0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])\.){3}(0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5]))",
    r"(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?(/[A-Za-z0-9._~/-]*)?$",
);

impl Wire for HttpUrl {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Text::<1, { limits::URL_CHARS }>::read(raw)?;
        match Url::parse(&text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(Self(text)),
            _ => problem("Invalid url: an http or https address like http://127.0.0.1:8000 is wanted"),
        }
    }

    fn describe() -> Schema {
        Schema::Object(
            ObjectBuilder::new().schema_type(Type::String).max_length(Some(limits::URL_CHARS)).pattern(Some(URL_PATTERN)).build(),
        )
    }
}
