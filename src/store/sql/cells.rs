//! Cells: how each type is written to and read from a column of a row.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use sqlx::error::BoxDynError;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Postgres, Row as _, Sqlite, Type as SqlType};
use uuid::Uuid;

use crate::error::Error;
use bloom_core::api_key;
use bloom_core::audit::{Action, EntityType};
use bloom_core::control_plane::{JobAction, JobStatus, Source};
use bloom_core::event::EventKind;
use bloom_core::file::{FileKind, Input};
use bloom_core::origin::Origin;
use bloom_core::pause::Pause;
use bloom_core::project::{CloneStatus, PushMode};
use bloom_core::question::Question;
use bloom_core::task::{Format, LeaseStatus, Outcome, Parked, Reason, Session, Status};
use bloom_core::trace_context::TraceContext;
use bloom_core::worker::{Capabilities, DispatchMode, WorkerStatus};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Uuid,
    Int,
    Real,
    Bool,
    Text,
    Bytes,
}

#[derive(Debug)]
pub(crate) enum Value<'a> {
    Uuid(Option<Uuid>),
    Int(Option<i64>),
    Real(Option<f64>),
    Bool(Option<bool>),
    Text(Option<Cow<'a, str>>),
    Bytes(Option<Vec<u8>>),
}

impl Value<'_> {
    fn null(ty: Type) -> Self {
        match ty {
            Type::Uuid => Self::Uuid(None),
            Type::Int => Self::Int(None),
            Type::Real => Self::Real(None),
            Type::Bool => Self::Bool(None),
            Type::Text => Self::Text(None),
            Type::Bytes => Self::Bytes(None),
        }
    }

    pub(crate) fn write_json(&self, out: &mut String) -> Result<(), BoxDynError> {
        match self {
            Self::Uuid(Some(id)) => push_uuid(out, *id),
            Self::Int(Some(n)) => write!(out, "{n}")?,
            // JSON has no infinities, and no value is infinite.
            Self::Real(Some(n)) if n.is_finite() => write!(out, "{n:?}")?,
            Self::Bool(Some(b)) => out.push_str(if *b { "true" } else { "false" }),
            Self::Text(Some(text)) => out.push_str(&serde_json::to_string(text)?),
            Self::Bytes(Some(bytes)) => push_bytes(out, bytes)?,
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

/// Writes bytes in hexadecimal, which both databases can decode.
fn push_bytes(json: &mut String, bytes: &[u8]) -> std::fmt::Result {
    json.reserve(2 + bytes.len() * 2);
    json.push('"');
    bytes.iter().try_for_each(|byte| write!(json, "{byte:02x}"))?;
    json.push('"');
    Ok(())
}

/// A type that can be written to a cell.
pub(crate) trait Write<'a> {
    const TYPE: Type;
    /// The type with which it is read back.
    type Owned: Read;
    fn value(self) -> Value<'a>;
}

/// A type that can be read from a cell.
pub(crate) trait Read: Sized {
    type Stored: Stored;
    fn of(stored: Self::Stored) -> Result<Self, Error>;
}

/// A type that both databases return.
pub(crate) trait Stored: for<'r> Decode<'r, Sqlite> + SqlType<Sqlite> + for<'r> Decode<'r, Postgres> + SqlType<Postgres> {}
impl<T> Stored for T where T: for<'r> Decode<'r, Sqlite> + SqlType<Sqlite> + for<'r> Decode<'r, Postgres> + SqlType<Postgres> {}

macro_rules! stored_as_is {
    ($($rust:ty = $ty:ident),+) => {$(
        impl<'a> Write<'a> for $rust {
            const TYPE: Type = Type::$ty;
            type Owned = Self;
            fn value(self) -> Value<'a> {
                Value::$ty(Some(self))
            }
        }
        impl<'a> Write<'a> for &'a $rust {
            const TYPE: Type = Type::$ty;
            type Owned = $rust;
            fn value(self) -> Value<'a> {
                Value::$ty(Some(*self))
            }
        }
        impl Read for $rust {
            type Stored = Self;
            fn of(stored: Self) -> Result<Self, Error> {
                Ok(stored)
            }
        }
    )+};
}
stored_as_is!(Uuid = Uuid, i64 = Int, f64 = Real, bool = Bool);

