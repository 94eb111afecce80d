//! Reads a file into a database, in batches, so that an import that was interrupted goes on where it stopped.
//!
//! The row of the file in `imports` counts what is stored, and is written by the transaction that stores it. It is kept when the import is
//! finished: a second import of the same file changes nothing.

use std::path::Path;
use std::time::Duration;

use super::Moved;
use super::export::TELL_EVERY;
use super::file::{Head, Line, Reader, Section};
use super::tables::{self, Table};
use crate::args::Args;
use crate::cells::Row;
use crate::conn::Conn;
use crate::dialect::{Kind, statement};
use crate::error::Error;
use crate::open::StoreOptions;
use crate::{Store, all, counts, one};

/// What may be in the database that an import goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nothing, or what an interrupted import of the same file has left.
    Empty,
    /// Anything. It is removed first.
    Replaced,
}

/// What [`Store::import`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    Rows(u64),
    /// The same file was imported before, so nothing was changed.
    Already,
}

/// Rows of one transaction, unless these bytes come first.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 4 << 20;
/// Each server writes its service mark twice a second.
const MARKS_WITHIN: Duration = Duration::from_secs(2);

statement!(LOCK, |d| "SELECT {}", d.try_lock_import());
statement!(IMPORTS, "SELECT id, done, is_finished FROM imports");
statement!(FORGET, "DELETE FROM imports");
statement!(ENTER, "INSERT INTO imports (id, done, is_finished) VALUES ($1, 0, false)");
statement!(ADVANCE, "UPDATE imports SET done = done + $2 WHERE id = $1");
statement!(FINISH, "UPDATE imports SET is_finished = true WHERE id = $1");
statement!(UNFINISHED, "SELECT count(*) FROM imports WHERE NOT is_finished");
statement!(MARK, "SELECT at FROM served WHERE id = 1");
statement!(COMMIT, "COMMIT");

impl Store {
    /// Reads a file of [`export`](Self::export) into the database, which is created if it does not exist. The whole file is checked before
    /// anything is changed.
    ///
    /// # Errors
    /// [`Error::Setup`] with what to do: the file is damaged, or of a newer version; a server uses the database, or it has other data.
    pub async fn import(options: &StoreOptions, from: &Path, target: Target, tell: impl FnMut(Moved)) -> Result<Imported, Error> {
        let checked = check(from).await?;
        let store = Self::open(options).await?;
        let done = store.take_in(from, &checked, target, tell).await;
        store.close().await;
        done
    }

    /// # Errors
    /// [`Error::Setup`], if an import into this database has begun and not finished.
    pub async fn refuse_unfinished_import(&self) -> Result<(), Error> {
        let unfinished: i64 = one(&self.control().fetch(&UNFINISHED, Args::new()).await?, |row| row.take())?;
        if unfinished == 0 {
            return Ok(());
        }
        Err(Error::Setup("an import into this database was interrupted: repeat `bloom-runtime import` with the same file".into()))
    }

