//! Finds out what prevents this user from using the files of an SQLite database, and what to do about it.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};

/// Returns which file can't be written: the database, its directory, or a file that SQLite keeps beside it. SQLite itself would only report
/// that the database is read-only. A reader that can't write the database leaves such files behind, with the same permissions.
pub(crate) fn unwritable(database: &Path) -> Option<String> {
    let directory = directory_of(database);
    let files = ["", "-wal", "-shm"].map(|suffix| beside(database, suffix)).into_iter().filter(|file| file.exists());
    let file = files.map(|file| (Access::READ_OK | Access::WRITE_OK, file));
    let all = std::iter::once((Access::WRITE_OK | Access::EXEC_OK, directory.to_owned())).chain(file);
    all.into_iter().find_map(|(wanted, path)| {
        let error = Error::from(access(&path, wanted).err()?);
        Some(format!("this user can't write {}: {error}; {}", path.display(), advice(&error)))
    })
}

/// The reason for an SQLite error if the disk is full. SQLite's own message would contain only a number.
pub(crate) fn full_disk(database: &Path) -> Option<&'static str> {
    statvfs(directory_of(database)).ok().filter(|disk| disk.f_bavail == 0).map(|_| FULL)
}

const FULL: &str = "its disk is full: make room";

/// What to do about a file that can't be opened.
pub(crate) fn advice(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull => FULL,
        ErrorKind::ReadOnlyFilesystem => {
            "the file system is read-only here: choose another directory or, for a service of systemd, name it in ReadWritePaths"
        }
        _ => "check the directory, the owner and the permissions",
    }
}

fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path with a suffix after its name.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}
