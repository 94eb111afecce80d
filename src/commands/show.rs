//! Prints the server's answers: as tables, or as JSON, YAML, values or names for programs.

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use super::output_format::Form;
use super::output_format::FormParser;
use super::server_calls::read;
pub(crate) use super::table::Kind;
use super::table::{Layout, Table};
use super::{term, when};
use crate::CommandError;

#[derive(Args, Clone, Copy, Debug)]
pub struct Shown {
    /// Output format
    #[arg(short, long, global = true, value_parser = FormParser, value_name = "FORM", help_heading = "Output")]
    output: Option<Form>,
    /// Print tables without their titles
    #[arg(long, global = true, help_heading = "Output")]
    no_headers: bool,
}

impl Shown {
    pub fn form(self) -> Option<Form> {
        self.output.map(|form| self.titled(form))
    }

    pub fn form_or(self, usual: Form) -> Form {
        self.titled(self.output.unwrap_or(usual))
    }

    fn titled(self, form: Form) -> Form {
        match form {
            Form::Table if self.no_headers => Form::Bare,
            Form::Wide if self.no_headers => Form::WideBare,
            form => form,
        }
    }
}

/// Prints a list.
///
/// # Errors
/// A row is not of this kind, or the output can't be written.
pub(crate) fn list<T: DeserializeOwned>(form: Form, kind: &'static Kind<T>, rows: &[Value]) -> Result<(), CommandError> {
    if form.is_data() { as_it_came(form, &rows) } else { table(form, kind, &read_all(rows)?) }
}

/// Prints a list as a table or as names.
///
/// # Errors
/// The output can't be written.
pub(crate) fn table<T>(form: Form, kind: &'static Kind<T>, rows: &[T]) -> Result<(), CommandError> {
    if form == Form::Name {
        return names(kind, rows);
    }
    if rows.is_empty() {
        term::info("Nothing found.");
        return Ok(());
    }
    term::print(&Table::new(kind, layout(form)).first(rows, when::now()))
}

/// # Errors
/// A row is not of this kind.
pub(crate) fn read_all<T: DeserializeOwned>(rows: &[Value]) -> Result<Vec<T>, CommandError> {
    rows.iter().map(read).collect()
}

/// Prints one object.
///
/// # Errors
/// The output can't be written.
pub(crate) fn one<T: DeserializeOwned>(form: Form, kind: &'static Kind<T>, thing: &Value) -> Result<(), CommandError> {
    if form.is_data() { as_it_came(form, thing) } else { list(form, kind, std::slice::from_ref(thing)) }
}

/// Prints those objects that were found of those that were named, and then fails if some were not.
///
/// # Errors
/// Some were not found, or the output can't be written.
pub(crate) fn found<T: DeserializeOwned>(
    form: Form,
    kind: &'static Kind<T>,
    (things, all): (Vec<Value>, Result<(), CommandError>),
) -> Result<(), CommandError> {
    match (things.as_slice(), &all) {
        ([], Err(_)) => {}
        (things, Err(_)) => list(form, kind, things)?,
        (things, Ok(())) => some(form, kind, things)?,
    }
    all
}

/// Prints the objects that were requested one by one: a single one as an object, several as a list.
///
/// # Errors
/// The output can't be written.
pub(crate) fn some<T: DeserializeOwned>(form: Form, kind: &'static Kind<T>, things: &[Value]) -> Result<(), CommandError> {
    if let [thing] = things { one(form, kind, thing) } else { list(form, kind, things) }
}

/// Prints any value in a format for programs: with `-o jsonpath` what the path finds in it, else the value itself.
///
/// # Errors
/// The output can't be written.
pub(crate) fn as_it_came(form: Form, value: &impl Serialize) -> Result<(), CommandError> {
    let value = serde_json::to_value(value).map_err(|error| format!("this is not JSON: {error}"))?;
    let text = form.data(&value)?;
    if let (Form::Path(_), "") = (form, &*text) {
        term::info(match value.as_array().map(Vec::as_slice) {
            Some([]) => "Nothing found.",
            Some(_) => "The path found nothing. A list is an array: $[*].id",
            None => "The path found nothing; -o json shows all fields.",
        });
    }
    term::print_foreign(&text)
}

/// Prints one of several values as they arrive: one line per value as JSON, one document per value as YAML.
///
/// # Errors
/// The output can't be written, or the format is CSV.
pub(crate) fn one_of_many(form: Form, value: &Value) -> Result<(), CommandError> {
    let text = match form {
        Form::Json => Form::Jsonl.data(value)?,
        Form::Yaml => format!("---\n{}", form.data(value)?),
        Form::Csv => return Err(CommandError::usage("--output csv: its columns are not known before the last row; use jsonl".to_owned())),
        form => form.data(value)?,
    };
    term::print_foreign(&text)
}

fn layout(form: Form) -> Layout {
    // A table with all columns is not shortened, so long lines wrap.
    let is_wide = matches!(form, Form::Wide | Form::WideBare);
    let width = term::out_width().filter(|_| !is_wide);
    Layout { is_wide, has_titles: matches!(form, Form::Table | Form::Wide), width, has_colors: term::has_colors() }
}

fn names<T>(kind: &Kind<T>, rows: &[T]) -> Result<(), CommandError> {
    let names = rows.iter().map(kind.name).filter(|name| !name.is_empty());
    let lines: String = names.map(|name| term::line(&name) + "\n").collect();
    term::print(&lines)
}

/// Prints objects as they arrive.
pub(crate) struct Feed<T: 'static> {
    form: Form,
    kind: &'static Kind<T>,
    /// Made for the first rows.
    table: Option<Table<T>>,
}

impl<T: DeserializeOwned> Feed<T> {
    pub(crate) fn new(form: Form, kind: &'static Kind<T>) -> Self {
        Self { form, kind, table: None }
    }

    /// # Errors
    /// A row is not of this kind, or the output can't be written.
    pub(crate) fn print(&mut self, rows: &[Value]) -> Result<(), CommandError> {
        if self.form.is_data() {
            return rows.iter().try_for_each(|row| one_of_many(self.form, row));
        }
        let rows = read_all(rows)?;
        if self.form == Form::Name {
            return names(self.kind, &rows);
        }
        let now = when::now();
        match &mut self.table {
            Some(table) => term::print(&table.rows(&rows, now)),
            None => {
                let table = self.table.insert(Table::new(self.kind, layout(self.form)));
                term::print(&table.first(&rows, now))
            }
        }
    }
}
