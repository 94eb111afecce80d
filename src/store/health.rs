//! Checks whether the database can be trusted and written to, beyond the outcome of a single statement.
//!
//! SQLite does not notice that its file was removed or replaced, and would continue in a file that has no path any more. So the files are
//! checked after each commit, before any reply. A loss that is found then, and damage, are final until the next start.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::SetOnce;

use crate::error::{Error, Fault};
use crate::outage::{Outage, OutageReason};

/// How long there must be no error before an outage is over.
const QUIET: Duration = Duration::from_secs(1);
/// Bytes that must be free before a disk that was full counts as usable again. A small write may succeed although others still fail.
const MIN_FREE_BYTES: u64 = 1 << 20;
const HEADER: &[u8; 16] = b"SQLite format 3\0";

/// Identifies a file independently of its name.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// SQLite's files as they were when they were opened. The write-ahead log stays the same file as long as any connection is open.
struct Files {
    known: [(PathBuf, Identity); 2],
    /// Stays open until the process closes its connections, because closing it releases SQLite's own locks on the file.
    database: Arc<File>,
}

#[derive(Default)]
pub(crate) struct Health {
    files: Option<Files>,
    lasting: SetOnce<Fault>,
    outage: Mutex<Option<Outage>>,
    /// Writes to PostgreSQL have been tried successfully, and since then no error occurred of which it is unknown whether it affects one
    /// command or all.
    is_trusted: AtomicBool,
}

impl Health {
    /// Must be called while a connection is open. `database` was opened before all connections.
    pub(crate) fn of_sqlite(path: &Path, database: Arc<File>) -> std::io::Result<Self> {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let known = |path: PathBuf| -> std::io::Result<_> {
            let identity = identity(&std::fs::metadata(&path)?);
            Ok((path, identity))
        };
        let files = Files { known: [known(path.to_owned())?, known(PathBuf::from(log))?], database };
        Ok(Self { files: Some(files), ..Self::default() })
    }

    /// The fault that lasts until the next start, if any.
    pub(crate) fn lasting(&self) -> Option<Fault> {
        self.lasting.get().copied()
    }

    /// Waits for a fault that lasts until the next start.
    pub(crate) async fn lasts(&self) -> Fault {
        *self.lasting.wait().await
    }

    /// Must be called when an import is noticed that has begun since the start.
    pub(crate) fn imported(&self) -> Error {
        self.lost(Fault::Imported, "the database has an import that began after this server started")
    }

    /// # Errors
    /// Nothing may be written any more.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.lasting().map_or(Ok(()), |fault| Err(Error::Unusable(fault)))
    }

    /// Must be called after a commit, before its replies.
    ///
    /// # Errors
    /// The commit went into a file that was removed or replaced.
    pub(crate) fn committed(&self) -> Result<(), Error> {
        self.check()?;
        for (path, identity) in self.files.iter().flat_map(|files| &files.known) {
            match std::fs::metadata(path) {
                Ok(found) if self::identity(&found) == *identity => {}
                Ok(_) => return Err(self.lost(Fault::Moved, &format!("{} was replaced by another file", path.display()))),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return Err(self.lost(Fault::Moved, &format!("{} was removed", path.display())));
                }
                // This error says nothing about the file, so the outcome of the commit is unknown.
                Err(error) => return Err(Error::CommitUnknown(format!("{}: {error}", path.display()))),
            }
        }
        Ok(())
    }

    /// A check for the readiness probe, which reads from the disk.
    pub(crate) fn probe(&self) -> Result<(), Error> {
        self.committed()?;
        if let Some(files) = &self.files {
            let mut header = [0; HEADER.len()];
            files.database.read_exact_at(&mut header, 0).map_err(|error| Error::Disk(error.to_string()))?;
            if header != *HEADER {
                return Err(self.lost(Fault::Damaged, "the file does not begin with the header of an SQLite database"));
            }
        }
        match self.outage() {
            None => Ok(()),
            Some(outage) if self.files.is_some() || outage.reason == OutageReason::DiskFull => Err(Error::Unusable(Fault::Failing)),
            Some(outage) => Err(Error::Unavailable(outage.reason, outage.error)),
        }
    }

    /// Records what an error shows about the database.
    pub(crate) fn record_error(&self, error: &Error) {
        match error {
            Error::Damaged(text) => drop(self.lost(Fault::Damaged, text)),
            Error::Disk(text) => self.record(OutageReason::DiskFull, text),
            Error::Unavailable(reason, text) if self.files.is_none() => self.record(*reason, text),
            Error::Locked(_) => self.is_trusted.store(false, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Logs the beginning of an outage, and each further reason once, because there may be thousands of errors.
    fn record(&self, reason: OutageReason, error: &str) {
        let mut outage = self.outage.lock();
        match &mut *outage {
            Some(known) => {
                (known.reason, known.errors, known.last_error) = (reason, known.errors + 1, Instant::now());
                error.clone_into(&mut known.error);
                if known.logged.contains(&reason) {
                    return;
                }
                known.logged.push(reason);
            }
            None => *outage = Some(Outage::begins(reason, error)),
        }
        tracing::error!(reason = reason.as_str(), error, "the database can't be written to; the server tries again by itself");
    }

    /// Why nothing can be written for now.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.outage.lock().clone()
    }

    /// Whether writes must be tried before they count as possible.
    pub(crate) fn is_suspected(&self) -> bool {
        !self.is_trusted.load(Ordering::Relaxed) || self.outage.lock().is_some()
    }

    /// The error of a caller that has no connection: the error that ended the connection.
    pub(crate) fn away(&self) -> Error {
        match self.outage() {
            Some(outage) => Error::Unavailable(outage.reason, outage.error),
            None => Error::Unavailable(OutageReason::Unreachable, "the connection was lost".into()),
        }
    }

    /// Must be called when all periodic writes have succeeded.
    pub(crate) fn works(&self) {
        self.is_trusted.store(true, Ordering::Relaxed);
        let mut outage = self.outage.lock();
        // While one connection works and others fail, the outage continues. Otherwise it would end and begin many times a second.
        if outage.as_ref().is_some_and(|outage| outage.last_error.elapsed() >= QUIET)
            && self.has_free_space()
            && let Some(Outage { reason, since, errors, .. }) = outage.take()
        {
            let seconds = since.elapsed().as_secs();
            tracing::info!(seconds, errors, last_reason = reason.as_str(), "the database can be written to again");
        }
    }

    /// The directory of the database.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.files.as_ref()?.known[0].0.parent()
    }

    fn has_free_space(&self) -> bool {
        let Some(directory) = self.directory() else { return true };
        // If the free space is unknown, it is taken to be enough.
        rustix::fs::statvfs(directory).map_or(true, |disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= MIN_FREE_BYTES)
    }

    fn lost(&self, fault: Fault, cause: &str) -> Error {
        if self.lasting.set(fault).is_ok() {
            tracing::error!(cause, "ALL WRITES ARE REFUSED FROM NOW ON. {}", fault.text());
        }
        Error::Unusable(self.lasting().unwrap_or(fault))
    }
}
