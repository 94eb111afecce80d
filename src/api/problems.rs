//! What is wrong with a JSON body: each error with its place.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::invalid::Invalid;

/// Limit of the errors that are kept for one body: a batch may contain thousands.
pub const MAX_PROBLEMS: usize = 100;
/// How much of an unknown name is repeated, in characters.
pub const SHOWN_CHARS: usize = 64;

/// An error in a body, and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Field names and list indexes, the innermost first.
    pub(super) path: Vec<Cow<'static, str>>,
    pub(super) text: String,
}

impl Problem {
    /// The top-level field (`None` for the body itself), and the text, which names the rest of the path.
    fn flatten(self) -> (Option<Cow<'static, str>>, String) {
        let Self { mut path, text } = self;
        let field = path.pop();
        if path.is_empty() {
            return (field, text);
        }
        path.reverse();
        (field, format!("{}: {text}", path.join(".")))
    }
}

/// All that is wrong with a value.
pub type Problems = Vec<Problem>;

impl From<Problems> for Invalid {
    fn from(problems: Problems) -> Self {
        let mut invalid = Self::default();
        for (field, text) in problems.into_iter().take(MAX_PROBLEMS).map(Problem::flatten) {
            match field {
                Some(field) => invalid.fields.entry(field.into_owned()).or_default().push(text),
                None => invalid.form.push(text),
            }
        }
        invalid
    }
}

/// One problem of the value itself, without a path, as an error.
///
/// # Errors
/// Always.
pub fn problem<T>(text: impl Into<String>) -> Result<T, Problems> {
    Err(vec![Problem { path: Vec::new(), text: text.into() }])
}

/// Adds the field or index that contains the value to the paths of these problems.
pub fn within(name: impl Into<Cow<'static, str>>, mut problems: Problems) -> Problems {
    let name = name.into();
    for problem in &mut problems {
        problem.path.push(name.clone());
    }
    problems
}

/// The type of a JSON value, as error texts name it.
pub fn kind(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'"') => "string",
        Some(b'{') => "object",
        Some(b'[') => "array",
        Some(b't' | b'f') => "boolean",
        Some(b'n') => "null",
        _ => "number",
    }
}

/// The value has the wrong type: `what` is the one that it should have.
///
/// # Errors
/// Always.
pub fn expected<T>(what: &str, raw: &RawValue) -> Result<T, Problems> {
    problem(format!("Expected {what}, received {}", kind(raw)))
}
