//! Reads a file into a database, in batches, so that an interrupted import continues where it stopped.
//!
//! The row of the file in `imports` counts the stored rows, and is written by the transaction that stores them. It is kept when the import
//! is finished, so that a second import of the same file changes nothing.

use std::path::Path;

use super::Moved;
use super::begin::{self, Activity, Found, Target};
use super::file::{Head, Line, Reader};
use super::tables::{self, Column, Table};
use crate::Store;
use crate::error::Error;
use crate::opening::open::StoreOptions;
use crate::replicas::counts;
use crate::schema::additions;
use crate::sql::args::Args;
use crate::sql::conn::Conn;
use crate::sql::dialect::statement;

/// What [`Store::import`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    /// The file was imported, with this many rows.
    Rows(u64),
    /// The same file was imported before, so nothing was changed.
    Already,
}

/// The most rows of one transaction, unless this many bytes are reached first.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 4 << 20;

statement!(ADVANCE, "UPDATE imports SET done = done + $2 WHERE id = $1");
statement!(FINISH, "UPDATE imports SET is_finished = true WHERE id = $1");
statement!(COMMIT, "COMMIT");

impl Store {
    /// Reads a file of [`export`](Self::export) into the database, which is created if it does not exist. The whole file is checked before
    /// anything is changed.
    ///
    /// # Errors
    /// [`Error::Setup`] with what to do: the file is damaged or comes from a newer version, a server uses the database, or the database has
    /// other data.
    pub async fn import(options: &StoreOptions, from: &Path, target: Target, tell: impl FnMut(Moved)) -> Result<Imported, Error> {
        let (reader, checked) = check(from).await?;
        let store = Self::open(options).await?;
        let done = store.take_in(reader, &checked, target, tell).await;
        store.close().await;
        done
    }

    async fn take_in(&self, reader: Reader, checked: &Checked, target: Target, tell: impl FnMut(Moved)) -> Result<Imported, Error> {
        let schema = self.schema().await?;
        schema.check()?;
        if checked.head.schema > schema.newest_known() {
            return Err(Error::Setup(format!(
                "{} is of a newer program (migration {}, this one knows {}): import it with that version",
                reader.path.display(),
                checked.head.schema,
                schema.newest_known()
            )));
        }
        let activity = if schema.is_empty() { Activity::default() } else { self.refuse_served().await? };
        additions::refuse(self.pool(), &schema).await?;
        self.migrate().await?;
        let mut conn = self.inner.target.migrator().await?;
        begin::prepare(&mut conn).await?;
        let tables = tables::read(&mut conn).await?;
        let done = match begin::found(&mut conn, &checked.sum, target).await? {
            Found::Finished => return Ok(Imported::Already),
            Found::Interrupted(done) => done,
            Found::Nothing => {
                if target == Target::Empty {
                    begin::refuse_data(&mut conn, &tables).await?;
                }
                begin::begin(&mut conn, &tables, &checked.sum, activity).await?;
                0
            }
        };
        let mut load = Load {
            conn,
            tables,
            activity,
            checked,
            done,
            table: String::new(),
            columns: Vec::new(),
            insert: String::new(),
            batch: Vec::new(),
            bytes: 0,
        };
        load.all(reader, tell).await?;
        let mut missing = self.count_errors().await?;
        missing.leases = missing.leases.max(checked.head.leases);
        let mut conn = load.conn;
        conn.begin().await?;
        counts::add(&mut conn, &missing).await?;
        conn.execute(&FINISH, Args::new().text(checked.sum.as_str())).await?;
        conn.execute(&COMMIT, Args::new()).await?;
        conn.close().await;
        Ok(Imported::Rows(checked.rows))
    }
}

/// A file that was read to its end.
struct Checked {
    head: Head,
    rows: u64,
    sum: String,
}

/// Reads the whole file to check it. Returns the reader at the beginning of the file.
async fn check(from: &Path) -> Result<(Reader, Checked), Error> {
    let mut reader = Reader::open(from)?;
    let mut rows = 0;
    loop {
        match reader.next().await? {
            Line::Row(_) => rows += 1,
            Line::Section(_) => {}
            Line::End(sum) => {
                let checked = Checked { head: reader.head.clone(), rows, sum };
                return Ok((reader.again()?, checked));
            }
        }
    }
}

struct Load<'c> {
    conn: Conn,
    tables: Vec<Table>,
    activity: Activity,
    checked: &'c Checked,
    /// Rows that are stored.
    done: u64,
    /// The table of the section, and its columns in the file.
    table: String,
    columns: Vec<Column>,
    /// The statement for rows of the section.
    insert: String,
    batch: Vec<String>,
    bytes: usize,
}

impl Load<'_> {
    async fn all(&mut self, mut reader: Reader, mut tell: impl FnMut(Moved)) -> Result<(), Error> {
        let mut stored_before = self.done;
        loop {
            match reader.next().await? {
                Line::Section(section) => {
                    self.store(&reader).await?;
                    let table = self.tables.iter().find(|table| table.name == section.table);
                    let table = table.ok_or_else(|| reader.wrong(&format!("there is no table {}", section.table)))?;
                    let columns = table.columns(&section.columns).map_err(|why| reader.wrong(&why))?;
                    self.insert = table.insert(self.conn.kind(), &columns);
                    self.columns = columns.into_iter().cloned().collect();
                    self.table = section.table;
                }
                Line::Row(_) if stored_before > 0 => stored_before -= 1,
                Line::Row(row) => {
                    tables::check(&self.columns, &row).map_err(|why| reader.wrong(&format!("table {}: {why}", self.table)))?;
                    self.bytes += row.len();
                    self.batch.push(row);
                    if self.batch.len() == BATCH || self.bytes >= BATCH_BYTES {
                        self.store(&reader).await?;
                        tell(Moved { rows: self.done, of: self.checked.rows });
                    }
                }
                Line::End(_) => return self.store(&reader).await,
            }
        }
    }

    /// Stores the batch.
    async fn store(&mut self, reader: &Reader) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.batch);
        let count = rows.len();
        self.bytes = 0;
        let stored = self.commit(format!("[{}]", rows.join(",")), i64::try_from(count).unwrap_or(0)).await;
        stored.map_err(|error| match error {
            Error::Conflict(_) | Error::Other(_) => {
                reader.wrong(&format!("a row of the {count} of table {} before it can't be stored: {error}", self.table))
            }
            other => other,
        })?;
        self.done += count as u64;
        Ok(())
    }

    async fn commit(&mut self, rows: String, count: i64) -> Result<(), Error> {
        let conn = &mut self.conn;
        conn.begin().await?;
        self.activity.refuse_mark(conn).await?;
        conn.execute_text(self.insert.clone(), Args::new().text(rows)).await?;
        conn.execute(&ADVANCE, Args::new().text(self.checked.sum.as_str()).int(count)).await?;
        conn.execute(&COMMIT, Args::new()).await?;
        Ok(())
    }
}
