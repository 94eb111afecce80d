//! Schemas of fields that the HTTP API has too, made from its description, so that limits, defaults, texts and errors are declared once.
//!
//! Limits become CEL rules with the API's own error texts. In the schema proper, the API server would word the errors itself.

use std::collections::BTreeMap;

use bloom_api::problem_texts as texts;
use bloom_api::values::TEXT_PATTERN;
use bloom_api::wire::Wire;
use serde_json::{Map, Value, json};

/// Upper limits of the schema proper, in elements. The API server estimates the cost of rules from them. They are above the API's limits, so
/// that a value that is only a little too large gets the API's error.
const MOST_ELEMENTS: u64 = 256;
const MOST_CHARS_OF_ELEMENT: u64 = 4_096;

/// The fields of a request's body, by name.
pub struct ApiFields {
    fields: Map<String, Value>,
    named: BTreeMap<String, Value>,
}

impl ApiFields {
    /// The fields of this body of the API.
    ///
    /// # Errors
    /// A schema is not JSON, which is a mistake in the types.
    pub fn of<T: Wire>() -> serde_json::Result<Self> {
        let mut components = Vec::new();
        T::components(&mut components);
        let named = components.into_iter().map(|(name, schema)| Ok((name, serde_json::to_value(schema)?)));
        let mut body = serde_json::to_value(T::describe())?;
        let fields = body.get_mut("properties").and_then(Value::as_object_mut).map(std::mem::take).unwrap_or_default();
        Ok(Self { fields, named: named.collect::<serde_json::Result<_>>()? })
    }

    /// The schema of this field in an object of Kubernetes, where names are in camel case.
    pub fn schema(&self, camel_name: &str) -> Option<Value> {
        self.fields.get(&snake(camel_name)).map(|field| self.translated(field, false))
    }

    /// The schema of one type of values.
    pub fn schema_of<T: Wire>(description: &str) -> serde_json::Result<Value> {
        let mut schema = serde_json::to_value(T::describe())?;
        if let Some(members) = schema.as_object_mut() {
            members.insert("description".into(), description.into());
        }
        Ok(Self { fields: Map::new(), named: BTreeMap::new() }.translated(&schema, false))
    }

    fn translated(&self, schema: &Value, is_element: bool) -> Value {
        let schema = self.resolved(schema);
        let kind = schema.get("type").map_or("object", type_name);
        let mut translated = Map::from_iter([("type".to_owned(), kind.into())]);
        for copied in ["description", "default"] {
            translated.extend(schema.get(copied).filter(|value| !value.is_null()).map(|value| (copied.to_owned(), value.clone())));
        }
        let mut rules = Vec::new();
        let mut rule = |rule: String, message: String| rules.push(json!({ "rule": rule, "message": message }));
        let limit = |name: &str| schema.get(name).filter(|value| !value.is_null());
        let size = |name: &str| limit(name).and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok());
        match kind {
            "string" => {
                size("minLength").into_iter().for_each(|min| rule(format!("size(self) >= {min}"), texts::too_short(min)));
                size("maxLength").into_iter().for_each(|max| rule(format!("size(self) <= {max}"), texts::too_long(max)));
                if limit("pattern").and_then(Value::as_str) == Some(TEXT_PATTERN) {
                    rule(r"!self.contains('\x00')".into(), texts::NUL.into());
                }
                if let Some(words) = limit("enum").and_then(Value::as_array) {
                    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
                    rules.push(one_of(&words));
                }
                if is_element {
                    let most = size("maxLength").map_or(MOST_CHARS_OF_ELEMENT, |max| 4 * max as u64);
                    translated.insert("maxLength".into(), most.into());
                }
            }
            "integer" | "number" => {
                let literal = |bound: &Value| if kind == "number" { format!("{bound}.0") } else { bound.to_string() };
                limit("minimum").into_iter().for_each(|min| rule(format!("self >= {}", literal(min)), texts::too_small(min)));
                limit("maximum").into_iter().for_each(|max| rule(format!("self <= {}", literal(max)), texts::too_large(max)));
                translated.insert("format".into(), if kind == "number" { "double" } else { "int64" }.into());
            }
            "array" => {
                size("minItems").into_iter().for_each(|min| rule(format!("size(self) >= {min}"), texts::too_few(min)));
                size("maxItems").into_iter().for_each(|max| rule(format!("size(self) <= {max}"), texts::too_many(max)));
                translated.insert("maxItems".into(), MOST_ELEMENTS.into());
                translated.insert("items".into(), limit("items").map_or(Value::Null, |items| self.translated(items, true)));
            }
            _ => {
                if let Some(fields) = limit("properties").and_then(Value::as_object) {
                    let fields = fields.iter().map(|(name, field)| (camel(name), self.translated(field, false)));
                    translated.insert("properties".into(), fields.collect::<Map<_, _>>().into());
                }
                if let Some(values) = limit("additionalProperties") {
                    translated.insert("additionalProperties".into(), self.translated(values, true));
                    translated.insert("maxProperties".into(), MOST_ELEMENTS.into());
                    size("maxProperties").into_iter().for_each(|max| rule(format!("size(self) <= {max}"), texts::too_many_labels(max)));
                    let names = limit("propertyNames").map(|names| self.resolved(names)).unwrap_or_default();
                    let bound = |name: &str| names.get(name).and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok());
                    let of_name = |wrong: String| format!("The name of a label: {wrong}");
                    bound("minLength")
                        .into_iter()
                        .for_each(|min| rule(format!("self.all(name, size(name) >= {min})"), of_name(texts::too_short(min))));
                    bound("maxLength")
                        .into_iter()
                        .for_each(|max| rule(format!("self.all(name, size(name) <= {max})"), of_name(texts::too_long(max))));
                }
            }
        }
        if !rules.is_empty() {
            translated.insert("x-kubernetes-validations".into(), rules.into());
        }
        translated.into()
    }

    /// The schema without references, and without `null`, which the API takes for an absent field.
    fn resolved(&self, schema: &Value) -> Value {
        let either = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
        let inner = either.chain([schema]).find_map(|schema| schema.get("$ref")?.as_str());
        let Some(name) = inner.and_then(|path| path.rsplit('/').next()) else { return schema.clone() };
        let mut found = self.named.get(name).cloned().unwrap_or_default();
        if let (Some(found), Some(schema)) = (found.as_object_mut(), schema.as_object()) {
            let own = schema.iter().filter(|(name, _)| matches!(name.as_str(), "description" | "default"));
            found.extend(own.map(|(name, value)| (name.clone(), value.clone())));
        }
        found
    }
}

