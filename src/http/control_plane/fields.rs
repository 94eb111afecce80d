//! Reads the fields of a JSON body one by one, so that one answer reports all mistakes.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};
use url::Url;

use super::failure::{Failure, Mistake};
use bloom_api::json::is_readable;

pub(crate) struct Fields {
    values: Map<String, Value>,
    mistakes: Vec<Mistake>,
}

fn mistake(loc: Vec<Value>, kind: &'static str, msg: impl Into<String>) -> Mistake {
    Mistake { loc, msg: msg.into(), kind }
}

impl Fields {
    /// # Errors
    /// The body is not a JSON object.
    pub(crate) fn of(body: &[u8]) -> Result<Self, Failure> {
        let whole = |kind, msg: &str| Failure::Invalid(vec![mistake(vec![json!("body")], kind, msg)]);
        if body.is_empty() {
            return Err(whole("missing", "Field required"));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(values)) => Ok(Self { values, mistakes: Vec::new() }),
            Ok(_) => Err(whole("dict_type", "Input should be a JSON object")),
            Err(error) => Err(whole("json_invalid", &format!("JSON decode error: {error}"))),
        }
    }

    /// # Errors
    /// Some field was wrong.
    pub(crate) fn check(self) -> Result<(), Failure> {
        if self.mistakes.is_empty() { Ok(()) } else { Err(Failure::Invalid(self.mistakes)) }
    }

    fn wrong<T>(&mut self, name: &str, kind: &'static str, msg: impl Into<String>) -> Option<T> {
        self.mistakes.push(mistake(vec![json!("body"), json!(name)], kind, msg));
        None
    }

    /// `null` counts as absent.
    fn value(&mut self, name: &str) -> Option<Value> {
        self.values.remove(name).filter(|value| !value.is_null())
    }

    /// A text whose number of characters is in this range.
    pub(crate) fn text(&mut self, name: &str, chars: RangeInclusive<usize>) -> Option<String> {
        match self.value(name)? {
            Value::String(text) if text.contains('\0') => self.wrong(name, "string_nul", "String must not contain NUL characters"),
            Value::String(text) if text.chars().count() < *chars.start() => {
                self.wrong(name, "string_too_short", format!("String should have at least {} characters", chars.start()))
            }
            Value::String(text) if text.chars().count() > *chars.end() => {
                self.wrong(name, "string_too_long", format!("String should have at most {} characters", chars.end()))
            }
            Value::String(text) => Some(text),
            _ => self.wrong(name, "string_type", "Input should be a valid string"),
        }
    }

    /// Like [`text`](Self::text), for a required field.
    pub(crate) fn required(&mut self, name: &str, chars: RangeInclusive<usize>) -> String {
        self.demand(name);
        self.text(name, chars).unwrap_or_default()
    }

    fn demand(&mut self, name: &str) {
        if self.values.get(name).is_none_or(Value::is_null) {
            self.wrong::<()>(name, "missing", "Field required");
        }
    }

    /// A text that can be one segment of a path, such as a name.
    pub(crate) fn name(&mut self, name: &str, most_chars: usize) -> String {
        let text = self.required(name, 1..=most_chars);
        if is_no_part(&text) {
            self.wrong::<()>(name, "value_error", "String must not be . or .., nor contain control characters");
        }
        text
    }

    pub(crate) fn whole(&mut self, name: &str, range: RangeInclusive<i64>) -> Option<i64> {
        match self.value(name)?.as_i64() {
            Some(number) if range.contains(&number) => Some(number),
            Some(_) => self.wrong(name, "int_range", format!("Input should be a whole number from {} to {}", range.start(), range.end())),
            None => self.wrong(name, "int_type", "Input should be a valid integer"),
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> Option<bool> {
        match self.value(name)? {
            Value::Bool(flag) => Some(flag),
            _ => self.wrong(name, "bool_type", "Input should be a valid boolean"),
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, name: &str, most: usize, chars: usize) -> Option<Vec<String>> {
        let Value::Array(values) = self.value(name)? else {
            return self.wrong(name, "list_type", "Input should be a valid list");
        };
        if values.len() > most {
            return self.wrong(name, "too_long", format!("List should have at most {most} elements"));
        }
        let mut texts = Vec::with_capacity(values.len());
        for (at, value) in values.into_iter().enumerate() {
            match value {
                Value::String(text) if text.chars().count() <= chars && !text.contains('\0') => texts.push(text),
                _ => self.mistakes.push(mistake(
                    vec![json!("body"), json!(name), json!(at)],
                    "string_type",
                    format!("Input should be a valid string of at most {chars} characters"),
                )),
            }
        }
        Some(texts)
    }

    /// A JSON object of at most this many bytes, kept as it is.
    pub(crate) fn object(&mut self, name: &str, most_bytes: usize) -> Option<Map<String, Value>> {
        let Value::Object(object) = self.value(name)? else {
            return self.wrong(name, "dict_type", "Input should be a JSON object");
        };
        let text = Value::Object(object.clone()).to_string();
        if text.len() > most_bytes || text.contains("\\u0000") || !is_readable(&text) {
            return self.wrong(
                name,
                "value_error",
                format!("Input should be a JSON object of at most {most_bytes} bytes and 64 levels, without NUL characters"),
            );
        }
        Some(object)
    }

    /// A URL of http or https, without a trailing slash; empty if there is none.
    pub(crate) fn url(&mut self, name: &str, chars: usize) -> String {
        let text = self.text(name, 0..=chars).unwrap_or_default();
        let text = text.trim_end_matches('/').to_owned();
        // The URL parser drops white space, but other readers of the text may not.
        let is_right = |text: &str| {
            let is_whole = !text.contains(|c: char| c.is_whitespace() || c.is_control());
            is_whole
                && Url::parse(text).is_ok_and(|url| {
                    matches!(url.scheme(), "http" | "https") && url.has_host() && url.username().is_empty() && url.password().is_none()
                })
        };
        if !text.is_empty() && !is_right(&text) {
            self.wrong::<()>(name, "url_parsing", "Input should be an http or https URL, without user and password");
        }
        text
    }

    pub(crate) fn one_of<T>(&mut self, name: &str, words: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name, 0..=128)?;
        match parse(&text) {
            Some(value) => Some(value),
            None => self.wrong(name, "enum", format!("Input should be one of: {words}")),
        }
    }
}

/// Whether this text can't be a segment of a path.
pub(crate) fn is_no_part(text: &str) -> bool {
    matches!(text, "." | "..") || text.chars().any(char::is_control)
}
