//! Tables: their columns, how they are fitted to the terminal, and how their rows are sorted.

use anstyle::{AnsiColor, Style};
use serde::de::DeserializeOwned;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::server_calls::read;
use super::{term, when};
use crate::CommandError;
use bloom_core::Ms;

/// The number of spaces between two columns.
const GAP: usize = 3;

/// A kind of object, with its columns in tables.
pub struct Kind<T: 'static> {
    pub columns: &'static [Column<T>],
    /// The id or name that `-o name` prints.
    pub name: fn(&T) -> String,
}

pub struct Column<T> {
    title: &'static str,
    is_wide: bool,
    cell: fn(&T, Ms) -> String,
    /// The cell in wide tables, if it differs.
    wide_cell: Option<fn(&T, Ms) -> String>,
    /// The minimum width of the cells on a terminal, and their width elsewhere.
    cut: Option<(usize, usize)>,
    /// If the terminal is too narrow, the column with the highest number is left out first. Columns with 0 are never left out.
    spare: u8,
    /// The number by which rows are sorted; `None`: they are sorted by the text of the cell.
    order: Option<fn(&T) -> i64>,
}

impl<T> Column<T> {
    pub const fn new(title: &'static str, cell: fn(&T, Ms) -> String) -> Self {
        Self { title, is_wide: false, cell, wide_cell: None, cut: None, spare: 0, order: None }
    }

    /// A column that is shown only in wide tables.
    pub const fn wide(title: &'static str, cell: fn(&T, Ms) -> String) -> Self {
        Self { is_wide: true, ..Self::new(title, cell) }
    }

    /// A column with a short cell, and a whole one in wide tables.
    pub const fn short(title: &'static str, cell: fn(&T, Ms) -> String, wide_cell: fn(&T, Ms) -> String) -> Self {
        Self { wide_cell: Some(wide_cell), ..Self::new(title, cell) }
    }

    /// On a terminal, the cells get the width that the other columns leave, but at least `least` characters. Elsewhere, they get `usual`
    /// characters.
    pub const fn cut(mut self, least: usize, usual: usize) -> Self {
        self.cut = Some((least, usual));
        self
    }

    /// If the terminal is too narrow, the column with the highest number is left out first.
    pub const fn spare(mut self, number: u8) -> Self {
        self.spare = number;
        self
    }

    /// Sorts rows by this number.
    pub const fn by(mut self, order: fn(&T) -> i64) -> Self {
        self.order = Some(order);
        self
    }
}

impl<T> Kind<T> {
    /// The titles of the columns, in the form that `--sort` takes.
    pub fn titles(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.title.to_lowercase()).collect()
    }
}

impl<T: DeserializeOwned> Kind<T> {
    /// Sorts by the column with this title in lower case; with a minus in front, descending. Equal rows keep their order.
    ///
    /// # Errors
    /// No column has this title, or a row is not of this kind.
    pub fn sort(&self, rows: &mut Vec<Value>, by: &str) -> Result<(), CommandError> {
        let (is_descending, title) = by.strip_prefix('-').map_or((false, by), |title| (true, title));
        let column = self.columns.iter().find(|column| column.title.eq_ignore_ascii_case(title)).ok_or_else(|| {
            CommandError::usage(format!("there is no column '{title}' to sort by; there are: {}", self.titles().join(", ")))
        })?;
        let now = when::now();
        let key = |row: Value| -> Result<_, CommandError> {
            let thing: T = read(&row)?;
            let whole = column.wide_cell.unwrap_or(column.cell);
            let (number, text) = column.order.map_or_else(|| (0, whole(&thing, now)), |order| (order(&thing), String::new()));
            Ok((number, text, row))
        };
        let mut keyed = std::mem::take(rows).into_iter().map(key).collect::<Result<Vec<_>, _>>()?;
        keyed.sort_by(|(a, a_text, _), (b, b_text, _)| {
            let order = (a, a_text).cmp(&(b, b_text));
            if is_descending { order.reverse() } else { order }
        });
        rows.extend(keyed.into_iter().map(|(_, _, row)| row));
        Ok(())
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub is_wide: bool,
    pub has_titles: bool,
    /// The width of the terminal. `None`: the width is not limited.
    pub width: Option<usize>,
    pub has_colors: bool,
}

/// The columns are chosen for the first rows. Later rows can only change the widths.
pub(crate) struct Table<T: 'static> {
    layout: Layout,
    columns: Vec<&'static Column<T>>,
    /// The widest cell of each column so far.
    widest: Vec<usize>,
    widths: Vec<usize>,
}

