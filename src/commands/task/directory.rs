//! The directory into which files are downloaded. Nothing is written outside of it: each part of a path is opened relative to its parent,
//! and none may be a symbolic link.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use uuid::Uuid;

use crate::CommandError;
use bloom_core::file::path_problem;

const EXISTS: &str = "it exists: give another directory, or --force to replace it";

pub(crate) struct Directory {
    root: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// # Errors
    /// The directory can't be created or opened.
    pub(crate) fn open(path: &Path) -> Result<Self, CommandError> {
        let wrong = |error: io::Error| CommandError::from(format!("{}: {error}", path.display()));
        if path.exists() && !path.is_dir() {
            return Err(format!("{}: it is a file: name a directory", path.display()).into());
        }
        fs::create_dir_all(path).map_err(wrong)?;
        let root = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(|error| wrong(error.into()))?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// The path of a file in this directory, for messages.
    pub(crate) fn shown(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Refuses names that lead out of the directory, and existing files unless `force` is set.
    ///
    /// # Errors
    /// The name is refused.
    pub(crate) fn check(&self, name: &str, force: bool) -> Result<(), CommandError> {
        if let Some(wrong) = path_problem(name) {
            return Err(format!("the name {wrong}, so it is not written").into());
        }
        let (parent, last) = self.parent(name)?;
        match statat(&parent, last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) if !force => Err(EXISTS.to_owned().into()),
            _ => Ok(()),
        }
    }

    /// Writes a file with this content.
    ///
    /// # Errors
    /// The name is refused, the file exists and must not be replaced, or it can't be written.
    pub(crate) fn store(&self, name: &str, content: &str, force: bool) -> Result<(), CommandError> {
        self.check(name, force)?;
        let mut file = self.create(name)?;
        file.write_all(content.as_bytes()).map_err(|error| error.to_string())?;
        file.place(force)
    }

    /// Creates a temporary file in the directory of the file with this name. [`place`](Written::place) gives it the name.
    ///
    /// # Errors
    /// The file can't be created.
    pub(crate) fn create(&self, name: &str) -> Result<Written, String> {
        let (parent, last) = self.parent(name).map_err(|error| error.message)?;
        let beside = format!(".{}.part", Uuid::now_v7().simple());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&parent, &beside, flags, Mode::from_raw_mode(0o666)).map_err(|error| error.to_string())?;
        Ok(Written { file: file.into(), parent, beside, last: last.to_owned(), is_placed: false })
    }

    /// The directory of the file with this name, which is created if it does not exist, and the last part of the name.
    fn parent<'n>(&self, name: &'n str) -> Result<(OwnedFd, &'n str), CommandError> {
        let wrong = |part: &str, error: Errno| {
            let why = if error == Errno::LOOP || error == Errno::NOTDIR {
                "is no directory, or a symbolic link".into()
            } else {
                error.to_string()
            };
            CommandError::from(format!("{part} {why}"))
        };
        let mut at = self.root.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let mut parts = name.split('/').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return Ok((at, part));
            }
            match mkdirat(&at, part, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(wrong(part, error)),
            }
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            at = openat(&at, part, flags, Mode::empty()).map_err(|error| wrong(part, error))?;
        }
        Err("the name is empty".to_owned().into())
    }
}

/// A file that is being written. It is removed unless it gets its final name.
pub(crate) struct Written {
    file: File,
    parent: OwnedFd,
    beside: String,
    last: String,
    is_placed: bool,
}

impl Written {
    /// # Errors
    /// The file can't be written, or a file with this name exists and must not be replaced.
    pub(crate) fn place(mut self, force: bool) -> Result<(), CommandError> {
        let wrong = |error: io::Error| CommandError::from(error.to_string());
        self.file.sync_all().map_err(wrong)?;
        let (from, to) = (self.beside.as_str(), self.last.as_str());
        if force {
            renameat(&self.parent, from, &self.parent, to).map_err(|error| wrong(error.into()))?;
            self.is_placed = true;
            return Ok(());
        }
        // A hard link never replaces an existing file, on any file system. The temporary name is removed afterwards.
        match rustix::fs::linkat(&self.parent, from, &self.parent, to, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(EXISTS.to_owned().into()),
            Err(error) => Err(wrong(error.into())),
        }
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = unlinkat(&self.parent, &self.beside, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (PathBuf, Directory) {
        let path = std::env::temp_dir().join(format!("bloom-directory-{}", Uuid::now_v7()));
        let directory = Directory::open(&path.join("into")).unwrap();
        (path, directory)
    }

    fn write(directory: &Directory, name: &str, text: &str, force: bool) -> Result<(), String> {
        directory.check(name, force).map_err(|error| error.message)?;
        let mut file = directory.create(name)?;
        file.write_all(text.as_bytes()).unwrap();
        file.place(force).map_err(|error| error.message)
    }

    #[test]
    fn files_stay_in_the_directory_and_replace_nothing() {
        let (path, directory) = directory();
        write(&directory, "a/b.txt", "one", false).unwrap();
        assert!(write(&directory, "a/b.txt", "two", false).unwrap_err().contains("--force"));
        assert_eq!(fs::read_to_string(path.join("into/a/b.txt")).unwrap(), "one");
        write(&directory, "a/b.txt", "two", true).unwrap();
        assert_eq!(fs::read_to_string(path.join("into/a/b.txt")).unwrap(), "two");
        fs::create_dir(path.join("outside")).unwrap();
        fs::write(path.join("outside/kept"), "kept").unwrap();
        std::os::unix::fs::symlink(path.join("outside"), path.join("into/link")).unwrap();
        std::os::unix::fs::symlink(path.join("outside/kept"), path.join("into/file")).unwrap();
        for name in ["link/x", "../x", "/x", "a/../../x", ".git/config"] {
            assert!(write(&directory, name, "out", true).is_err(), "{name}");
        }
        assert!(write(&directory, "file", "out", false).is_err());
        write(&directory, "file", "in", true).unwrap();
        assert_eq!(fs::read_to_string(path.join("outside/kept")).unwrap(), "kept");
        let outside: Vec<_> = fs::read_dir(path.join("outside")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(outside, ["kept"]);
        let left: Vec<_> =
            fs::read_dir(path.join("into")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(left.iter().all(|name| !name.ends_with(".part")), "{left:?}");
        fs::remove_dir_all(path).unwrap();
    }
}
