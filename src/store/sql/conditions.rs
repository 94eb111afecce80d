//! Builds the WHERE conditions of a list from the filters that are set.

use crate::sql::args::Args;

/// The text of the conditions, and their parameters.
#[derive(Default)]
pub(crate) struct Conditions<'a> {
    text: String,
    args: Args<'a>,
}

impl<'a> Conditions<'a> {
    /// Continues after these parameters.
    pub(crate) fn with(args: Args<'a>) -> Self {
        Self { text: String::new(), args }
    }

    /// Adds a condition that ends with a parameter.
    pub(crate) fn add(&mut self, condition: &str, value: impl FnOnce(Args<'a>) -> Args<'a>) {
        self.args = value(std::mem::take(&mut self.args));
        self.fixed(&format!("{condition}${}", self.args.len()));
    }

    pub(crate) fn equal(&mut self, condition: &str, value: Option<&'a str>) {
        if let Some(value) = value {
            self.add(condition, |args| args.text(value));
        }
    }

    /// Adds a condition without a parameter.
    pub(crate) fn fixed(&mut self, condition: &str) {
        self.text.push_str(" AND ");
        self.text.push_str(condition);
    }

    /// Ends a condition that began with an open parenthesis.
    pub(crate) fn close(&mut self) {
        self.text.push(')');
    }

    pub(crate) fn into_parts(self) -> (String, Args<'a>) {
        (self.text, self.args)
    }
}