impl<T> Table<T> {
    pub(crate) fn new(kind: &'static Kind<T>, layout: Layout) -> Self {
        let columns: Vec<_> = kind.columns.iter().filter(|column| layout.is_wide || !column.is_wide).collect();
        let widest = columns.iter().map(|column| if layout.has_titles { column.title.width() } else { 0 }).collect();
        Self { layout, columns, widest, widths: Vec::new() }
    }

    /// The titles and the first rows.
    pub(crate) fn first(&mut self, rows: &[T], now: Ms) -> String {
        let mut cells: Vec<_> = rows.iter().map(|row| self.cells(row, now)).collect();
        cells.iter().for_each(|cells| self.widen(cells));
        while let Some(at) = self.to_leave_out() {
            self.columns.remove(at);
            self.widest.remove(at);
            cells.iter_mut().for_each(|cells| drop(cells.remove(at)));
        }
        self.fit();
        let titles: Vec<String> = self.columns.iter().map(|column| column.title.to_owned()).collect();
        let head = if self.layout.has_titles { self.line(&titles, false) } else { String::new() };
        cells.iter().fold(head, |text, cells| text + &self.line(cells, self.layout.has_colors))
    }

    pub(crate) fn rows(&mut self, rows: &[T], now: Ms) -> String {
        let cells: Vec<_> = rows.iter().map(|row| self.cells(row, now)).collect();
        cells.iter().for_each(|cells| self.widen(cells));
        self.fit();
        cells.iter().map(|cells| self.line(cells, self.layout.has_colors)).collect()
    }

    fn cells(&self, row: &T, now: Ms) -> Vec<String> {
        let shown = |column: &&'static Column<T>| {
            let cell = column.wide_cell.filter(|_| self.layout.is_wide).unwrap_or(column.cell);
            let text = term::line(&cell(row, now));
            match (text.is_empty(), column.cut) {
                (true, _) => "-".to_owned(),
                (false, Some((_, usual))) if self.layout.width.is_none() => shortened(&text, usual),
                (false, _) => text,
            }
        };
        self.columns.iter().map(shown).collect()
    }

    fn widen(&mut self, cells: &[String]) {
        for (width, cell) in self.widest.iter_mut().zip(cells) {
            *width = (*width).max(cell.width());
        }
    }

    /// The minimum width of a column.
    fn least(&self, at: usize) -> usize {
        let least = |(least, _): (usize, usize)| self.widest[at].min(least.max(self.columns[at].title.width()));
        self.columns[at].cut.map_or(self.widest[at], least)
    }

    /// The remaining width if each column gets its minimum; `None` if the terminal is too narrow for that.
    fn left(&self, room: usize) -> Option<usize> {
        let needed = (0..self.columns.len()).map(|at| self.least(at) + GAP).sum::<usize>().saturating_sub(GAP);
        room.checked_sub(needed)
    }

    /// The next column to leave out; `None` if the terminal is wide enough, or if no further column can be left out.
    fn to_leave_out(&self) -> Option<usize> {
        let spare = |at: &usize| self.columns[*at].spare;
        let is_too_wide = self.left(self.layout.width?).is_none();
        (0..self.columns.len()).filter(|at| is_too_wide && spare(at) > 0).max_by_key(spare)
    }

    fn fit(&mut self) {
        let Some(room) = self.layout.width else {
            self.widths.clone_from(&self.widest);
            return;
        };
        let mut left = self.left(room).unwrap_or_default();
        let mut widths = Vec::new();
        for at in 0..self.columns.len() {
            let least = self.least(at);
            let more = left.min(self.widest[at] - least);
            left -= more;
            widths.push(least + more);
        }
        self.widths = widths;
    }

    fn line(&self, cells: &[String], is_colored: bool) -> String {
        let mut line = String::new();
        for (at, cell) in cells.iter().enumerate() {
            let column = self.columns[at];
            let cell = if column.cut.is_some() { &shortened(cell, self.widths[at]) } else { cell };
            let style = if is_colored && column.title == "STATUS" { style_of(cell) } else { Style::new() };
            line.push_str(&format!("{style}{cell}{style:#}"));
            if at + 1 < cells.len() {
                let gap = self.widths[at].saturating_sub(cell.width()) + GAP;
                line.extend(std::iter::repeat_n(' ', gap));
            }
        }
        line.push('\n');
        line
    }
}

