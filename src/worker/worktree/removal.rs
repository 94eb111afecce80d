//! Removes directories in which runs have written.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Removes a directory with everything in it, if it exists. The run may have made some of it read-only, as the module cache of Go is.
///
/// # Errors
/// Some of it could not be removed.
pub fn remove_all(dir: &Path) -> io::Result<()> {
    let removed = match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => make_writable(dir).and_then(|()| fs::remove_dir_all(dir)),
        removed => removed,
    };
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Lets the owner read and change this directory and those below it. Links are not followed.
fn make_writable(top: &Path) -> io::Result<()> {
    let mut left = vec![top.to_owned()];
    while let Some(dir) = left.pop() {
        fs::set_permissions(&dir, Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

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
        // A thread of its own, because it loses the right of root to ignore permissions.
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
