//! What is wrong with the content of a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// An error in one field.
    pub fn field(name: &'static str, text: impl Into<String>) -> Self {
        Self { form: Vec::new(), fields: BTreeMap::from([(name.to_owned(), vec![text.into()])]) }
    }

    /// Reports the errors of an object that is nested in this field: they become errors of the field, and each text names the nested one.
    pub fn under(self, field: &'static str) -> Self {
        let nested = self.fields.into_iter().flat_map(|(name, texts)| texts.into_iter().map(move |text| format!("{name}: {text}")));
        Self { form: self.form, fields: BTreeMap::from([(field.to_owned(), nested.collect())]) }
    }

    /// All errors in one line, for answers about many objects.
    pub fn line(&self) -> String {
        let fields = self.fields.iter().flat_map(|(name, texts)| texts.iter().map(move |text| format!("{name}: {text}")));
        self.form.iter().cloned().chain(fields).collect::<Vec<_>>().join("; ")
    }
}
