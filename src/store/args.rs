//! Values on their way into a statement: single ones, arrays, and whole sets of rows.

use std::borrow::Cow;
use std::fmt::Write as _;

use sqlx::Arguments as _;
use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;
use uuid::Uuid;

use super::dialect::Kind;
use super::error::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Uuid,
    Int,
    Real,
    Bool,
    Text,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub name: &'static str,
    pub ty: Type,
}

pub(super) const fn uuid(name: &'static str) -> Column {
    Column { name, ty: Type::Uuid }
}
pub(super) const fn int(name: &'static str) -> Column {
    Column { name, ty: Type::Int }
}
pub(super) const fn real(name: &'static str) -> Column {
    Column { name, ty: Type::Real }
}
pub(super) const fn boolean(name: &'static str) -> Column {
    Column { name, ty: Type::Bool }
}
pub(super) const fn text(name: &'static str) -> Column {
    Column { name, ty: Type::Text }
}

/// `columns!(uuid id, text name)`: what a bulk of rows has, in order.
macro_rules! columns {
    ($($ty:ident $name:ident),+ $(,)?) => { &[$($ty(stringify!($name))),+] };
}
pub(super) use columns;

/// One column's values: a PostgreSQL array as it is, a part of a JSON text on SQLite.
#[derive(Debug)]
enum Array<'a> {
    Uuid(Vec<Option<Uuid>>),
    Int(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Bool(Vec<Option<bool>>),
    Text(Vec<Option<Cow<'a, str>>>),
}

impl Array<'_> {
    fn new(ty: Type) -> Self {
        match ty {
            Type::Uuid => Self::Uuid(Vec::new()),
            Type::Int => Self::Int(Vec::new()),
            Type::Real => Self::Real(Vec::new()),
            Type::Bool => Self::Bool(Vec::new()),
            Type::Text => Self::Text(Vec::new()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Uuid(v) => v.len(),
            Self::Int(v) => v.len(),
            Self::Real(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Text(v) => v.len(),
        }
    }

    fn add_to(&self, args: &mut PgArguments) -> Result<(), BoxDynError> {
        match self {
            Self::Uuid(v) => args.add(v),
            Self::Int(v) => args.add(v),
            Self::Real(v) => args.add(v),
            Self::Bool(v) => args.add(v),
            Self::Text(v) => args.add(v),
        }
    }

    fn write_json(&self, row: usize, out: &mut String) -> Result<(), BoxDynError> {
        match self {
            Self::Uuid(v) => match &v[row] {
                Some(id) => write!(out, "\"{}\"", id.simple())?,
                None => out.push_str("null"),
            },
            Self::Int(v) => match v[row] {
                Some(n) => write!(out, "{n}")?,
                None => out.push_str("null"),
            },
            // JSON has no infinities; nothing here makes any.
            Self::Real(v) => match v[row] {
                Some(n) if n.is_finite() => write!(out, "{n:?}")?,
                _ => out.push_str("null"),
            },
            Self::Bool(v) => out.push_str(match v[row] {
                Some(true) => "true",
                Some(false) => "false",
                None => "null",
            }),
            Self::Text(v) => match &v[row] {
                Some(text) => out.push_str(&serde_json::to_string(text)?),
                None => out.push_str("null"),
            },
        }
        Ok(())
    }
}

/// Rows for a set-based statement, pushed cell by cell in the order of the columns.
#[derive(Debug)]
pub(super) struct Bulk<'a> {
    columns: Vec<Array<'a>>,
    at: usize,
}

impl<'a> Bulk<'a> {
    /// `columns` in parts, as they are used in the statement's text.
    pub fn new(columns: &[&[Column]]) -> Self {
        Self { columns: columns.iter().copied().flatten().map(|c| Array::new(c.ty)).collect(), at: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.columns.first().is_none_or(|c| c.len() == 0)
    }

    fn next(&mut self) -> &mut Array<'a> {
        let at = self.at;
        self.at = (at + 1) % self.columns.len();
        &mut self.columns[at]
    }

    pub fn uuid(&mut self, value: impl Into<Option<Uuid>>) -> &mut Self {
        match self.next() {
            Array::Uuid(v) => v.push(value.into()),
            other => debug_assert!(false, "an id for {other:?}"),
        }
        self
    }

    pub fn int(&mut self, value: impl Into<Option<i64>>) -> &mut Self {
        match self.next() {
            Array::Int(v) => v.push(value.into()),
            other => debug_assert!(false, "a number for {other:?}"),
        }
        self
    }

    pub fn real(&mut self, value: impl Into<Option<f64>>) -> &mut Self {
        match self.next() {
            Array::Real(v) => v.push(value.into()),
            other => debug_assert!(false, "a real for {other:?}"),
        }
        self
    }

    pub fn bool(&mut self, value: impl Into<Option<bool>>) -> &mut Self {
        match self.next() {
            Array::Bool(v) => v.push(value.into()),
            other => debug_assert!(false, "a truth value for {other:?}"),
        }
        self
    }

    pub fn text(&mut self, value: impl Into<Cow<'a, str>>) -> &mut Self {
        self.opt_text(Some(value))
    }

    pub fn opt_text(&mut self, value: Option<impl Into<Cow<'a, str>>>) -> &mut Self {
        match self.next() {
            Array::Text(v) => v.push(value.map(Into::into)),
            other => debug_assert!(false, "a text for {other:?}"),
        }
        self
    }

    fn json(&self) -> Result<String, BoxDynError> {
        let rows = self.columns.first().map_or(0, Array::len);
        let mut out = String::with_capacity(2 + rows * self.columns.len() * 12);
        out.push('[');
        for row in 0..rows {
            out.push_str(if row == 0 { "[" } else { ",[" });
            for (i, column) in self.columns.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                column.write_json(row, &mut out)?;
            }
            out.push(']');
        }
        out.push(']');
        Ok(out)
    }
}

