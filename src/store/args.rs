//! Values on their way into a statement: single ones, arrays, and whole sets of rows.

use std::borrow::Cow;
use std::fmt::Write as _;

use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::postgres::types::PgRecordEncoder;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgBindIterExt as _, PgTypeInfo};
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, Postgres};
use uuid::Uuid;

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

/// `columns!(uuid id, text name)`: what rows of a type have, in order.
macro_rules! columns {
    ($($ty:ident $name:ident),+ $(,)?) => { &[$($ty(stringify!($name))),+] };
}
pub(super) use columns;

/// What sets of rows are made of. PostgreSQL knows it as a composite type of exactly these columns: a set is bound as one array of that,
/// which takes a third of the time of an array for each column.
#[derive(Debug)]
pub(super) struct RowType {
    /// The table, for those that are a table's rows.
    pub name: &'static str,
    /// The composite type: `<name>_row`, or a later shape of it.
    pub postgres: &'static str,
    /// The first is the key.
    pub columns: &'static [Column],
}

/// `row_type!(settings: text key, text value)`; of a shape with a name of its own, `row_type!(workers as workers_row_2: …)`.
macro_rules! row_type {
    ($name:ident as $postgres:ident: $($columns:tt)+) => {
        $crate::args::RowType {
            name: stringify!($name),
            postgres: stringify!($postgres),
            columns: $crate::args::columns!($($columns)+),
        }
    };
    ($name:ident: $($columns:tt)+) => {
        $crate::args::RowType {
            name: stringify!($name),
            postgres: concat!(stringify!($name), "_row"),
            columns: $crate::args::columns!($($columns)+),
        }
    };
}
pub(super) use row_type;

impl RowType {
    /// Column names for a SELECT, each behind `prefix` (`t.`).
    pub fn names(&self, prefix: &str) -> String {
        let names: Vec<_> = self.columns.iter().map(|c| format!("{prefix}{}", c.name)).collect();
        names.join(", ")
    }
}

#[derive(Debug)]
enum Value<'a> {
    Uuid(Option<Uuid>),
    Int(Option<i64>),
    Real(Option<f64>),
    Bool(Option<bool>),
    Text(Option<Cow<'a, str>>),
}

impl Value<'_> {
    fn ty(&self) -> Type {
        match self {
            Self::Uuid(_) => Type::Uuid,
            Self::Int(_) => Type::Int,
            Self::Real(_) => Type::Real,
            Self::Bool(_) => Type::Bool,
            Self::Text(_) => Type::Text,
        }
    }

    fn write_json(&self, out: &mut String) -> Result<(), BoxDynError> {
        match self {
            Self::Uuid(Some(id)) => push_uuid(out, *id),
            Self::Int(Some(n)) => write!(out, "{n}")?,
            // JSON has no infinities; nothing here makes any.
            Self::Real(Some(n)) if n.is_finite() => write!(out, "{n:?}")?,
            Self::Bool(Some(b)) => out.push_str(if *b { "true" } else { "false" }),
            Self::Text(Some(text)) => out.push_str(&serde_json::to_string(text)?),
            _ => out.push_str("null"),
        }
        Ok(())
    }
}

fn push_uuid(json: &mut String, id: Uuid) {
    json.push('"');
    json.push_str(id.simple().encode_lower(&mut Uuid::encode_buffer()));
    json.push('"');
}

/// Rows for a set-based statement, pushed value by value in the order of the columns.
#[derive(Debug)]
pub(super) struct Bulk<'a> {
    ty: &'static RowType,
    values: Vec<Value<'a>>,
}

