//! The only way to open files that a run may have put in place. Such a path may lead to anything, for example to a pipe without a writer,
//! or to a link to a file that only the agent may read.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// Opens a regular file below the directory for reading. The path can't lead out of the directory, and its last part can't be a link.
///
/// This never waits for another process, but it does wait for the disk: async code calls it in `spawn_blocking`.
///
/// # Errors
/// There is no such file, or it is not a regular file; the text says which.
pub(crate) fn open_below(dir: &Dir, path: &Path) -> io::Result<File> {
    let name = path.file_name().ok_or_else(not_regular)?;
    let above = path.parent().filter(|above| *above != Path::new("")).map(|above| dir.open_dir(above)).transpose()?;
    // Without NONBLOCK, opening a pipe would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = openat(above.as_ref().unwrap_or(dir), name, flags, Mode::empty()).map_err(|error| match error {
        Errno::LOOP => io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link"),
        Errno::NXIO => not_regular(),
        other => other.into(),
    });
    let file = File::from(opened?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// Like [`open_below`], in the directory of this path.
pub(crate) fn open_at(path: &Path) -> io::Result<File> {
    let name = path.file_name().ok_or_else(not_regular)?;
    open_below(&Dir::open_ambient_dir(path.parent().unwrap_or(Path::new(".")), ambient_authority())?, Path::new(name))
}

/// Creates a new file. A previous file at this path is removed.
pub(crate) fn fresh_at(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path);
    // Only the agent's user may read the input and output of runs.
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// The content of a file of at most `most` bytes. The limit is checked while reading, because the file may grow.
///
/// # Errors
/// The file can't be read, or is longer.
pub(crate) fn read_all(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {most} bytes")));
    }
    Ok(bytes)
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_below_are_opened() {
        let temp = tempfile::tempdir().unwrap();
        let inside = temp.path().join("inside");
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::write(temp.path().join("secret"), "no").unwrap();
        std::fs::write(inside.join("sub/file"), "yes").unwrap();
        std::os::unix::fs::symlink("sub/file", inside.join("link")).unwrap();
        std::os::unix::fs::symlink("..", inside.join("out")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(inside.join("socket")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(inside.join("pipe")).status().unwrap().success());
        let dir = Dir::open_ambient_dir(&inside, ambient_authority()).unwrap();
        let opened = |path: &str| open_below(&dir, Path::new(path)).map_err(|error| error.to_string());
        assert_eq!(read_all(opened("sub/file").unwrap(), 3).unwrap(), b"yes");
        assert!(read_all(opened("sub/file").unwrap(), 2).unwrap_err().to_string().contains("longer"));
        assert_eq!(opened("link").unwrap_err(), "it is a symbolic link");
        for path in ["pipe", "socket", "sub", "", ".."] {
            assert_eq!(opened(path).unwrap_err(), "it is not a regular file", "{path}");
        }
        for path in ["out/secret", "../secret", "sub/../../secret", "pipe/file", "none"] {
            assert!(opened(path).is_err(), "{path}");
        }
    }
}