    async fn take_in(&self, from: &Path, checked: &Checked, target: Target, tell: impl FnMut(Moved)) -> Result<Imported, Error> {
        let schema = self.schema().await?;
        schema.check()?;
        if checked.head.schema > schema.newest_known() {
            return Err(Error::Setup(format!(
                "{} is of a newer program (migration {}, this one knows {}): import it with that version",
                from.display(),
                checked.head.schema,
                schema.newest_known()
            )));
        }
        if !schema.is_empty() {
            self.refuse_served().await?;
        }
        self.migrate().await?;
        let mut conn = self.inner.target.migrator().await?;
        let mark = prepare(&mut conn).await?;
        let tables = tables::read(&mut conn).await?;
        let done = match found(&mut conn, &checked.sum, target).await? {
            Found::Finished => return Ok(Imported::Already),
            Found::Interrupted(done) => done,
            Found::Nothing => {
                if target == Target::Empty {
                    refuse_data(&mut conn, &tables).await?;
                }
                begin(&mut conn, &tables, &checked.sum).await?;
                0
            }
        };
        let mut load = Load { conn, tables, mark, checked, done, section: None, insert: String::new(), batch: Vec::new(), bytes: 0 };
        load.all(from, tell).await?;
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

    /// An SQLite file has a lock that its server holds; of PostgreSQL, servers are noticed by their marks.
    async fn refuse_served(&self) -> Result<(), Error> {
        if self.kind() == Kind::Sqlite {
            return Ok(());
        }
        let mark = async || one::<i64>(&self.control().fetch(&MARK, Args::new()).await?, |row| row.take());
        let before = mark().await?;
        tokio::time::sleep(MARKS_WITHIN).await;
        if mark().await? == before { Ok(()) } else { Err(served()) }
    }
}

fn served() -> Error {
    Error::Setup("a server uses this database: stop all its servers first, and repeat this".into())
}

/// A file that was read to its end.
struct Checked {
    head: Head,
    rows: u64,
    sum: String,
}

async fn check(from: &Path) -> Result<Checked, Error> {
    let mut reader = Reader::open(from)?;
    let mut rows = 0;
    loop {
        match reader.next()? {
            Line::Row(_) => rows += 1,
            Line::Section(_) => {}
            Line::End(sum) => return Ok(Checked { head: reader.head, rows, sum }),
        }
        // A signal is noticed only between two polls.
        if rows.is_multiple_of(TELL_EVERY) {
            tokio::task::yield_now().await;
        }
    }
}

/// Returns the service mark, which does not change as long as no server runs.
async fn prepare(conn: &mut Conn) -> Result<i64, Error> {
    if conn.kind() == Kind::Sqlite {
        conn.execute_text("PRAGMA wal_autocheckpoint = 1000".into(), Args::new()).await?;
    }
    if !one::<bool>(&conn.fetch(&LOCK, Args::new()).await?, |row| row.take())? {
        return Err(Error::Setup("another import into this database runs: wait until it has ended".into()));
    }
    one(&conn.fetch(&MARK, Args::new()).await?, |row| row.take())
}

/// What earlier imports have left.
enum Found {
    Nothing,
    Finished,
    /// So many rows are stored.
    Interrupted(u64),
}

async fn found(conn: &mut Conn, sum: &str, target: Target) -> Result<Found, Error> {
    if target == Target::Replaced {
        return Ok(Found::Nothing);
    }
    let imports: Vec<(String, i64, bool)> =
        all(&conn.fetch(&IMPORTS, Args::new()).await?, |row| Ok((row.take()?, row.take()?, row.take()?)))?;
    for (id, done, is_finished) in imports {
        match (id == sum, is_finished) {
            (true, true) => return Ok(Found::Finished),
            (true, false) => return Ok(Found::Interrupted(u64::try_from(done).unwrap_or(0))),
            (false, true) => {}
            (false, false) => {
                return Err(Error::Setup(
                    "an import of another file into this database was interrupted: repeat it with that file, or give --replace to remove \
                     everything and to begin with this one"
                        .into(),
                ));
            }
        }
    }
    Ok(Found::Nothing)
}

/// The row of all queues exists from the start.
async fn refuse_data(conn: &mut Conn, tables: &[Table]) -> Result<(), Error> {
    for Table { name, .. } in tables {
        let but = if name == "queues" { "WHERE agent_slug <> ''" } else { "" };
        let mut has_rows = false;
        let note = |_: Row| {
            has_rows = true;
            Ok(())
        };
        conn.each(format!("SELECT 1 FROM {name} {but} LIMIT 1"), note).await?;
        if has_rows {
            return Err(Error::Setup(format!(
                "the database has data already, for example in its table {name}: import into an empty one, or give --replace to remove \
                 everything that it has (make a backup first)"
            )));
        }
    }
    Ok(())
}

/// Empties the tables and notes that the import has begun.
async fn begin(conn: &mut Conn, tables: &[Table], sum: &str) -> Result<(), Error> {
    conn.begin().await?;
    conn.execute(&FORGET, Args::new()).await?;
    for table in tables.iter().map(|table| table.name.as_str()).chain(["counts", "batches"]) {
        conn.execute_text(conn.kind().empty(table), Args::new()).await?;
    }
    conn.execute(&ENTER, Args::new().text(sum)).await?;
    conn.execute(&COMMIT, Args::new()).await?;
    Ok(())
}

struct Load<'c> {
    conn: Conn,
    tables: Vec<Table>,
    mark: i64,
    checked: &'c Checked,
    /// Rows that are stored.
    done: u64,
    section: Option<Section>,
    /// The statement for rows of the section.
    insert: String,
    batch: Vec<String>,
    bytes: usize,
}

impl Load<'_> {
    async fn all(&mut self, from: &Path, mut tell: impl FnMut(Moved)) -> Result<(), Error> {
        let mut reader = Reader::open(from)?;
        let mut stored_before = self.done;
        loop {
            match reader.next()? {
                Line::Section(section) => {
                    self.store(&reader).await?;
                    let table = self.tables.iter().find(|table| table.name == section.table);
                    let table = table.ok_or_else(|| reader.wrong(&format!("there is no table {}", section.table)))?;
                    let insert = table.insert(self.conn.kind(), &section.columns);
                    self.insert = insert.map_err(|column| reader.wrong(&format!("table {} has no column {column}", section.table)))?;
                    self.section = Some(section);
                }
                Line::Row(_) if stored_before > 0 => stored_before -= 1,
                Line::Row(row) => {
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
        let table = self.section.as_ref().map(|section| section.table.as_str()).unwrap_or_default();
        stored.map_err(|error| match error {
            Error::Conflict(_) | Error::Other(_) => {
                reader.wrong(&format!("a row of the {count} of table {table} before it can't be stored: {error}"))
            }
            other => other,
        })?;
        self.done += count as u64;
        Ok(())
    }

    async fn commit(&mut self, rows: String, count: i64) -> Result<(), Error> {
        let conn = &mut self.conn;
        conn.begin().await?;
        // A server that was started meanwhile would serve a part of the data.
        if one::<i64>(&conn.fetch(&MARK, Args::new()).await?, |row| row.take())? != self.mark {
            return Err(served());
        }
        conn.execute_text(self.insert.clone(), Args::new().text(rows)).await?;
        conn.execute(&ADVANCE, Args::new().text(self.checked.sum.as_str()).int(count)).await?;
        conn.execute(&COMMIT, Args::new()).await?;
        Ok(())
    }
}
