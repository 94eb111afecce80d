//! Arguments of statements: single values, arrays, and sets of rows.

use std::borrow::Cow;

use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::postgres::types::PgRecordEncoder;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgBindIterExt as _, PgTypeInfo};
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, Postgres};
use uuid::Uuid;

use crate::error::Error;
use crate::sql::cells::Value;
use crate::sql::table::{RowType, WriteRow};

/// Rows for a set-based statement.
#[derive(Debug)]
pub(crate) struct Bulk<'a> {
    ty: &'static RowType,
    values: Vec<Value<'a>>,
}

impl<'a> Bulk<'a> {
    pub(crate) fn of<R: WriteRow<'a>>(rows: impl IntoIterator<Item = R>) -> Self {
        let mut values = Vec::new();
        rows.into_iter().for_each(|row| row.cells(&mut values));
        Self { ty: R::ROW, values }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
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

/// One row as an argument for PostgreSQL.
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
                Value::Bytes(v) => record.encode(v.as_deref())?,
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

/// Keys to look up: an array on PostgreSQL, a JSON text on SQLite.
#[derive(Debug)]
enum Array<'a> {
    Uuid(Vec<Uuid>),
    Int(Vec<i64>),
    Text(Vec<Cow<'a, str>>),
}

impl Array<'_> {
    fn json(&self) -> Result<String, BoxDynError> {
        Ok(match self {
            // UUIDs are written without hyphens, because `unhex` does not accept them.
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
    Bytes(&'a [u8]),
    Array(Array<'a>),
    Bulk(Bulk<'a>),
}

/// The parameters of one statement, in order.
#[derive(Debug, Default)]
pub(crate) struct Args<'a>(Vec<Arg<'a>>);

impl<'a> Args<'a> {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn with(mut self, arg: Arg<'a>) -> Self {
        self.0.push(arg);
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn int(self, value: impl Into<Option<i64>>) -> Self {
        self.with(Arg::Int(value.into()))
    }

    pub(crate) fn text(self, value: impl Into<Cow<'a, str>>) -> Self {
        self.with(Arg::Text(Some(value.into())))
    }

    pub(crate) fn uuid(self, value: impl Into<Option<Uuid>>) -> Self {
        self.with(Arg::Uuid(value.into()))
    }

    pub(crate) fn bytes(self, value: &'a [u8]) -> Self {
        self.with(Arg::Bytes(value))
    }

    pub(crate) fn ints(self, values: impl IntoIterator<Item = i64>) -> Self {
        self.with(Arg::Array(Array::Int(values.into_iter().collect())))
    }

    pub(crate) fn uuids<'i>(self, values: impl IntoIterator<Item = &'i Uuid>) -> Self {
        self.with(Arg::Array(Array::Uuid(values.into_iter().copied().collect())))
    }

    pub(crate) fn texts<T: AsRef<str> + ?Sized + 'a>(self, values: impl IntoIterator<Item = &'a T>) -> Self {
        self.with(Arg::Array(Array::Text(values.into_iter().map(|v| v.as_ref().into()).collect())))
    }

    pub(crate) fn bulk(self, rows: Bulk<'a>) -> Self {
        self.with(Arg::Bulk(rows))
    }

    pub(crate) fn for_postgres(self) -> Result<PgArguments, Error> {
        let mut args = PgArguments::default();
        self.0.into_iter().try_for_each(|arg| add_postgres(&mut args, arg)).map_err(encoding)?;
        Ok(args)
    }

    pub(crate) fn for_sqlite(self) -> Result<SqliteArguments, Error> {
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
        Arg::Bytes(v) => args.add(v),
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
        Arg::Bytes(v) => args.add(v.to_vec()),
        Arg::Array(array) => args.add(array.json()?),
        Arg::Bulk(bulk) => args.add(bulk.json()?),
    }
}
