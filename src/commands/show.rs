//! Prints the server's answers: as tables, or as JSON, YAML or names for programs.

use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use super::connect::read;
use super::{term, when};
use crate::CommandError;
use bloom_core::Ms;

#[derive(Args, Clone, Copy, Debug)]
pub struct Shown {
    /// Output format
    #[arg(short, long, global = true, value_enum, value_name = "FORM", help_heading = "Output")]
    output: Option<Form>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A table
    Table,
    /// A table with more columns
    Wide,
    /// The objects as the server sent them; lists as an array
    Json,
    Yaml,
    /// Ids or names, one per line
    Name,
}

impl Shown {
    pub fn form(self) -> Option<Form> {
        self.output
    }

    pub fn form_or(self, usual: Form) -> Form {
        self.output.unwrap_or(usual)
    }
}

/// A kind of object, with its columns in tables.
pub struct Kind<T: 'static> {
    pub columns: &'static [Column<T>],
    /// The id or name that `-o name` prints.
    pub name: fn(&T) -> String,
}

pub struct Column<T> {
    pub title: &'static str,
    pub is_wide: bool,
    pub cell: fn(&T, Ms) -> String,
    /// The cell of wide tables, if it is another one.
    pub wide_cell: Option<fn(&T, Ms) -> String>,
}

impl<T> Column<T> {
    pub const fn new(title: &'static str, cell: fn(&T, Ms) -> String) -> Self {
        Self { title, is_wide: false, cell, wide_cell: None }
    }

    /// A column that only wide tables have.
    pub const fn wide(title: &'static str, cell: fn(&T, Ms) -> String) -> Self {
        Self { title, is_wide: true, cell, wide_cell: None }
    }

    /// A column that is short in tables, and whole in wide ones.
    pub const fn short(title: &'static str, cell: fn(&T, Ms) -> String, wide_cell: fn(&T, Ms) -> String) -> Self {
        Self { title, is_wide: false, cell, wide_cell: Some(wide_cell) }
    }
}

/// Prints a list.
///
/// # Errors
/// A row is not of this kind, or the output can't be written.
pub fn list<T: DeserializeOwned>(form: Form, kind: &'static Kind<T>, rows: &[Value]) -> Result<(), CommandError> {
    match form {
        Form::Json | Form::Yaml => as_it_came(form, &rows),
        Form::Name | Form::Table | Form::Wide => table(form, kind, &read_all(rows)?),
    }
}

/// Prints a list as a table or as names.
///
/// # Errors
/// The output can't be written.
pub fn table<T>(form: Form, kind: &'static Kind<T>, rows: &[T]) -> Result<(), CommandError> {
    if form == Form::Name {
        return names(kind, rows);
    }
    if rows.is_empty() {
        term::note("Nothing found.");
        return Ok(());
    }
    let mut table = Table::new(kind, form);
    let text = table.head(rows) + &table.rows(rows);
    term::print(&text)
}

fn read_all<T: DeserializeOwned>(rows: &[Value]) -> Result<Vec<T>, CommandError> {
    rows.iter().map(read).collect()
}

/// Prints one object.
///
/// # Errors
/// The output can't be written.
pub fn one<T: DeserializeOwned>(form: Form, kind: &'static Kind<T>, thing: &Value) -> Result<(), CommandError> {
    match form {
        Form::Json | Form::Yaml => as_it_came(form, thing),
        _ => list(form, kind, std::slice::from_ref(thing)),
    }
}

/// Prints the objects that were requested one by one: a single one as an object, several as a list.
///
/// # Errors
/// The output can't be written.
pub fn some<T: DeserializeOwned>(form: Form, kind: &'static Kind<T>, things: &[Value]) -> Result<(), CommandError> {
    if let [thing] = things { one(form, kind, thing) } else { list(form, kind, things) }
}

/// Prints any value, as YAML or as JSON.
///
/// # Errors
/// The output can't be written.
pub fn as_it_came(form: Form, value: &impl Serialize) -> Result<(), CommandError> {
    if form == Form::Yaml {
        return term::print_foreign(&yaml(value)?);
    }
    let json = serde_json::to_string_pretty(value).map_err(|error| format!("this is not JSON: {error}"))?;
    term::print_foreign(&format!("{json}\n"))
}

fn yaml(value: &impl Serialize) -> Result<String, CommandError> {
    Ok(serde_norway::to_string(value).map_err(|error| format!("this can't be written as YAML: {error}"))?)
}

fn names<T>(kind: &Kind<T>, rows: &[T]) -> Result<(), CommandError> {
    let lines: String = rows.iter().map(|row| term::line(&(kind.name)(row)) + "\n").collect();
    term::print(&lines)
}

/// Prints objects as they arrive.
pub struct Feed<T: 'static> {
    form: Form,
    kind: &'static Kind<T>,
    /// Its columns never become narrower.
    table: Option<Table<T>>,
}

impl<T: DeserializeOwned> Feed<T> {
    pub fn new(form: Form, kind: &'static Kind<T>) -> Self {
        Self { form, kind, table: None }
    }

