//! The fields of a row of the earlier runtime, which PostgreSQL returns as JSON.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use uuid::{Builder, Uuid};

use super::super::file::MAX_LINE;
use crate::error::Error;
use bloom_core::Ms;
use bloom_core::ids::has_time;
use bloom_core::limits::MAX_SAFE;

pub(super) struct Fields {
    table: &'static str,
    fields: Map<String, Value>,
    /// Columns whose values can't be read, and why.
    unreadable: Vec<(String, &'static str)>,
}

/// Longer columns do not fit into a line of the file.
const MAX_COLUMN: usize = MAX_LINE - (1 << 20);

/// A value, or the reason why the row can't be exported, with its table, its id and the column.
pub(super) type Field<T> = Result<T, String>;

impl Fields {
    pub(crate) fn read(table: &'static str, text: &str) -> Result<Self, Error> {
        let mut unreadable = Vec::new();
        if text.len() < MAX_COLUMN
            && let Ok(fields) = serde_json::from_str(text)
        {
            return Ok(Self { table, fields, unreadable });
        }
        let columns: BTreeMap<String, &RawValue> =
            serde_json::from_str(text).map_err(|error| Error::Corrupt(format!("{table}: {error}")))?;
        let mut fields = Map::new();
        for (column, value) in columns {
            if value.get().len() > MAX_COLUMN {
                unreadable.push((column, "is too long: it takes more than 127 MiB as JSON"));
            } else if let Ok(value) = serde_json::from_str(value.get()) {
                fields.insert(column, value);
            } else {
                unreadable.push((column, "has a number that is out of range, or is nested too deeply"));
            }
        }
        Ok(Self { table, fields, unreadable })
    }

    pub(crate) fn wrong<T>(&self, column: &str, why: &str) -> Field<T> {
        let id = match self.fields.get("id").or_else(|| self.fields.get("key")) {
            Some(Value::String(id)) => id.chars().take(64).collect(),
            Some(other) => other.to_string(),
            None => "without an id".to_owned(),
        };
        Err(format!("{} {id}: {column} {why}", self.table))
    }

    /// The value of a column, unless it is null.
    pub(crate) fn value(&self, column: &str) -> Field<Option<&Value>> {
        match self.unreadable.iter().find(|(name, _)| name == column) {
            Some((_, why)) => self.wrong(column, why),
            None => Ok(self.fields.get(column).filter(|value| !value.is_null())),
        }
    }

    fn needed<T>(&self, column: &str, value: Option<T>) -> Field<T> {
        value.map_or_else(|| self.wrong(column, "is missing"), Ok)
    }

    pub(crate) fn is_true(&self, column: &str) -> bool {
        self.value(column) == Ok(Some(&Value::Bool(true)))
    }

    pub(crate) fn optional_text(&self, column: &str) -> Field<Option<String>> {
        match self.value(column)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => self.wrong(column, "is not a text"),
        }
    }

    pub(crate) fn text(&self, column: &str) -> Field<String> {
        self.optional_text(column).and_then(|text| self.needed(column, text))
    }

    /// A text of at least one character.
    pub(crate) fn name(&self, column: &str) -> Field<String> {
        let text = self.text(column)?;
        if text.is_empty() { self.wrong(column, "is empty") } else { Ok(text) }
    }

    pub(crate) fn optional_int(&self, column: &str, range: RangeInclusive<i64>) -> Field<Option<i64>> {
        self.value(column)?.map(|value| self.whole(column, value, range)).transpose()
    }

    pub(crate) fn int(&self, column: &str, range: RangeInclusive<i64>) -> Field<i64> {
        self.optional_int(column, range).and_then(|int| self.needed(column, int))
    }

    /// Milliseconds since the epoch.
    pub(crate) fn time(&self, column: &str) -> Field<Ms> {
        self.int(column, 0..=MAX_TIME)
    }

    pub(crate) fn optional_time(&self, column: &str) -> Field<Option<Ms>> {
        self.optional_int(column, 0..=MAX_TIME)
    }

    fn whole(&self, column: &str, value: &Value, range: RangeInclusive<i64>) -> Field<i64> {
        let number = match value {
            // Drivers return large numbers as texts.
            Value::String(text) => text.parse().ok(),
            Value::Number(number) => {
                number.as_i64().or_else(|| number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < MAX_SAFE as f64).map(|n| n as i64))
            }
            _ => None,
        };
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(number),
            None => self.wrong(column, &format!("is not a whole number from {} to {}", range.start(), range.end())),
        }
    }

    pub(crate) fn uuid(&self, column: &str) -> Field<Uuid> {
        self.optional_uuid(column).and_then(|id| self.needed(column, id))
    }

    pub(crate) fn optional_uuid(&self, column: &str) -> Field<Option<Uuid>> {
        let Some(text) = self.optional_text(column)? else { return Ok(None) };
        Uuid::parse_str(&text).map_or_else(|_| self.wrong(column, "is not a UUID"), |id| Ok(Some(id)))
    }

    pub(crate) fn word<T>(&self, column: &str, parse: impl Fn(&str) -> Option<T>) -> Field<T> {
        let word = self.text(column)?;
        parse(&word).map_or_else(|| self.wrong(column, &format!("is '{}', which this program does not know", short(&word))), Ok)
    }

    /// A JSON value. The column may also contain it as a text.
    pub(crate) fn json(&self, column: &str) -> Field<Value> {
        match self.value(column)? {
            Some(Value::String(text)) => serde_json::from_str(text).or_else(|_| self.wrong(column, "is not JSON")),
            other => Ok(other.cloned().unwrap_or_default()),
        }
    }

    pub(crate) fn texts(&self, column: &str) -> Field<Vec<String>> {
        match self.json(column)? {
            Value::Null => Ok(Vec::new()),
            list => serde_json::from_value(list).or_else(|_| self.wrong(column, "is not a list of texts")),
        }
    }

    /// The fields of a JSON object in a column; none if it is null.
    pub(crate) fn object(&self, column: &str) -> Field<Self> {
        match self.json(column)? {
            Value::Null => Ok(Self { table: self.table, fields: Map::new(), unreadable: Vec::new() }),
            Value::Object(fields) => Ok(Self { table: self.table, fields, unreadable: Vec::new() }),
            _ => self.wrong(column, "is not an object"),
        }
    }
}

fn short(word: &str) -> String {
    word.chars().take(40).collect()
}

/// The latest time that an id of version 7 can contain.
const MAX_TIME: Ms = (1 << 48) - 1;

/// The id, with this time put into it unless it already contains one.
pub(super) fn timed(id: Uuid, at: Ms) -> Uuid {
    if has_time(id) {
        return id;
    }
    let mut rest = [0; 10];
    rest.copy_from_slice(&id.as_bytes()[6..]);
    Builder::from_unix_timestamp_millis(u64::try_from(at).unwrap_or(0), &rest).into_uuid()
}
