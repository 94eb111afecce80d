//! Writes rows of the earlier runtime to the export, in the form in which this program stores them.

use std::collections::HashSet;
use std::fs::File;

use super::super::Moved;
use super::super::export::TELL_EVERY;
use super::super::file::Writer;
use super::fields::Fields;
use super::{FromEarlier, REASONS, copies};
use crate::clock::wall_clock;
use crate::error::Error;
use crate::sql::cells::Row;
use crate::sql::conn::Conn;
use crate::sql::table::WriteRow;
use bloom_core::ids::IdSource;

/// The last migration that the rows written here need.
const SCHEMA: i64 = 1;

/// Why the second row with the same id or key can't be exported.
pub(super) const COPY: &str = "is that of another row, too";

pub(super) struct Sink<'f> {
    out: Writer<'f>,
    /// The table of the last row that was written.
    table: &'static str,
    of: u64,
    read: u64,
    tell: &'f mut dyn FnMut(Moved),
    done: FromEarlier,
    /// The ids of tasks that are left out, as the earlier runtime writes them.
    pub refused_tasks: HashSet<String>,
    /// Makes the ids of audit entries that the export adds.
    pub ids: IdSource,
}

impl<'f> Sink<'f> {
    pub(crate) fn new(file: &'f File, of: u64, tell: &'f mut dyn FnMut(Moved)) -> Result<Self, Error> {
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
        let (out, ids) = (Writer::new(file, SCHEMA, 0)?, IdSource::new(wall_clock(), seed));
        Ok(Self { out, table: "", of, read: 0, tell, done: FromEarlier::default(), refused_tasks: HashSet::new(), ids })
    }

    pub(crate) fn add<'r, R: WriteRow<'r>>(&mut self, row: R) -> Result<(), Error> {
        if self.table != R::ROW.name {
            self.table = R::ROW.name;
            self.out.section(self.table, R::ROW.columns.iter().map(|column| column.name.to_owned()).collect())?;
        }
        let mut cells = Vec::new();
        row.cells(&mut cells);
        self.out.row(&cells)
    }

    /// Reads the rows of a statement, each of which is one JSON object, and passes them to the callback. Records rows that the callback
    /// refuses.
    pub(crate) async fn take(
        &mut self,
        conn: &mut Conn,
        table: &'static str,
        sql: &str,
        mut row: impl FnMut(&mut Self, &Fields) -> Result<Result<(), String>, Error>,
    ) -> Result<(), Error> {
        conn.each(sql.to_owned(), |found: Row| {
            let text: String = found.cells().take()?;
            let fields = Fields::read(table, &text)?;
            if let Err(why) = row(self, &fields)? {
                self.leave_out(why);
            }
            self.read += 1;
            if self.read.is_multiple_of(TELL_EVERY) {
                (self.tell)(Moved { rows: self.read, of: self.of.max(self.read) });
            }
            Ok(())
        })
        .await
    }

    /// Records the rows that [`copies::first`] leaves out.
    pub(crate) async fn refuse_copies(&mut self, conn: &mut Conn, table: &'static str) -> Result<(), Error> {
        self.take(conn, table, &copies::others(table), |_, row| Ok(row.wrong("id", COPY))).await
    }

    /// Like [`take`](Self::take), for rows that have already been counted.
    pub(crate) async fn take_silently(
        &mut self,
        conn: &mut Conn,
        table: &'static str,
        sql: &str,
        mut row: impl FnMut(&mut Self, &Fields) -> Result<(), Error>,
    ) -> Result<(), Error> {
        conn.each(sql.to_owned(), |found: Row| {
            let text: String = found.cells().take()?;
            row(self, &Fields::read(table, &text)?)
        })
        .await
    }

    fn leave_out(&mut self, why: String) {
        self.done.left_out += 1;
        if self.done.reasons.len() < REASONS {
            self.done.reasons.push(why);
        }
    }

    pub(crate) fn note_queued_again(&mut self) {
        self.done.queued_again += 1;
    }

    pub(crate) fn end(self) -> Result<FromEarlier, Error> {
        let rows = self.out.end()?;
        Ok(FromEarlier { rows, ..self.done })
    }
}
