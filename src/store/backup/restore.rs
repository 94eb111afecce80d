//! Replaces the database with a backup.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sqlx::ConnectOptions as _;

use super::check::{Depth, check, reading};
use super::copy::{Copied, copy, not_sqlite};
use super::partial::{DATABASE_FILES, Partial, directory, unfinished};
use crate::Store;
use crate::error::{Error, told};
use crate::opening::file_access::beside;
use crate::opening::lock_file::LockFile;
use crate::opening::open::{self, StoreOptions};

/// What [`Store::restore`] did.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The file of the database.
    pub database: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// The new path of the database that was there before; `None` if there was none.
    pub replaced: Option<PathBuf>,
}

impl Store {
    /// Replaces the SQLite database with a copy of a backup. An existing database is kept beside it, under the name that is returned.
    /// Nothing is changed before the backup has been checked and copied.
    ///
    /// # Errors
    /// [`Error::Setup`] with what to do: a server has the database open, a database exists (unless `replaces` is set), or the file is not a
    /// usable backup.
    pub async fn restore(options: &StoreOptions, from: &Path, replaces: bool, tell: impl FnMut(Copied)) -> Result<Restored, Error> {
        let database = open::sqlite_file(options).ok_or_else(not_sqlite)?;
        let fail = |what: &Path, error: std::io::Error| Error::Setup(format!("{}: {error}", what.display()));
        let backup = fs::metadata(from).map_err(|error| fail(from, error))?;
        // Opening a pipe would wait for its writer.
        if !backup.is_file() {
            return Err(Error::Setup(format!("{} is not a regular file: name a backup", from.display())));
        }
        let lock = LockFile::take(&database)?;
        let is_there = exists(&database);
        if is_there && !replaces {
            return Err(Error::Setup(format!(
                "there is a database already: {}; give --force to put the backup in its place (the database is kept beside it)",
                database.display()
            )));
        }
        // The server may run as a different user than the administrator who restores.
        let model = fs::metadata(&database).or_else(|_| fs::metadata(directory(&database))).map_err(|error| fail(&database, error))?;
        if (backup.dev(), backup.ino()) == (model.dev(), model.ino()) {
            return Err(Error::Setup(format!("{} is the database itself: name a backup", from.display())));
        }
        check(from, from, Depth::Whole).await?;
        let partial = Partial::create(unfinished(&database), true)?;
        let owner = (model.uid(), model.gid());
        partial.give_to(owner).and_then(|()| lock.give_to(owner)).map_err(|error| {
            Error::Setup(format!("{} can't belong to the user {}: {error}; run this as that user", database.display(), owner.0))
        })?;
        let source = reading(from).connect().await.map_err(|error| Error::Setup(format!("{}: {}", from.display(), told(&error))))?;
        let bytes = copy(source, &partial, &database, tell).await?.bytes;
        let replaced = is_there.then(|| set_aside(&database)).transpose()?;
        let place = |error: Error| match &replaced {
            Some(kept) => Error::Setup(format!("{error}; the database that was there is now {}", kept.display())),
            None => error,
        };
        partial.place(&database).map_err(place)?;
        Ok(Restored { database, bytes, replaced })
    }
}

/// Whether any file of this database exists.
fn exists(database: &Path) -> bool {
    DATABASE_FILES.iter().any(|ending| beside(database, ending).symlink_metadata().is_ok())
}

/// Moves the files of a database away. Returns the new name of the database, or of what was left of it.
fn set_aside(database: &Path) -> Result<PathBuf, Error> {
    let now = beside(database, &jiff::Timestamp::now().strftime(".replaced-%Y%m%dT%H%M%SZ").to_string());
    let (mut name, mut others) = (now.clone(), 0);
    // Another restore in the same second has also kept a database.
    while exists(&name) {
        others += 1;
        name = beside(&now, &format!("-{others}"));
    }
    let mut kept = name.clone();
    for ending in DATABASE_FILES {
        let (from, to) = (beside(database, ending), beside(&name, ending));
        if from.symlink_metadata().is_ok() {
            fs::rename(&from, &to)
                .map_err(|error| Error::Setup(format!("{} can't be moved to {}: {error}", from.display(), to.display())))?;
            kept = to;
        }
    }
    Ok(kept)
}