/// The text. If it is too wide, its beginning with `…`.
fn shortened(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut left = width.saturating_sub(1);
    for c in text.chars() {
        let Some(rest) = left.checked_sub(c.width().unwrap_or(0)) else { break };
        left = rest;
        shown.push(c);
    }
    shown + "…"
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
            Column::new("NAME", |row, _| text(row, "name")),
            Column::wide("NOTE", |row, _| text(row, "note")),
            Column::new("STATUS", |row: &Value, _| text(row, "status")).spare(1),
            Column::new("SIZE", |row: &Value, _| row["size"].as_i64().unwrap_or_default().to_string())
                .spare(2)
                .by(|row| row["size"].as_i64().unwrap_or_default()),
            Column::new("TEXT", |row: &Value, _| text(row, "text")).cut(6, 10),
        ],
        name: |row| text(row, "name"),
    };

    fn text(row: &Value, field: &str) -> String {
        row[field].as_str().unwrap_or_default().to_owned()
    }

    const PLAIN: Layout = Layout { is_wide: false, has_titles: true, width: None, has_colors: false };

    fn table(layout: Layout, rows: &[Value]) -> String {
        Table::new(&THINGS, layout).first(rows, 0)
    }

    #[test]
    fn columns_stand_below_their_titles() {
        let rows = [json!({ "name": "a", "status": "dead" }), json!({ "name": "日本語", "note": "x\ny\u{1b}", "text": "0123456789x" })];
        assert_eq!(table(PLAIN, &rows), "NAME     STATUS   SIZE   TEXT\na        dead     0      -\n日本語   -        0      012345678…\n");
        let wide = table(Layout { is_wide: true, ..PLAIN }, &rows);
        assert!(wide.starts_with("NAME     NOTE        STATUS   SIZE   TEXT\n") && wide.contains("日本語   x y\\u001b   -"), "{wide}");
        assert_eq!(table(Layout { has_titles: false, ..PLAIN }, &rows[..1]), "a   dead   0   -\n");
    }

    #[test]
    fn only_a_status_has_a_colour() {
        let rows = [json!({ "name": "dead", "status": "dead" })];
        let colored = table(Layout { has_colors: true, has_titles: false, ..PLAIN }, &rows);
        assert_eq!(colored, "dead   \u{1b}[31mdead\u{1b}[0m   0   -\n");
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let rows = [json!({ "name": "name", "status": "dead", "text": "日本語 and 0123456789" })];
        let at = |width| table(Layout { width: Some(width), ..PLAIN }, &rows);
        assert_eq!(at(50).lines().last(), Some("name   dead     0      日本語 and 0123456789"));
        assert_eq!(at(30).lines().last(), Some("name   dead     0      日本語…"));
        assert_eq!(at(24).lines().last(), Some("name   dead     日本語 …"));
        assert_eq!(at(16).lines().last(), Some("name   日本語 a…"));
        assert_eq!(at(3), "NAME   TEXT\nname   日本…\n", "a column that is needed stays");
        for width in 13..60 {
            assert!(at(width).lines().all(|line| line.width() <= width), "{width}: {}", at(width));
        }
    }

    #[test]
    fn later_rows_keep_the_columns() {
        let mut table = Table::new(&THINGS, Layout { width: Some(30), has_titles: false, ..PLAIN });
        table.first(&[json!({ "name": "a", "text": "x" })], 0);
        let line = table.rows(&[json!({ "name": "a", "text": "0123456789012345678901234567890123456789" })], 0);
        assert!(line.trim_end().width() <= 30 && line.contains('…'), "{line}");
    }

    #[test]
    fn rows_are_sorted_by_a_column() {
        let row = |name: &str, size: i64| json!({ "name": name, "size": size });
        let sorted = |by: &str| {
            let mut rows = vec![row("b", 9), row("a", 10), row("c", 9)];
            THINGS.sort(&mut rows, by).map(|()| rows.iter().map(|row| text(row, "name")).collect::<String>())
        };
        assert_eq!(sorted("name").unwrap(), "abc");
        assert_eq!(sorted("-name").unwrap(), "cba");
        assert_eq!(sorted("size").unwrap(), "bca");
        assert_eq!(sorted("-size").unwrap(), "abc");
        assert!(sorted("weight").unwrap_err().to_string().contains("name, note, status, size, text"));
    }
}
