//! Checks whether a file is a sound database of this program.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::error::{Error, told};
use crate::schema::additions;
use crate::schema::migrate::Schema;
use crate::sql::conn::{Pool, pool_options};

/// How thoroughly a file is checked.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Depth {
    /// Only its tables.
    Schema,
    /// Each page.
    Pages,
    /// Each page, the indexes against the tables (which takes several times as long), and that the database contains nothing besides the
    /// schema.
    Whole,
}

/// How many SQLite instructions run between two checks of whether the statement is still wanted. They take some milliseconds.
const LOOK_EVERY: i32 = 100_000;

/// Aborts the running statements of its connections when it is dropped. Otherwise their threads would run the statements to their end,
/// which may take minutes.
#[derive(Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(crate) async fn ends(&self, conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let is_dropped = self.0.clone();
        conn.lock_handle().await?.set_progress_handler(LOOK_EVERY, move || !is_dropped.load(Ordering::Relaxed));
        Ok(())
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) fn reading(file: &Path) -> SqliteConnectOptions {
    // A relative path that begins with `file:` would be a URL for SQLite.
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    SqliteConnectOptions::new().filename(file).read_only(true).disable_statement_logging()
}

/// Checks the file. If it is sound but can't be restored as it is, returns the reason, with commands that call the file `name`.
///
/// # Errors
/// The file is damaged, belongs to another program, or to a newer version that excludes this one. With [`Depth::Whole`], also if it can't
/// be restored as it is.
pub(super) async fn check(file: &Path, name: &Path, depth: Depth) -> Result<Option<String>, Error> {
    let unusable = |why: &str| Error::Setup(format!("{} is not a usable database of bloom-runtime: {why}", file.display()));
    let (found, is_own) = look(file, depth).await.map_err(|error| unusable(&told(&error)))?;
    if found != "ok" {
        return Err(unusable(&format!("it is damaged: {found}")));
    }
    if !is_own {
        return Err(unusable("it does not have its tables"));
    }
    let pool = Pool::Sqlite(pool_options(1).connect_lazy_with(reading(file)), Arc::default());
    let checked = async {
        let schema = Schema::read(&pool).await?;
        schema.check()?;
        let refusal = if schema.is_newer() {
            Some("a newer version of this program has made it, which alone knows what belongs to it: restore it with that version".into())
        } else {
            additions::told_of_copy(&additions::read(&pool, &schema).await?, name)
        };
        match refusal {
            Some(text) if depth == Depth::Whole => Err(Error::Setup(text)),
            refusal => Ok(refusal),
        }
    };
    let checked = checked.await;
    pool.close().await;
    checked.map_err(|error| unusable(&error.to_string()))
}

/// Returns the result of SQLite's check, and whether the tables of this program exist.
async fn look(file: &Path, depth: Depth) -> Result<(String, bool), sqlx::Error> {
    let interrupt = Interrupt::default();
    let mut conn = reading(file).connect().await?;
    interrupt.ends(&mut conn).await?;
    let pragma = match depth {
        Depth::Schema => "SELECT 'ok'",
        Depth::Pages => "PRAGMA quick_check(1)",
        Depth::Whole => "PRAGMA integrity_check(1)",
    };
    let found = sqlx::query_scalar(pragma).fetch_one(&mut conn).await?;
    let tables = "SELECT count(*) = 2 FROM sqlite_master WHERE type = 'table' AND name IN ('_sqlx_migrations', 'task_state')";
    let is_own = sqlx::query_scalar(tables).fetch_one(&mut conn).await?;
    conn.close().await?;
    Ok((found, is_own))
}
