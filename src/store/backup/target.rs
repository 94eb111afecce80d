//! A file, named by a person, to which a copy or an export of the database is written.

use std::fs;
use std::path::Path;

use super::partial::{DATABASE_FILES, Partial, directory, unfinished};
use crate::error::Error;
use crate::opening::file_access::beside;
use crate::opening::open::{self, StoreOptions};

pub(crate) struct Target<'a> {
    path: &'a Path,
    replaces: bool,
}

impl<'a> Target<'a> {
    /// # Errors
    /// [`Error::Setup`]: the file exists (unless `replaced` is set), is not a regular file, or belongs to the database.
    pub(crate) fn new(path: &'a Path, replaced: bool, options: &StoreOptions) -> Result<Self, Error> {
        let target = Self { path, replaces: replaced };
        target.refuse_files_of_database(options)?;
        target.refuse_existing()?;
        Ok(target)
    }

    pub(crate) fn create(&self) -> Result<Partial, Error> {
        Partial::create(unfinished(self.path), self.replaces)
    }

    /// Gives the complete file its final name.
    pub(crate) fn place(&self, file: Partial) -> Result<(), Error> {
        self.refuse_existing()?;
        file.place(self.path)
    }

    fn refuse_existing(&self) -> Result<(), Error> {
        if self.replaces || self.path.symlink_metadata().is_err() {
            return Ok(());
        }
        Err(Error::Setup(format!("{} exists: choose another name, or give --force to replace it", self.path.display())))
    }

    /// Refuses the files of the database. Replacing the database beside its log would destroy both, and replacing the lock file would let a
    /// second server start.
    fn refuse_files_of_database(&self, options: &StoreOptions) -> Result<(), Error> {
        let refused = |why: &str| Err(Error::Setup(format!("{} {why}: choose another name", self.path.display())));
        if self.path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
            return refused("is not a regular file");
        }
        // Links in the path are resolved. A directory that does not exist is reported when the file is created.
        let (Ok(place), Some(name)) = (fs::canonicalize(directory(self.path)), self.path.file_name()) else { return Ok(()) };
        let Some(Ok(database)) = open::sqlite_file(options).map(fs::canonicalize) else { return Ok(()) };
        let target = place.join(name);
        if DATABASE_FILES.iter().chain([&".lock"]).any(|ending| beside(&database, ending) == target) {
            return refused("belongs to the database");
        }
        Ok(())
    }
}
