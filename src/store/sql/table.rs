//! Declares the columns of a table once. From one list of names, [`row`] generates their names and types, how a row is written, and how it
//! is read, so that these can't differ in their order.

use crate::error::Error;
use crate::sql::cells::{Cells, Type, Value, Write};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub name: &'static str,
    pub ty: Type,
}

/// The type of rows in a set. PostgreSQL has a composite type with exactly these columns. A set is bound as one array of that type, which
/// takes a third of the time of one array per column.
#[derive(Debug)]
pub(crate) struct RowType {
    /// The table, if these are rows of one.
    pub name: &'static str,
    /// The composite type: `<name>_row`, or a later version such as `<name>_row_2`.
    pub postgres: &'static str,
    pub columns: &'static [Column],
}

impl RowType {
    /// The column names for a SELECT, each with `prefix` (such as `t.`) in front.
    pub(crate) fn names(&self, prefix: &str) -> String {
        let names: Vec<_> = self.columns.iter().map(|c| format!("{prefix}{}", c.name)).collect();
        names.join(", ")
    }

    /// Returns `names`. In a constant, this does not compile if one of the names is not a column.
    pub(crate) const fn only<'n, 't>(&self, names: &'n [&'t str]) -> &'n [&'t str] {
        let mut i = 0;
        while i < names.len() {
            assert!(self.has(names[i]), "not a column of this table");
            i += 1;
        }
        names
    }

    const fn has(&self, name: &str) -> bool {
        let mut i = 0;
        // A constant can compare texts only in this way.
        while i < self.columns.len() && !self.columns[i].name.eq_ignore_ascii_case(name) {
            i += 1;
        }
        i < self.columns.len()
    }

    pub(crate) fn all_but(&self, names: &[&str]) -> Vec<&'static str> {
        let names = self.only(names);
        self.columns.iter().map(|column| column.name).filter(|name| !names.contains(name)).collect()
    }
}

/// A type that can be written as a row.
pub(crate) trait WriteRow<'a> {
    const ROW: &'static RowType;
    /// Adds a value for each column.
    fn cells(self, out: &mut Vec<Value<'a>>);
}

/// A type that can be read from a row.
pub(crate) trait ReadRow: Sized {
    fn read(cells: &mut Cells<'_>) -> Result<Self, Error>;
}

impl<T: ReadRow> ReadRow for std::sync::Arc<T> {
    fn read(cells: &mut Cells<'_>) -> Result<Self, Error> {
        T::read(cells).map(Self::new)
    }
}

/// A column of the type that `write` returns.
pub(crate) const fn column<'a, T: 'a, W: Write<'a>>(name: &'static str, _write: fn(&'a T) -> W) -> Column {
    Column { name, ty: W::TYPE }
}

/// Reads a value that `write` has written.
pub(crate) fn read_back<'a, T: 'a, W: Write<'a>>(cells: &mut Cells<'_>, _write: fn(&'a T) -> W) -> Result<W::Owned, Error> {
    cells.take()
}

/// A part of a row that may be missing. The closure reads the columns with `?`, so the result is `None` if one of them is missing.
pub(crate) fn part<T>(read: impl FnOnce() -> Option<T>) -> Option<T> {
    read()
}

/// Declares the rows of a table, in the order of the columns of the PostgreSQL type after `as`. Most columns are fields of a struct:
///
/// ```text
/// row! { SPEC: tasks as tasks_row of spec: TaskSpec { id, context_id } }
/// ```
///
/// `then { last_seen }` reads fields that a statement returns after the columns. Columns that are not fields are in braces, with the
/// expressions that are written to them, and `read` makes fields of them:
///
/// ```text
/// row! {
///     LEASE: leases as leases_row of lease: PastLease {
///         id, model;
///         { let usage = lease.usage; input_tokens: usage.map(|u| u.input_tokens) }
///     }
///     read { usage: input_tokens.map(|input_tokens| Usage { input_tokens }) }
/// }
/// ```
///
/// A row that is only written is a struct of its own: `row! { struct Label<'a>: task_labels as task_labels_row { key: &'a str } }`. For a
/// row that is only read, the constant contains the names for its SELECT: `row! { NAMES of LeaseRow { id, task_id } }`.
macro_rules! row {
    ($vis:vis struct $Row:ident $(<$a:lifetime>)?: $table:ident as $postgres:ident { $($column:ident: $ty:ty),+ $(,)? }) => {
        $vis struct $Row $(<$a>)? { $(pub $column: $ty),+ }

        impl<'row $(, $a: 'row)?> $crate::sql::table::WriteRow<'row> for $Row $(<$a>)? {
            const ROW: &'static $crate::sql::table::RowType = &$crate::sql::table::RowType {
                name: stringify!($table),
                postgres: stringify!($postgres),
                columns: &[$($crate::sql::table::Column { name: stringify!($column), ty: <$ty as $crate::sql::cells::Write>::TYPE }),+],
            };

