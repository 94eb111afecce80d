//! Writes a database to a file.

use std::path::Path;

use super::file::Writer;
use super::{Moved, tables};
use crate::backup::partial::Partial;
use crate::backup::target::Target;
use crate::error::Error;
use crate::opening::open::{self, StoreOptions};
use crate::replicas::counts::{self, Parts};
use crate::schema::migrate::Schema;
use crate::sql::args::Args;
use crate::sql::conn::Conn;
use crate::sql::dialect::statement;
use crate::{Store, one};

/// The progress is reported to the caller each time this many rows were read.
pub(super) const TELL_EVERY: u64 = 500;

statement!(SNAPSHOT, "BEGIN");
statement!(SCHEMA, "SELECT max(version) FROM _sqlx_migrations WHERE success");

impl Store {
    /// Writes everything that is stored to a file, in one read transaction, even while servers use the database. Only the owner can read
    /// the file, and it gets its name when it is complete. Returns the number of rows.
    ///
    /// # Errors
    /// [`Error::Setup`] with what to do: there is no database, or the file exists (unless `replaces` is set), belongs to the database, or
    /// can't be written.
    pub async fn export(options: &StoreOptions, to: &Path, replaces: bool, tell: impl FnMut(Moved)) -> Result<u64, Error> {
        let target = Target::new(to, replaces, options)?;
        let file = target.create()?;
        let none = || {
            let path = open::sqlite_file(options).unwrap_or_default();
            Error::Setup(format!("there is no database {}: check DATABASE_URL or DATA_DIR", path.display()))
        };
        let pool = open::beside(options).await?.ok_or_else(none)?;
        let schema = Schema::read(&pool).await;
        pool.close().await;
        let schema = schema?;
        schema.check()?;
        if schema.is_empty() {
            return Err(none());
        }
        let mut conn = open::snapshot(options).await?.ok_or_else(none)?;
        let written = write(&mut conn, &file, tell).await;
        conn.close().await;
        let rows = written?;
        file.sync().map_err(|error| Error::Setup(format!("{}: {error}", to.display())))?;
        target.place(file)?;
        Ok(rows)
    }
}

async fn write(conn: &mut Conn, file: &Partial, mut tell: impl FnMut(Moved)) -> Result<u64, Error> {
    conn.execute(&SNAPSHOT, Args::new()).await?;
    let schema: i64 = one(&conn.fetch(&SCHEMA, Args::new()).await?, |row| row.take())?;
    let leases = Parts::of(&conn.fetch(&counts::KEPT, Args::new()).await?)?.kept.leases;
    let tables = tables::read(conn).await?;
    let mut of = 0;
    for table in &tables {
        conn.each(format!("SELECT count(*) FROM {}", table.name), |row| {
            of += u64::try_from(row.cells().take::<i64>()?).unwrap_or(0);
            Ok(())
        })
        .await?;
    }
    let mut out = Writer::new(file.file(), schema, leases)?;
    for table in &tables {
        out.section(&table.name, table.column_names())?;
        let mut cells = Vec::new();
        conn.each(table.select(conn.kind()), |row| {
            cells.clear();
            table.read(&mut row.cells(), &mut cells)?;
            out.row(&cells)?;
            if out.rows().is_multiple_of(TELL_EVERY) {
                tell(Moved { rows: out.rows(), of });
            }
            Ok(())
        })
        .await?;
    }
    out.end()
}