fn one_of(words: &[&str]) -> Value {
    let expected = texts::expected_words(words.iter().copied());
    let list = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(", ");
    let text = texts::unknown_word(&expected.replace('\'', r"\'"), "\0");
    let expression = format!("'{}'", text.replace("'\0'", r"\'' + self + '\'"));
    json!({ "rule": format!("self in [{list}]"), "messageExpression": expression })
}

/// The type, besides `null`.
fn type_name(schema_type: &Value) -> &str {
    let either = schema_type.as_array().into_iter().flatten();
    either.chain([schema_type]).filter_map(Value::as_str).find(|name| *name != "null").unwrap_or("object")
}

fn camel(snake: &str) -> String {
    let mut words = snake.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

/// The name of a field in the API, in snake case, by its name in camel case.
pub fn snake(camel: &str) -> String {
    camel.chars().fold(String::new(), |mut name, letter| {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bloom_api::new_tasks::NewTask;

    #[test]
    fn names_change_their_case() {
        for (snake_name, camel_name) in
            [("context_id", "contextId"), ("prompt", "prompt"), ("ttl_after_finished_sec", "ttlAfterFinishedSec")]
        {
            assert_eq!((camel(snake_name), snake(camel_name)), (camel_name.to_owned(), snake_name.to_owned()));
        }
    }

    #[test]
    fn limits_are_rules_with_the_texts_of_the_api() {
        let fields = ApiFields::of::<NewTask>().unwrap();
        let rules = |field: &str| fields.schema(field).unwrap()["x-kubernetes-validations"].to_string();
        assert!(rules("contextId").contains(r#"{"rule":"size(self) <= 255","message":"String must contain at most 255 character(s)"}"#));
        assert!(rules("priority").contains(r#"{"rule":"self <= 9","message":"Number must be less than or equal to 9"}"#));
        assert!(rules("labels").contains("Object must contain at most 32 label(s)"), "{}", rules("labels"));
        let expected = r#"'Invalid enum value. Expected \\'json\\' | \\'text\\', received \\'' + self + '\\''"#;
        assert!(rules("desiredFormat").contains(expected), "{}", rules("desiredFormat"));
        let policy = fields.schema("policy").unwrap();
        // The profile of the agent may have one.
        assert!(policy["properties"]["timeoutSec"]["default"].is_null());
        assert_eq!(policy["properties"]["budget"]["x-kubernetes-validations"][0]["rule"], "self >= 0.0");
        assert!(fields.schema("unknown").is_none());
    }
}
