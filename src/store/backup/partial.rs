//! A file that gets its name only when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::opening::file_access::{advice, beside};

/// The suffixes of a database's files after the name of the database. The log comes first: if moving the files away is interrupted, no old
/// log is left that a new database would take for its own.
pub(super) const DATABASE_FILES: [&str; 4] = ["-wal", "-shm", "-journal", ""];

pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The name that the file has until it is complete.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    beside(path, ".partial")
}

/// Removes what an interrupted restore of this database has left. Only the holder of the database's lock may call this.
pub(crate) fn remove_unfinished(database: &Path) {
    let partial = unfinished(database);
    for path in [beside(&partial, "-journal"), partial] {
        let _ = fs::remove_file(path);
    }
}

/// An unfinished file that only its owner can read, in the directory of the final file. It is removed unless it gets its final name.
pub(crate) struct Partial {
    path: PathBuf,
    /// Stays open until the end, because closing it earlier would release SQLite's own locks on the file.
    file: File,
    is_placed: bool,
}

impl Partial {
    /// Creates the empty file. With `replaces`, removes what an interrupted run has left at this path. Only a caller that alone writes to
    /// the path may set it.
    pub(crate) fn create(path: PathBuf, replaces: bool) -> Result<Self, Error> {
        if replaces {
            let _ = fs::remove_file(&path);
        }
        // SQLite would take the journal of an interrupted run for the journal of the new file.
        let _ = fs::remove_file(beside(&path, "-journal"));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => Ok(Self { path, file, is_placed: false }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::Setup(format!(
                "{} exists: another command is writing it, or one was interrupted; if none runs, remove it",
                path.display()
            ))),
            Err(error) => Err(Error::Setup(format!("{} can't be created: {error}; {}", path.display(), advice(&error)))),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |file| file.len())
    }

    /// # Errors
    /// The disk has less free space than `bytes`. The disk must not be filled, because the database may be on it too.
    pub(crate) fn has_room(&self, bytes: u64) -> Result<(), Error> {
        let Ok(disk) = rustix::fs::fstatvfs(&self.file) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free >= bytes {
            return Ok(());
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        Err(Error::Setup(format!(
            "the disk of {} is too full: the copy needs up to {} MiB, {} MiB are free; make room on it, or choose another disk",
            self.path.display(),
            mib(bytes),
            free >> 20
        )))
    }

    /// Gives the file to this user.
    pub(crate) fn give_to(&self, (user, group): (u32, u32)) -> std::io::Result<()> {
        std::os::unix::fs::fchown(&self.file, Some(user), Some(group))
    }

    /// Syncs what was written to the disk.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.file.sync_all()
    }

    /// Gives the complete file its final name, replacing a file of that name, and syncs the directory.
    pub(crate) fn place(mut self, name: &Path) -> Result<(), Error> {
        let placed = self.rename(name).and_then(|()| File::open(directory(name))?.sync_all());
        placed.map_err(|error| Error::Setup(format!("{} can't be written: {error}; check its disk", name.display())))
    }

    fn rename(&mut self, name: &Path) -> std::io::Result<()> {
        let (own, found) = (self.file.metadata()?, fs::symlink_metadata(&self.path)?);
        if (own.dev(), own.ino()) != (found.dev(), found.ino()) {
            // The file of the other program must not be removed when this is dropped.
            self.is_placed = true;
            return Err(std::io::Error::other("another program has replaced the unfinished file"));
        }
        fs::rename(&self.path, name)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_file(beside(&self.path, "-journal"));
        }
    }
}