    /// Prints one line per object as JSON, and one document per object as YAML.
    ///
    /// # Errors
    /// A row is not of this kind, or the output can't be written.
    pub fn print(&mut self, rows: &[Value]) -> Result<(), CommandError> {
        match self.form {
            Form::Json => term::print_foreign(&rows.iter().map(|row| format!("{row}\n")).collect::<String>()),
            Form::Yaml => rows.iter().try_for_each(|row| term::print_foreign(&format!("---\n{}", yaml(row)?))),
            Form::Name => names(self.kind, &read_all(rows)?),
            Form::Table | Form::Wide => {
                let rows = read_all(rows)?;
                let mut text = String::new();
                let table = self.table.get_or_insert_with(|| {
                    let mut table = Table::new(self.kind, self.form);
                    text = table.head(&rows);
                    table
                });
                term::print(&(text + &table.rows(&rows)))
            }
        }
    }
}

struct Table<T: 'static> {
    columns: Vec<&'static Column<T>>,
    is_wide: bool,
    widths: Vec<usize>,
    has_colors: bool,
    now: Ms,
}

impl<T> Table<T> {
    fn new(kind: &'static Kind<T>, form: Form) -> Self {
        let columns: Vec<_> = kind.columns.iter().filter(|column| form == Form::Wide || !column.is_wide).collect();
        let widths = columns.iter().map(|column| column.title.width()).collect();
        Self { columns, is_wide: form == Form::Wide, widths, has_colors: term::has_colors(), now: when::now() }
    }

    /// The titles, with columns that are wide enough for these rows.
    fn head(&mut self, rows: &[T]) -> String {
        for row in rows {
            self.fit(&self.cells(row));
        }
        let titles: Vec<String> = self.columns.iter().map(|column| column.title.to_owned()).collect();
        self.line(&titles, false)
    }

    fn rows(&mut self, rows: &[T]) -> String {
        self.now = when::now();
        let mut text = String::new();
        for row in rows {
            let cells = self.cells(row);
            self.fit(&cells);
            text.push_str(&self.line(&cells, self.has_colors));
        }
        text
    }

    fn cells(&self, row: &T) -> Vec<String> {
        let shown = |column: &&'static Column<T>| {
            let cell = column.wide_cell.filter(|_| self.is_wide).unwrap_or(column.cell);
            let text = term::line(&cell(row, self.now));
            if text.is_empty() { "-".to_owned() } else { text }
        };
        self.columns.iter().map(shown).collect()
    }

    fn fit(&mut self, cells: &[String]) {
        for (width, cell) in self.widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.width());
        }
    }

    fn line(&self, cells: &[String], is_colored: bool) -> String {
        let mut line = String::new();
        for (at, cell) in cells.iter().enumerate() {
            let style = if is_colored && self.columns[at].title == "STATUS" { style_of(cell) } else { Style::new() };
            line.push_str(&format!("{style}{cell}{style:#}"));
            if at + 1 < cells.len() {
                let gap = self.widths[at].saturating_sub(cell.width()) + 3;
                line.extend(std::iter::repeat_n(' ', gap));
            }
        }
        line.push('\n');
        line
    }
}

/// The color of a status.
fn style_of(status: &str) -> Style {
    let color = match status.split(',').next().unwrap_or_default() {
        "completed" | "online" | "success" => AnsiColor::Green,
        "failed" | "dead" | "error" | "offline" | "expired" => AnsiColor::Red,
        "leased" | "running" | "active" | "syncing" => AnsiColor::Cyan,
        "cancelled" | "unknown" => AnsiColor::Yellow,
        _ => return Style::new(),
    };
    color.on_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    static THINGS: Kind<Value> = Kind {
        columns: &[
            Column::new("NAME", |row, _| row["name"].as_str().unwrap_or_default().to_owned()),
            Column::wide("NOTE", |row, _| row["note"].as_str().unwrap_or_default().to_owned()),
            Column::new("STATUS", |row, _| row["status"].as_str().unwrap_or_default().to_owned()),
        ],
        name: |row| row["name"].as_str().unwrap_or_default().to_owned(),
    };

    fn table(form: Form, rows: &[Value]) -> String {
        let mut table = Table::new(&THINGS, form);
        table.has_colors = false;
        table.head(rows) + &table.rows(rows)
    }

    #[test]
    fn columns_stand_below_their_titles() {
        let rows = [json!({ "name": "a", "status": "dead" }), json!({ "name": "日本語", "note": "x\ny\u{1b}", "status": "" })];
        assert_eq!(table(Form::Table, &rows), "NAME     STATUS\na        dead\n日本語   -\n");
        assert_eq!(table(Form::Wide, &rows), "NAME     NOTE        STATUS\na        -           dead\n日本語   x y\\u{1b}   -\n");
    }

    #[test]
    fn only_a_status_has_a_colour() {
        let mut table = Table::new(&THINGS, Form::Table);
        table.has_colors = true;
        assert_eq!(table.rows(&[json!({ "name": "dead", "status": "dead" })]), "dead   \u{1b}[31mdead\u{1b}[0m\n");
    }
}
