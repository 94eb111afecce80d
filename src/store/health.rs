//! Whether the database may be trusted and written to, beyond the outcome of a single statement.
//!
//! SQLite notices neither that its file was removed nor that it was replaced: it goes on in a file that nobody finds again. So the
//! files are looked at after each commit, before anybody is answered. What is found then, and damage, is final until the next start.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{Error, Trouble};

/// So many bytes have to be free before a disk that was full counts as usable again: a small write may still fit where others don't.
const ROOM: u64 = 1 << 20;
const HEADER: &[u8; 16] = b"SQLite format 3\0";

/// Which file it is, whatever its name.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// SQLite's files as they were when they were opened. The log stays the same file as long as any connection is open.
struct Files {
    known: [(PathBuf, Identity); 2],
    /// Stays open until the process ends its connections: closing it lets go of SQLite's own locks on the file.
    database: File,
}

#[derive(Default)]
pub(super) struct Health {
    files: Option<Files>,
    lasting: OnceLock<Trouble>,
    is_failing: AtomicBool,
}

impl Health {
    /// To be called while a connection is open. `database` was opened before all connections.
    pub fn of_sqlite(path: &Path, database: File) -> std::io::Result<Self> {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let known = |path: PathBuf| -> std::io::Result<_> {
            let identity = identity(&std::fs::metadata(&path)?);
            Ok((path, identity))
        };
        let files = Files { known: [known(path.to_owned())?, known(PathBuf::from(log))?], database };
        Ok(Self { files: Some(files), ..Self::default() })
    }

    /// What can't pass by itself.
    pub fn lasting(&self) -> Option<Trouble> {
        self.lasting.get().copied()
    }

    /// # Errors
    /// Nothing may be written any more.
    pub fn check(&self) -> Result<(), Error> {
        self.lasting().map_or(Ok(()), |trouble| Err(Error::Unusable(trouble)))
    }

    /// After a commit, before anybody is told of it.
    ///
    /// # Errors
    /// It went into a file that nobody will find again.
    pub fn committed(&self) -> Result<(), Error> {
        self.check()?;
        for (path, identity) in self.files.iter().flat_map(|files| &files.known) {
            match std::fs::metadata(path) {
                Ok(found) if self::identity(&found) == *identity => {}
                Ok(_) => return Err(self.lost(Trouble::Moved, &format!("{} is another file now", path.display()))),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return Err(self.lost(Trouble::Moved, &format!("{} is gone", path.display())));
                }
                // It says nothing of the file; whether the commit holds is to be found out.
                Err(error) => return Err(Error::CommitUnknown(format!("{}: {error}", path.display()))),
            }
        }
        Ok(())
    }

    /// For the readiness probe. Reads from the disk.
    pub fn look(&self) -> Result<(), Error> {
        self.committed()?;
        if let Some(files) = &self.files {
            let mut header = [0; HEADER.len()];
            files.database.read_exact_at(&mut header, 0).map_err(|error| Error::Disk(error.to_string()))?;
            if header != *HEADER {
                return Err(self.lost(Trouble::Damaged, "it does not begin as an SQLite database does"));
            }
        }
        if self.is_failing.load(Ordering::Relaxed) { Err(Error::Unusable(Trouble::Failing)) } else { Ok(()) }
    }

    /// Takes in what an error of the database tells of it.
    pub fn note(&self, error: &Error) {
        match error {
            Error::Damaged(text) => drop(self.lost(Trouble::Damaged, text)),
            Error::Disk(text) if !self.is_failing.swap(true, Ordering::Relaxed) => {
                tracing::error!(error = text, "{}", Trouble::Failing.text());
            }
            _ => {}
        }
    }

    /// Everything that is written once a second was written.
    pub fn works(&self) {
        if self.is_failing.load(Ordering::Relaxed) && self.has_room() {
            self.is_failing.store(false, Ordering::Relaxed);
            tracing::info!("the database can be written to again");
        }
    }

    fn has_room(&self) -> bool {
        let Some(directory) = self.files.as_ref().and_then(|files| files.known[0].0.parent()) else { return true };
        // Who can't tell has no reason to refuse.
        rustix::fs::statvfs(directory).map_or(true, |disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= ROOM)
    }

    fn lost(&self, trouble: Trouble, cause: &str) -> Error {
        if self.lasting.set(trouble).is_ok() {
            tracing::error!(cause, "NO WRITE IS ACKNOWLEDGED ANY MORE. {}", trouble.text());
        }
        Error::Unusable(self.lasting().unwrap_or(trouble))
    }
}
