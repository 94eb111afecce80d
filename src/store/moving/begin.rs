//! Decides whether an import into a database is allowed, and begins it.
//!
//! On PostgreSQL, servers may start or wake up at any moment. An import begins in one transaction that locks out their writers, compares
//! their activity with an earlier observation, and removes their writers. So an active server is noticed before anything is changed. A
//! silent server can't commit any more: its batches need the row of their writer, and it gets no new row, because it began to serve before
//! the import (see `REGISTER` in `batch::writer`, and `MARK_SERVED` in `replicas::leader`). Such a server stops.

use std::time::Duration;

use super::tables::Table;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::Row;
use crate::sql::conn::Conn;
use crate::sql::dialect::{Kind, statement};
use crate::{Store, all, one};

/// What the target database of an import may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nothing, except for what an interrupted import of the same file has left.
    Empty,
    /// Anything. It is removed first.
    Replaced,
}

/// Each server writes its service mark twice a second.
const MARKS_WITHIN: Duration = Duration::from_secs(2);

statement!(LOCK, |d| "SELECT {}", d.try_lock_import());
statement!(LOCK_WRITERS, |d| "{}", d.lock_writers());
statement!(IMPORTS, "SELECT id, done, is_finished FROM imports");
statement!(NEXT_NUMBER, "SELECT coalesce(max(number), 0) + 1 FROM imports");
statement!(FORGET, "DELETE FROM imports");
statement!(ENTER, "INSERT INTO imports (id, done, is_finished, number) VALUES ($1, 0, false, $2)");
statement!(COMMIT, "COMMIT");
statement!(LAST_IMPORT, "SELECT coalesce(max(number), 0), coalesce(min(CAST(is_finished AS INT)), 1) = 1 FROM imports");
statement!(
    ACTIVITY,
    "SELECT (SELECT at FROM served WHERE id = 1), (SELECT coalesce(max(lane), 0) FROM lanes), (SELECT coalesce(max(at), 0) FROM batches)"
);
statement!(MARK, "SELECT at FROM served WHERE id = 1");

/// The activity of servers: their last service mark, their newest writer and their last commit. All are zero for a database that was never
/// served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity(i64, i64, i64);

impl Activity {
    fn of(rows: &[Row]) -> Result<Self, Error> {
        one(rows, |row| Ok(Self(row.take()?, row.take()?, row.take()?)))
    }

    /// Refuses an import if a server has written a service mark since. Must be called in the transaction that stores rows. The writers were
    /// removed, so only a version of the program without imports can still be serving.
    pub(crate) async fn refuse_mark(self, conn: &mut Conn) -> Result<(), Error> {
        let mark: i64 = one(&conn.fetch(&MARK, Args::new()).await?, |row| row.take())?;
        if conn.kind() == Kind::Sqlite || mark == self.0 { Ok(()) } else { Err(served()) }
    }
}

fn served() -> Error {
    Error::Setup("a server uses this database: stop all its servers first, and repeat this".into())
}

impl Store {
    /// Must be called before the server reads anything that it caches while it serves.
    ///
    /// # Errors
    /// [`Error::Setup`], if an import into this database has begun and not finished.
    pub async fn begin_service(&self) -> Result<(), Error> {
        let (last, is_finished): (i64, bool) =
            one(&self.control().fetch(&LAST_IMPORT, Args::new()).await?, |row| Ok((row.take()?, row.take()?)))?;
        if !is_finished {
            let text = "an import into this database was interrupted: repeat `bloom-runtime import` with the same file";
            return Err(Error::Setup(text.into()));
        }
        self.inner.served.lock().last_import = Some(last);
        Ok(())
    }

    /// Refuses a database that a server is using. The server of an SQLite file holds its lock; servers on PostgreSQL are noticed by their
    /// activity.
    pub(super) async fn refuse_served(&self) -> Result<Activity, Error> {
        if self.kind() == Kind::Sqlite {
            return Ok(Activity::default());
        }
        let activity = async || Activity::of(&self.control().fetch(&ACTIVITY, Args::new()).await?);
        let before = activity().await?;
        tokio::time::sleep(MARKS_WITHIN).await;
        if activity().await? == before { Ok(before) } else { Err(served()) }
    }
}

/// Makes sure that no other import is running.
pub(super) async fn prepare(conn: &mut Conn) -> Result<(), Error> {
    if conn.kind() == Kind::Sqlite {
        conn.execute_text("PRAGMA wal_autocheckpoint = 1000".into(), Args::new()).await?;
    }
    if one::<bool>(&conn.fetch(&LOCK, Args::new()).await?, |row| row.take())? {
        return Ok(());
    }
    Err(Error::Setup("another import into this database runs: wait until it has ended".into()))
}

/// What earlier imports have left.
pub(super) enum Found {
    Nothing,
    Finished,
    /// This many rows are stored.
    Interrupted(u64),
}

pub(super) async fn found(conn: &mut Conn, sum: &str, target: Target) -> Result<Found, Error> {
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

/// Refuses a database that has data. The row of all queues is ignored, because it exists from the start.
pub(super) async fn refuse_data(conn: &mut Conn, tables: &[Table]) -> Result<(), Error> {
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

/// Empties the tables and records that the import has begun. Changes nothing if there was activity since `before`.
pub(super) async fn begin(conn: &mut Conn, tables: &[Table], sum: &str, before: Activity) -> Result<(), Error> {
    match try_begin(conn, tables, sum, before).await {
        // A deadlock with a transaction of a server.
        Err(Error::Conflict(_)) => Err(served()),
        begun => begun,
    }
}

async fn try_begin(conn: &mut Conn, tables: &[Table], sum: &str, before: Activity) -> Result<(), Error> {
    conn.begin().await?;
    conn.execute(&LOCK_WRITERS, Args::new()).await?;
    if conn.kind() == Kind::Postgres && Activity::of(&conn.fetch(&ACTIVITY, Args::new()).await?)? != before {
        return Err(served());
    }
    let number: i64 = one(&conn.fetch(&NEXT_NUMBER, Args::new()).await?, |row| row.take())?;
    conn.execute(&FORGET, Args::new()).await?;
    for table in tables.iter().map(|table| table.name.as_str()).chain(["counts", "batches", "lanes"]) {
        conn.execute_text(conn.kind().empty(table), Args::new()).await?;
    }
    conn.execute(&ENTER, Args::new().text(sum).int(number)).await?;
    conn.execute(&COMMIT, Args::new()).await?;
    Ok(())
}
