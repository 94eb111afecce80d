//! The output formats.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use serde_json::Value;
use serde_json_path::JsonPath;

use crate::CommandError;
use bloom_api::csv;

/// The formats with their names and help texts. `jsonpath=` is another format, which takes an argument.
const NAMED: [(&str, Form, &str); 7] = [
    ("table", Form::Table, "A table"),
    ("wide", Form::Wide, "A table with more columns"),
    ("json", Form::Json, "The objects as the server sent them; lists as an array"),
    ("jsonl", Form::Jsonl, "One object per line"),
    ("csv", Form::Csv, "Like json, but as CSV (RFC 4180): a column per field; fields of nested objects are named field.name"),
    ("yaml", Form::Yaml, "Like json, but as YAML"),
    ("name", Form::Name, "Ids or names, one per line"),
];
const PATH: &str = "jsonpath=";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Table,
    /// A table without titles.
    Bare,
    Wide,
    WideBare,
    Json,
    Jsonl,
    Yaml,
    Csv,
    Name,
    /// The values that this path finds, one per line.
    Path(&'static JsonPath),
}

impl Form {
    /// Whether the objects are printed as the server sent them.
    pub fn is_data(self) -> bool {
        matches!(self, Self::Json | Self::Jsonl | Self::Yaml | Self::Csv | Self::Path(_))
    }

    /// The names of all other formats.
    pub fn others(than: Self) -> String {
        let names = NAMED.iter().filter(|(_, form, _)| *form != than).map(|(name, ..)| *name).chain([PATH]);
        names.collect::<Vec<_>>().join(", ")
    }

    /// The text of a value in a format for programs.
    ///
    /// # Errors
    /// YAML can't represent the value.
    pub fn data(self, value: &Value) -> Result<String, CommandError> {
        match (self, value) {
            (Self::Yaml, _) => serde_norway::to_string(value).map_err(|error| format!("this can't be written as YAML: {error}").into()),
            (Self::Csv, Value::Array(rows)) => Ok(csv::text(rows)),
            (Self::Csv, _) => Ok(csv::text(std::slice::from_ref(value))),
            (Self::Jsonl, Value::Array(rows)) => Ok(rows.iter().map(|row| format!("{row}\n")).collect()),
            (Self::Jsonl, _) => Ok(format!("{value}\n")),
            (Self::Path(path), _) => Ok(path.query(value).iter().map(|found| raw(found) + "\n").collect()),
            _ => Ok(format!("{value:#}\n")),
        }
    }
}

/// A string without its quotes, any other value as JSON.
fn raw(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Parses the value of `--output`.
#[derive(Clone)]
pub(crate) struct FormParser;

impl TypedValueParser for FormParser {
    type Value = Form;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<Form, clap::Error> {
        if let Some(text) = value.to_str().and_then(|text| text.strip_prefix(PATH)) {
            return path(text).map_err(|why| clap::Error::raw(ErrorKind::ValueValidation, why + "\n").with_cmd(command));
        }
        let names = NAMED.iter().map(|(name, ..)| *name).chain([PATH]);
        let name = PossibleValuesParser::new(names).parse_ref(command, arg, value)?;
        let found = NAMED.iter().find(|(known, ..)| *known == name);
        found.map(|(_, form, _)| *form).ok_or_else(|| clap::Error::new(ErrorKind::InvalidValue).with_cmd(command))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let named = NAMED.iter().map(|(name, _, help)| PossibleValue::new(*name).help(*help));
        let path = PossibleValue::new(PATH).help("What this JSONPath (RFC 9535) finds, one value per line: -o 'jsonpath=$[*].id'");
        Some(Box::new(named.chain([path])))
    }
}

/// Converts a path in kubectl's form, where a list is an object with `items`, to a path for a list of this API.
fn without_items(path: &str) -> Option<String> {
    let rest = path.strip_prefix("$.items")?;
    rest.is_empty().then(|| "$".to_owned()).or_else(|| rest.starts_with(['[', '.']).then(|| format!("${rest}")))
}

/// Parses a path. The leading `$` may be omitted, and the path may stand in braces as in kubectl: `{.id}`.
fn path(text: &str) -> Result<Form, String> {
    let inner = text.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(text).trim();
    let whole = if inner.starts_with(['.', '[']) { format!("${inner}") } else { inner.to_owned() };
    let path = JsonPath::parse(&whole)
        .map_err(|error| format!("'{text}' is not a JSONPath: {error}. Examples: $.status, $[*].id, $[?@.attempts > 1].id (RFC 9535)"))?;
    if let Some(rest) = without_items(&whole) {
        return Err(format!("'{text}': a list is an array, without items: {rest} (JSONPath as in RFC 9535)"));
    }
    // There is only one path, and it is needed until the process ends, so it is leaked.
    Ok(Form::Path(Box::leak(Box::new(path))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_finds_values() {
        let rows = json!([{ "id": "a", "n": 1 }, { "id": "b", "n": 2, "labels": { "x": "y" } }]);
        let found = |text: &str| path(text).unwrap().data(&rows).unwrap();
        assert_eq!(found("$[*].id"), "a\nb\n");
        assert_eq!(found("{[*].n}"), "1\n2\n");
        assert_eq!(found("[1].labels"), "{\"x\":\"y\"}\n");
        assert_eq!(found("$[?@.n > 1].id"), "b\n");
        assert_eq!(found("$[*].nothing"), "");
        for wrong in ["", "id", "$[", "{.id"] {
            assert!(path(wrong).unwrap_err().contains("not a JSONPath"), "{wrong}");
        }
    }

    #[test]
    fn the_form_of_kubectl_is_told_as_this_one() {
        for (wrong, right) in [("{.items[*].id}", "$[*].id"), ("$.items[0].id", "$[0].id"), ("{.items..id}", "$..id"), (".items", "$")] {
            assert!(path(wrong).unwrap_err().contains(&format!("without items: {right} (")), "{wrong}");
        }
        assert!(path("$.itemsize").is_ok());
    }

    #[test]
    fn lines_are_whole_objects() {
        assert_eq!(Form::Jsonl.data(&json!([{ "a": "x\ny" }, 2])).unwrap(), "{\"a\":\"x\\ny\"}\n2\n");
        assert_eq!(Form::Jsonl.data(&json!({ "a": 1 })).unwrap(), "{\"a\":1}\n");
    }
}
