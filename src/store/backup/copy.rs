//! Copies a database while others use it.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use super::check::{Depth, Interrupt, check};
use super::partial::Partial;
use super::target::Target;
use crate::Store;
use crate::error::{Error, told};
use crate::opening::lock_file::is_there;
use crate::opening::open::{self, StoreOptions};

/// The progress of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// The bytes that were copied so far.
    pub bytes: u64,
    /// The most bytes that the copy may have in the end.
    pub of: u64,
}

/// A finished copy.
#[derive(Clone, Debug)]
pub struct BackedUp {
    /// The size of the copy in bytes.
    pub bytes: u64,
    /// Why `restore` would refuse the copy as it is; `None` if it would not.
    pub not_restorable: Option<String>,
}

/// How often the progress is reported to the caller.
const TELL_EVERY: Duration = Duration::from_millis(100);

impl Store {
    /// Copies an SQLite database into a file, even while a server uses the database. The file gets its name when it is complete and
    /// checked. Nothing is left of a copy that fails or whose future is dropped.
    ///
    /// # Errors
    /// [`Error::Setup`] with what to do: there is no database, or the file exists (unless `replaces` is set), belongs to the database, or
    /// can't be written.
    pub async fn back_up_beside(options: &StoreOptions, to: &Path, replaces: bool, tell: impl FnMut(Copied)) -> Result<BackedUp, Error> {
        let source = source(options).await?;
        let target = Target::new(to, replaces, options)?;
        let partial = target.create()?;
        let made = copy(source, &partial, to, tell).await?;
        target.place(partial)?;
        Ok(made)
    }
}

/// A connection to the database, which a server may be using.
async fn source(options: &StoreOptions) -> Result<SqliteConnection, Error> {
    let Some(path) = open::sqlite_file(options) else { return Err(not_sqlite()) };
    if !is_there(&path)? {
        return Err(Error::Setup(format!("there is no database {}: check DATABASE_URL or DATA_DIR", path.display())));
    }
    open::refuse_other_program(&path).await?;
    let options = SqliteConnectOptions::new().filename(&path).busy_timeout(open::BUSY).disable_statement_logging();
    options.connect().await.map_err(|error| Error::Setup(format!("{} can't be read: {}", path.display(), told(&error))))
}

pub(super) fn not_sqlite() -> Error {
    Error::Setup("this is for SQLite only: back up and restore PostgreSQL with its own programs".into())
}

/// Copies the database into the empty file, syncs the copy to the disk and checks it. The file will be called `name`.
pub(super) async fn copy(mut source: SqliteConnection, to: &Partial, name: &Path, mut tell: impl FnMut(Copied)) -> Result<BackedUp, Error> {
    // A relative path that begins with `file:` would be a URL for SQLite.
    let path = std::path::absolute(to.path()).map_err(|error| Error::Setup(format!("{}: {error}", to.path().display())))?;
    let Some(written) = path.to_str() else {
        return Err(Error::Setup(format!("{} is not UTF-8: choose another path", path.display())));
    };
    let failed = |why: String| {
        Error::Setup(format!("the database can't be copied into {}: {why}; check that its disk has room and works", path.display()))
    };
    let refused = |error: sqlx::Error| {
        let text = told(&error);
        match Error::from(error) {
            Error::Damaged(_) => Error::Setup(format!("the database is damaged, so it can't be copied: {text}; restore an earlier backup")),
            _ => failed(text),
        }
    };
    let used = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
    let used: i64 = sqlx::query_scalar(used).fetch_one(&mut source).await.map_err(refused)?;
    let of = u64::try_from(used).unwrap_or(0);
    to.has_room(of)?;
    let interrupt = Interrupt::default();
    interrupt.ends(&mut source).await.map_err(refused)?;
    let mut ticks = tokio::time::interval(TELL_EVERY);
    let copied = {
        let copying = sqlx::query("VACUUM INTO ?1").bind(written).execute(&mut source);
        tokio::pin!(copying);
        loop {
            tokio::select! {
                done = &mut copying => break done,
                _ = ticks.tick() => tell(Copied { bytes: to.bytes(), of }),
            }
        }
    };
    // Closed even after an error, so that SQLite no longer works on the file.
    let closed = source.close().await;
    copied.map(drop).and(closed).map_err(refused)?;
    to.sync().map_err(|error| failed(error.to_string()))?;
    Ok(BackedUp { not_restorable: check(&path, name, Depth::Pages).await?, bytes: to.bytes() })
}