#[derive(Debug)]
enum Arg<'a> {
    Int(Option<i64>),
    Text(Option<Cow<'a, str>>),
    Uuid(Option<Uuid>),
    Array(Array<'a>),
    Bulk(Bulk<'a>),
}

/// The parameters of one statement, in order.
#[derive(Debug, Default)]
pub(super) struct Args<'a>(Vec<Arg<'a>>);

impl<'a> Args<'a> {
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, arg: Arg<'a>) -> Self {
        self.0.push(arg);
        self
    }

    /// How many parameters of a statement they fill.
    pub fn params(&self, kind: Kind) -> usize {
        let of = |arg: &Arg<'_>| match arg {
            Arg::Bulk(bulk) => kind.bulk_params(bulk.columns.len()),
            _ => 1,
        };
        self.0.iter().map(of).sum()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn int(self, value: impl Into<Option<i64>>) -> Self {
        self.with(Arg::Int(value.into()))
    }

    pub fn text(self, value: impl Into<Cow<'a, str>>) -> Self {
        self.with(Arg::Text(Some(value.into())))
    }

    pub fn uuid(self, value: impl Into<Option<Uuid>>) -> Self {
        self.with(Arg::Uuid(value.into()))
    }

    pub fn ints(self, values: impl IntoIterator<Item = i64>) -> Self {
        self.with(Arg::Array(Array::Int(values.into_iter().map(Some).collect())))
    }

    pub fn uuids<'i>(self, values: impl IntoIterator<Item = &'i Uuid>) -> Self {
        self.with(Arg::Array(Array::Uuid(values.into_iter().copied().map(Some).collect())))
    }

    pub fn texts<T: AsRef<str> + ?Sized + 'a>(self, values: impl IntoIterator<Item = &'a T>) -> Self {
        self.with(Arg::Array(Array::Text(values.into_iter().map(|v| Some(v.as_ref().into())).collect())))
    }

    pub fn bulk(self, rows: Bulk<'a>) -> Self {
        self.with(Arg::Bulk(rows))
    }

    pub fn for_postgres(self) -> Result<PgArguments, Error> {
        let mut args = PgArguments::default();
        self.0.into_iter().try_for_each(|arg| add_postgres(&mut args, arg)).map_err(encoding)?;
        Ok(args)
    }

    pub fn for_sqlite(self) -> Result<SqliteArguments, Error> {
        let mut args = SqliteArguments::default();
        self.0.into_iter().try_for_each(|arg| add_sqlite(&mut args, arg)).map_err(encoding)?;
        Ok(args)
    }
}

fn encoding(error: BoxDynError) -> Error {
    Error::Other(sqlx::Error::Encode(error))
}

fn add_postgres(args: &mut PgArguments, arg: Arg<'_>) -> Result<(), BoxDynError> {
    match arg {
        Arg::Int(v) => args.add(v),
        Arg::Text(v) => args.add(v),
        Arg::Uuid(v) => args.add(v),
        Arg::Array(array) => array.add_to(args),
        Arg::Bulk(bulk) => bulk.columns.iter().try_for_each(|column| column.add_to(args)),
    }
}

fn add_sqlite(args: &mut SqliteArguments, arg: Arg<'_>) -> Result<(), BoxDynError> {
    match arg {
        Arg::Int(v) => args.add(v),
        Arg::Text(v) => args.add(v.map(Cow::into_owned)),
        Arg::Uuid(v) => args.add(v),
        Arg::Array(array) => {
            let mut json = String::from("[");
            for row in 0..array.len() {
                if row > 0 {
                    json.push(',');
                }
                array.write_json(row, &mut json)?;
            }
            json.push(']');
            args.add(json)
        }
        Arg::Bulk(bulk) => args.add(bulk.json()?),
    }
}
