//! Errors, as a client sees them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An error.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorText<'a> {
    /// What went wrong.
    pub error: Cow<'a, str>,
}

/// The content of the request is not valid.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ValidationError {
    pub error: Invalid,
}

/// What is wrong, by top-level field of the body.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct Invalid {
    /// Errors of the request as a whole.
    #[serde(rename = "formErrors")]
    pub form: Vec<String>,
    /// Errors by top-level field; a text about a nested field names that field.
    #[serde(rename = "fieldErrors")]
    pub fields: BTreeMap<String, Vec<String>>,
}

impl Invalid {
    /// One field is wrong.
    pub fn field(name: &'static str, text: impl Into<String>) -> Self {
        Self { form: Vec::new(), fields: BTreeMap::from([(name.to_owned(), vec![text.into()])]) }
    }

    /// The same, of an object that stands in this field: its complaints become the field's, each naming the nested one.
    pub fn under(self, field: &'static str) -> Self {
        let nested = self.fields.into_iter().flat_map(|(name, texts)| texts.into_iter().map(move |text| format!("{name}: {text}")));
        Self { form: self.form, fields: BTreeMap::from([(field.to_owned(), nested.collect())]) }
    }

    /// In one line, where an answer holds many.
    pub fn line(&self) -> String {
        let fields = self.fields.iter().flat_map(|(name, texts)| texts.iter().map(move |text| format!("{name}: {text}")));
        self.form.iter().cloned().chain(fields).collect::<Vec<_>>().join("; ")
    }
}