/// A chunk of a file. It is written as an argument of its own, not in a row.
impl Read for Vec<u8> {
    type Stored = Self;
    fn of(stored: Self) -> Result<Self, Error> {
        Ok(stored)
    }
}

/// The type of PostgreSQL's `octet_length` and of integer literals. No column has this type.
impl Read for i32 {
    type Stored = Self;
    fn of(stored: Self) -> Result<Self, Error> {
        Ok(stored)
    }
}

macro_rules! stored_as_text {
    ($($rust:ty, $self:ident => $text:expr, $stored:ident => $read:expr;)+) => {$(
        impl<'a> Write<'a> for &'a $rust {
            const TYPE: Type = Type::Text;
            type Owned = $rust;
            fn value($self) -> Value<'a> {
                Value::Text(Some($text))
            }
        }
        impl Read for $rust {
            type Stored = String;
            fn of($stored: String) -> Result<Self, Error> {
                $read
            }
        }
    )+};
}
stored_as_text!(
    String, self => Cow::Borrowed(self), stored => Ok(stored);
    TraceContext, self => Cow::Owned(self.to_string()), stored => stored.parse().map_err(|why| Error::Corrupt(format!("'{stored}': {why}")));
);

/// Enumerations that are stored as words.
macro_rules! stored_as_word {
    ($($rust:ty),+) => {
        stored_as_text!($(
            $rust,
            self => Cow::Borrowed(self.as_str()),
            stored => Self::parse(&stored).ok_or_else(|| Error::Corrupt(format!("unknown word '{stored}'")));
        )+);
    };
}
stored_as_word!(Status, Session, Format, Reason, Parked, Origin, LeaseStatus, Outcome, EventKind, FileKind);
stored_as_word!(WorkerStatus, DispatchMode, Action, EntityType, api_key::Scope, CloneStatus, PushMode, JobAction, JobStatus, Source);

macro_rules! stored_as_json {
    ($($rust:ty),+) => {
        stored_as_text!($(
            $rust,
            // This can't fail, because all of these types have a JSON form.
            self => Cow::Owned(serde_json::to_string(self).unwrap_or_default()),
            stored => serde_json::from_str(&stored).map_err(|error| Error::Corrupt(error.to_string()));
        )+);
    };
}
stored_as_json!(Vec<String>, Vec<Uuid>, BTreeMap<String, String>, Capabilities, Vec<Pause>, Question, Vec<Input>);

impl<'a> Write<'a> for &'a str {
    const TYPE: Type = Type::Text;
    type Owned = String;
    fn value(self) -> Value<'a> {
        Value::Text(Some(Cow::Borrowed(self)))
    }
}

impl<'a, T: Write<'a>> Write<'a> for Option<T> {
    const TYPE: Type = T::TYPE;
    type Owned = Option<T::Owned>;
    fn value(self) -> Value<'a> {
        self.map_or(Value::null(T::TYPE), T::value)
    }
}

impl<'a, T> Write<'a> for &'a Option<T>
where
    &'a T: Write<'a>,
{
    const TYPE: Type = <&'a T as Write<'a>>::TYPE;
    type Owned = Option<<&'a T as Write<'a>>::Owned>;
    fn value(self) -> Value<'a> {
        self.as_ref().value()
    }
}

impl<T: Read> Read for Option<T> {
    type Stored = Option<T::Stored>;
    fn of(stored: Self::Stored) -> Result<Self, Error> {
        stored.map(T::of).transpose()
    }
}

pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Row {
    pub(crate) fn cells(&self) -> Cells<'_> {
        Cells { row: self, at: 0 }
    }

    fn get<T: Read>(&self, at: usize) -> Result<T, Error> {
        T::of(match self {
            Self::Sqlite(row) => row.try_get(at)?,
            Self::Postgres(row) => row.try_get(at)?,
        })
    }
}

/// Reads a row's columns from left to right.
pub(crate) struct Cells<'r> {
    row: &'r Row,
    at: usize,
}

impl Cells<'_> {
    pub(crate) fn take<T: Read>(&mut self) -> Result<T, Error> {
        let at = self.at;
        self.at += 1;
        self.row.get(at)
    }
}
