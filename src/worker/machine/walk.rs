//! The only way to scan directories in which runs write. They may have any number of entries, of any depth, and change meanwhile.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// The maximum total length of the paths of directories that are still to be scanned, in bytes.
const MOST_LEFT: usize = 64 << 20;

/// What the scan has found. Paths are relative to the top.
pub(crate) enum Seen<'a> {
    /// An entry. Links are not followed.
    Entry { path: &'a Path, name: &'a OsString, about: &'a Metadata },
    /// A directory or an entry that can't be read, for example because its path is too long.
    Unreadable { path: &'a Path, error: io::Error },
}

pub(crate) enum Next {
    /// Continue, and scan the entry's own entries if it is a directory.
    Into,
    /// Continue without them.
    Past,
    Stop,
}

/// Scans everything below `top`. Returns false if the scan is incomplete, because there are more than `most` entries, or because `see`
/// stopped it.
pub(crate) fn walk(top: &Path, most: usize, mut see: impl FnMut(Seen<'_>) -> Next) -> bool {
    let (mut left, mut bytes, mut seen) = (vec![PathBuf::new()], 0_usize, 0_usize);
    while let Some(dir) = left.pop() {
        bytes -= dir.as_os_str().len();
        let entries = match fs::read_dir(top.join(&dir)) {
            Ok(entries) => entries,
            // The directory was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => match see(Seen::Unreadable { path: &dir, error }) {
                Next::Stop => return false,
                Next::Into | Next::Past => continue,
            },
        };
        for entry in entries {
            seen += 1;
            if seen > most {
                return false;
            }
            let found = entry.and_then(|entry| Ok((entry.file_name(), entry.metadata()?)));
            let (name, about) = match found {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => match see(Seen::Unreadable { path: &dir, error }) {
                    Next::Stop => return false,
                    Next::Into | Next::Past => continue,
                },
            };
            let path = dir.join(&name);
            match see(Seen::Entry { path: &path, name: &name, about: &about }) {
                Next::Stop => return false,
                Next::Into if about.is_dir() => {
                    bytes += path.as_os_str().len();
                    if bytes > MOST_LEFT {
                        return false;
                    }
                    left.push(path);
                }
                Next::Into | Next::Past => {}
            }
        }
    }
    true
}
