//! Removes directories in which runs have written, of any depth and with any permissions.

use std::ffi::{CStr, CString};
use std::io;
use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use uuid::Uuid;

/// How many entries of a directory are read at a time.
const BATCH: usize = 10_000;

/// Removes a directory with everything in it, if it exists. Links are not followed. The run may have made some of it read-only (as Go's
/// module cache is), and may have nested directories deeper than a path or a stack can be. So each directory is moved to the top before it
/// is emptied, and none is ever deep.
///
/// # Errors
/// Some of it could not be removed.
pub(crate) fn remove_all(dir: &Path) -> io::Result<()> {
    match open_dir(CWD, dir) {
        Ok(top) => {
            empty(&top)?;
            Ok(unlinkat(CWD, dir, AtFlags::REMOVEDIR)?)
        }
        Err(Errno::NOENT) => Ok(()),
        // It is not a directory.
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(unlinkat(CWD, dir, AtFlags::empty())?),
        Err(error) => Err(error.into()),
    }
}

fn open_dir<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(&at, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // A link must not be followed.
            if FileType::from_raw_mode(statat(&at, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode) != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
            chmodat(&at, name, Mode::RWXU, AtFlags::empty())?;
            openat(&at, name, flags, Mode::empty())
        }
        opened => opened,
    }
}

/// Removes everything in the directory.
fn empty(top: &OwnedFd) -> io::Result<()> {
    loop {
        let names = names(top)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            if let Some(below) = remove_file_or_open(top, &name)? {
                raise(&below, top)?;
                unlinkat(top, &*name, AtFlags::REMOVEDIR)?;
            }
        }
    }
}

/// Moves the subdirectories of this directory to the top, and removes its files.
fn raise(dir: &OwnedFd, top: &OwnedFd) -> io::Result<()> {
    loop {
        let names = names(dir)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            if remove_file_or_open(dir, &name)?.is_some() {
                renameat(dir, &*name, top, Uuid::now_v7().to_string())?;
            }
        }
    }
}

/// Removes the entry with this name. A directory is opened instead, and made accessible for its owner.
fn remove_file_or_open(dir: &OwnedFd, name: &CStr) -> io::Result<Option<OwnedFd>> {
    match open_dir(dir, name) {
        Ok(below) => {
            rustix::fs::fchmod(&below, Mode::RWXU)?;
            Ok(Some(below))
        }
        Err(Errno::NOTDIR | Errno::LOOP) => {
            unlinkat(dir, name, AtFlags::empty())?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Some names in the directory; none if it is empty.
fn names(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    rustix::fs::fchmod(dir, Mode::RWXU)?;
    let entries = Dir::read_from(dir)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    let mut found = Vec::new();
    for name in names {
        let name = name?;
        if !matches!(name.to_bytes(), b"." | b"..") {
            found.push(name);
        }
        if found.len() == BATCH {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn directories_that_are_too_deep_for_a_path_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        // More levels than a process may have open files, and a longer path than the kernel accepts.
        let mut below = open_dir(CWD, &top).unwrap();
        for _ in 0..2_000 {
            rustix::fs::mkdirat(&below, "deeper", Mode::RWXU).unwrap();
            below = open_dir(&below, "deeper").unwrap();
            rustix::fs::openat(&below, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        }
        drop(below);
        remove_all(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn directories_without_permissions_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (top, other) = (dir.path().join("top"), dir.path().join("other"));
        fs::create_dir_all(top.join("closed/below")).unwrap();
        fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, top.join("link")).unwrap();
        for (path, mode) in [(&top.join("closed/below"), 0o555), (&top.join("closed"), 0), (&other, 0o555)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        // On a separate thread, because the thread drops root's right to ignore permissions.
        let removal = std::thread::spawn(move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, sets).unwrap();
            remove_all(&top).map(|()| top.exists())
        });
        assert!(!removal.join().unwrap().unwrap());
        assert_eq!(fs::metadata(other).unwrap().permissions().mode() & 0o777, 0o555);
        remove_all(&dir.path().join("top")).unwrap();
    }
}
