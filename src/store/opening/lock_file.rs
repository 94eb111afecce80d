//! Keeps other processes from using an SQLite database. There are two locks: one on a file beside the database, which says who holds it,
//! and one on the database itself, because the file beside it may be removed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{Access, access, statvfs};

use crate::backup::partial::remove_unfinished;
use crate::error::Error;
use crate::opening::file_access::{advice, beside};

/// Creates the directory and the file (readable only by its owner), and takes the lock.
pub(crate) fn prepare_file(path: &Path) -> Result<(LockFile, Arc<File>), Error> {
    let fail = |what: &str, error: std::io::Error| Error::Setup(format!("{what} {}: {error}; {}", path.display(), advice(&error)));
    let mut lock = LockFile::take(path)?;
    let log = beside(path, "-wal");
    if !path.exists() && log.metadata().is_ok_and(|log| log.len() > 0) {
        // SQLite would delete the log, and with it the last acknowledged changes.
        return Err(Error::Setup(format!(
            "the database {} is not there, but the changes are that were not yet written into it ({}): put the database back, or move that \
             file away to begin with a new database",
            path.display(),
            log.display()
        )));
    }
    // An interrupted restore leaves a file with all prompts of a backup, and nobody would look for it.
    remove_unfinished(path);
    let file = match &lock.database {
        Some(file) => file.clone(),
        None => lock.take_database(private_file(path).map_err(|e| fail("cannot open", e))?, path)?,
    };
    Ok((lock, file))
}

/// Whether the file of a database exists.
///
/// # Errors
/// The path is not a regular file. A link is refused, because the lock and the log are found by the name of the database: two processes
/// that use one file by two names would damage it.
pub(crate) fn is_there(path: &Path) -> Result<bool, Error> {
    let wrong = |what: &str| Err(Error::Setup(format!("the database {} is {what} in DATABASE_URL", path.display())));
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::Setup(format!(
            "the database {} can't be looked at: {error}; check DATABASE_URL or DATA_DIR, and run this as the user of the server",
            path.display()
        ))),
        Ok(found) if found.is_symlink() => wrong("a symbolic link: name the file that it leads to"),
        Ok(found) if !found.is_file() => wrong("no regular file: name another file"),
        Ok(_) => Ok(true),
    }
}

/// # Errors
/// This user can't create the file; the error says why.
pub(crate) fn may_be_made(path: &Path) -> Result<(), Error> {
    let wrong = |place: &Path, what: &str| {
        let (path, place) = (path.display(), place.display());
        Err(Error::Setup(format!("the database {path} can't be made: {place} {what}; check DATABASE_URL or DATA_DIR")))
    };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let Some(place) = absolute.ancestors().skip(1).find(|place| place.exists()) else { return Ok(()) };
    if !place.is_dir() {
        return wrong(place, "is no directory");
    }
    if access(place, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return wrong(place, "can't be written by this user");
    }
    match statvfs(place) {
        Ok(disk) if disk.f_bavail == 0 => wrong(place, "is on a disk that is full"),
        _ => Ok(()),
    }
}

fn private_file(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Keeps a second process from using the same SQLite file. The operating system releases the locks when the process ends in any way.
pub(crate) struct LockFile {
    file: File,
    /// The database, if it exists.
    database: Option<Arc<File>>,
    /// When this process took the lock, for people.
    since: String,
}

impl LockFile {
    /// Takes the locks. Creates the directory of the database if necessary.
    pub(crate) fn take(database: &Path) -> Result<Self, Error> {
        is_there(database)?;
        if let Some(directory) = database.parent().filter(|d| !d.as_os_str().is_empty()) {
            std::fs::create_dir_all(directory).map_err(|error| {
                let what = format!("cannot make the directory of {}: {error}", database.display());
                Error::Setup(format!("{what}; check DATABASE_URL or DATA_DIR: {}", advice(&error)))
            })?;
        }
        let path = beside(database, ".lock");
        let fail =
            |error: std::io::Error| Error::Setup(format!("cannot use the lock file {}: {error}; {}", path.display(), advice(&error)));
        let mut file = private_file(&path).map_err(fail)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder).map_err(fail)?;
                let holder = if holder.is_empty() { "in another process".to_owned() } else { holder.trim().to_owned() };
                return Err(Error::Setup(format!(
                    "bloom-runtime is already running {holder}, with the database {}: use it, stop that process first, or set another DATABASE_URL or DATA_DIR for this one (several processes can share a PostgreSQL database)",
                    database.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        let since = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string();
        let mut lock = Self { file, database: None, since };
        match OpenOptions::new().read(true).write(true).open(database) {
            Ok(file) => drop(lock.take_database(file, database)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let (database, advice) = (database.display(), advice(&error));
                return Err(Error::Setup(format!("the database {database} can't be used: {error}; {advice}")));
            }
        }
        lock.tell(None).map_err(fail)?;
        Ok(lock)
    }

    /// Locks the database itself. Its file stays open at least as long as `self`.
    fn take_database(&mut self, file: File, path: &Path) -> Result<Arc<File>, Error> {
        match set_lock(&file, libc::F_WRLCK) {
            Ok(()) => Ok(self.database.insert(Arc::new(file)).clone()),
            Err(Errno::EAGAIN | Errno::EACCES) => Err(Error::Setup(format!(
                "another process has the database {0}, although its lock file {0}.lock was removed or replaced: stop that process first \
                 (`fuser {0}` shows it)",
                path.display()
            ))),
            Err(error) => Err(Error::Setup(format!("the database {} can't be locked: {error}; put it on a local disk", path.display()))),
        }
    }

    /// Gives the file to this user.
    pub(crate) fn give_to(&self, (user, group): (u32, u32)) -> std::io::Result<()> {
        std::os::unix::fs::fchown(&self.file, Some(user), Some(group))
    }

    /// Writes into the file who holds the lock. A second process shows this text.
    pub(crate) fn tell(&self, url: Option<&str>) -> std::io::Result<()> {
        let mut file = &self.file;
        let place = url.map(|url| format!("at {url} ")).unwrap_or_default();
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{place}since {}, process {}", self.since, std::process::id())?;
        file.sync_all()
    }
}

impl Drop for LockFile {
    /// Releases the locks explicitly. A child process has copies of the descriptors until it executes its program, and these would keep the
    /// locks.
    fn drop(&mut self) {
        let _ = self.file.unlock();
        if let Some(database) = &self.database {
            let _ = set_lock(database, libc::F_UNLCK);
        }
    }
}

/// The position of the lock in the database file. No file is that long, and SQLite's own locks are elsewhere (some bytes at 1 GiB).
const LOCKED_BYTE: libc::off_t = 1 << 62;

/// Locks or unlocks the database. The lock belongs to the open file, not to the process, so it does not conflict with SQLite in this
/// process, and SQLite can't release it by opening and closing the file. Closing this file would release SQLite's own locks in this
/// process, so it must stay open as long as any connection (see `Files` in `health`).
fn set_lock(file: &File, kind: libc::c_int) -> nix::Result<()> {
    let lock =
        libc::flock { l_type: kind as libc::c_short, l_whence: libc::SEEK_SET as libc::c_short, l_start: LOCKED_BYTE, l_len: 1, l_pid: 0 };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).map(drop)
}