            fn cells(self, out: &mut Vec<$crate::sql::cells::Value<'row>>) {
                $(out.push($crate::sql::cells::Write::value(self.$column));)+
            }
        }
    };
    ($vis:vis $NAMES:ident of $Item:ident { $first:ident $(, $field:ident)* $(,)? }) => {
        $vis const $NAMES: &str = concat!(stringify!($first) $(, ", ", stringify!($field))*);

        impl $crate::sql::table::ReadRow for $Item {
            fn read(cells: &mut $crate::sql::cells::Cells<'_>) -> Result<Self, $crate::error::Error> {
                Ok(Self { $first: cells.take()? $(, $field: cells.take()?)* })
            }
        }
    };
    (
        $vis:vis $ROW:ident: $table:ident as $postgres:ident of $item:ident: $Item:ident { $($field:ident),+ $(,)? }
        $(then $more:tt)?
    ) => {
        $crate::sql::table::row! { $vis $ROW: $table as $postgres of $item: $Item { $($field),+; } $(then $more)? }
    };
    (
        $vis:vis $ROW:ident: $table:ident as $postgres:ident of $item:ident: $Item:ident {$(
            $($field:ident),+;
            $({ let $part:ident = $of:expr; $($column:ident: $write:expr),+ $(,)? })*
        )+}
        $(then { $($more:ident),+ })?
        $(read { $($read_field:ident: $read:expr),+ $(,)? })?
    ) => {
        $vis static $ROW: $crate::sql::table::RowType = $crate::sql::table::RowType {
            name: stringify!($table),
            postgres: stringify!($postgres),
            columns: &[$(
                $($crate::sql::table::column(stringify!($field), |$item: &$Item| &$item.$field),)+
                $($($crate::sql::table::column(stringify!($column), |$item: &$Item| { let $part = $of; $write }),)+)*
            )+],
        };

        impl<'row> $crate::sql::table::WriteRow<'row> for &'row $Item {
            const ROW: &'static $crate::sql::table::RowType = &$ROW;

            fn cells(self, out: &mut Vec<$crate::sql::cells::Value<'row>>) {
                let $item = self;
                $(
                    $(out.push($crate::sql::cells::Write::value(&$item.$field));)+
                    $($(out.push($crate::sql::cells::Write::value({ let $part = $of; $write }));)+)*
                )+
            }
        }

        impl $crate::sql::table::ReadRow for $Item {
            fn read(cells: &mut $crate::sql::cells::Cells<'_>) -> Result<Self, $crate::error::Error> {
                $(
                    $(let $field = cells.take()?;)+
                    $($(let $column = $crate::sql::table::read_back(cells, |$item: &$Item| { let $part = $of; $write })?;)+)*
                )+
                $($(let $more = cells.take()?;)+)?
                Ok(Self { $($($field,)+)+ $($($more,)+)? $($($read_field: $read,)+)? })
            }
        }
    };
}
pub(crate) use row;