impl<'a> Bulk<'a> {
    pub fn new(ty: &'static RowType) -> Self {
        Self { ty, values: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn push(&mut self, value: Value<'a>) -> &mut Self {
        let column = &self.ty.columns[self.values.len() % self.ty.columns.len()];
        debug_assert_eq!(column.ty, value.ty(), "{} of {}", column.name, self.ty.name);
        self.values.push(value);
        self
    }

    pub fn uuid(&mut self, value: impl Into<Option<Uuid>>) -> &mut Self {
        self.push(Value::Uuid(value.into()))
    }

    pub fn int(&mut self, value: impl Into<Option<i64>>) -> &mut Self {
        self.push(Value::Int(value.into()))
    }

    pub fn real(&mut self, value: impl Into<Option<f64>>) -> &mut Self {
        self.push(Value::Real(value.into()))
    }

    pub fn bool(&mut self, value: impl Into<Option<bool>>) -> &mut Self {
        self.push(Value::Bool(value.into()))
    }

    pub fn text(&mut self, value: impl Into<Cow<'a, str>>) -> &mut Self {
        self.opt_text(Some(value))
    }

    pub fn opt_text(&mut self, value: Option<impl Into<Cow<'a, str>>>) -> &mut Self {
        self.push(Value::Text(value.map(Into::into)))
    }

    fn rows(&self) -> impl Iterator<Item = Record<'_>> {
        self.values.chunks(self.ty.columns.len()).map(|values| Record { ty: self.ty.postgres, values })
    }

    fn json(&self) -> Result<String, BoxDynError> {
        let mut out = String::with_capacity(2 + self.values.len() * 12);
        out.push('[');
        for (i, row) in self.rows().enumerate() {
            out.push_str(if i == 0 { "[" } else { ",[" });
            for (i, value) in row.values.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                value.write_json(&mut out)?;
            }
            out.push(']');
        }
        out.push(']');
        Ok(out)
    }
}

/// One row on its way to PostgreSQL.
struct Record<'r> {
    ty: &'static str,
    values: &'r [Value<'r>],
}

impl sqlx::Type<Postgres> for Record<'_> {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("record")
    }
}

impl Encode<'_, Postgres> for Record<'_> {
    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_name(self.ty))
    }

    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let mut record = PgRecordEncoder::new(buf);
        for value in self.values {
            match value {
                Value::Uuid(v) => record.encode(*v)?,
                Value::Int(v) => record.encode(*v)?,
                Value::Real(v) => record.encode(*v)?,
                Value::Bool(v) => record.encode(*v)?,
                Value::Text(v) => record.encode(v.as_deref())?,
            };
        }
        record.finish();
        Ok(IsNull::No)
    }
}

impl sqlx::Type<Postgres> for Bulk<'_> {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("record[]")
    }
}

impl Encode<'_, Postgres> for Bulk<'_> {
    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::array_of(self.ty.postgres))
    }

    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let rows: Vec<_> = self.rows().collect();
        rows.iter().bind_iter().encode(buf)
    }
}

/// Keys to look for: a PostgreSQL array, a JSON text on SQLite.
#[derive(Debug)]
enum Array<'a> {
    Uuid(Vec<Uuid>),
    Int(Vec<i64>),
    Text(Vec<Cow<'a, str>>),
}

impl Array<'_> {
    fn json(&self) -> Result<String, BoxDynError> {
        Ok(match self {
            // In the form that `unhex` reads.
            Self::Uuid(ids) => serde_json::to_string(&ids.iter().map(Uuid::as_simple).collect::<Vec<_>>())?,
            Self::Int(ints) => serde_json::to_string(ints)?,
            Self::Text(texts) => serde_json::to_string(texts)?,
        })
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
        self.with(Arg::Array(Array::Int(values.into_iter().collect())))
    }

    pub fn uuids<'i>(self, values: impl IntoIterator<Item = &'i Uuid>) -> Self {
        self.with(Arg::Array(Array::Uuid(values.into_iter().copied().collect())))
    }

    pub fn texts<T: AsRef<str> + ?Sized + 'a>(self, values: impl IntoIterator<Item = &'a T>) -> Self {
        self.with(Arg::Array(Array::Text(values.into_iter().map(|v| v.as_ref().into()).collect())))
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
        Arg::Array(Array::Uuid(v)) => args.add(v),
        Arg::Array(Array::Int(v)) => args.add(v),
        Arg::Array(Array::Text(v)) => args.add(v),
        Arg::Bulk(bulk) => args.add(bulk),
    }
}

fn add_sqlite(args: &mut SqliteArguments, arg: Arg<'_>) -> Result<(), BoxDynError> {
    match arg {
        Arg::Int(v) => args.add(v),
        Arg::Text(v) => args.add(v.map(Cow::into_owned)),
        Arg::Uuid(v) => args.add(v),
        Arg::Array(array) => args.add(array.json()?),
        Arg::Bulk(bulk) => args.add(bulk.json()?),
    }
}
