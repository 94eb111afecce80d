//! The key that `dev` makes for itself, in its data directory, where the commands of the same user find it.
//!
//! `dev` locks the file while it runs. Commands use the key only then: else another user of the machine, who listens at the port of `dev`, would
//! be told it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use secrecy::SecretString;

use super::key_file::read_key;
use crate::CommandError;

/// Where the key of a data directory is.
pub fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("dev.key")
}

/// The key of the `dev` that runs with this data directory.
///
/// # Errors
/// The file can't be read, or contains no key.
pub fn in_use(data_dir: &Path) -> Result<Option<SecretString>, CommandError> {
    let path = path(data_dir);
    let is_locked = File::open(&path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
    if is_locked { read_key(&path).map(Some) } else { Ok(None) }
}

/// The key of this data directory, which is `new` if there is none, and its file, which is locked as long as it is open.
///
/// # Errors
/// The key can't be stored or read, or another `dev` uses it.
pub fn locked(data_dir: &Path, new: &str) -> Result<(SecretString, File), CommandError> {
    let path = path(data_dir);
    if !path.exists() {
        store(&path, new).map_err(|error| {
            format!("the key for dev can't be written to {}: {error}; choose another --data-dir, or set RUNTIME_API_KEY", path.display())
        })?;
    }
    let key = read_key(&path)?;
    let file = File::open(&path).map_err(|error| format!("the key file {} can't be opened: {error}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok((key, file)),
        Err(_) => Err(format!("another dev uses the data directory {}: stop it, or choose another --data-dir", data_dir.display()).into()),
    }
}

/// The file is there with the whole key, or not at all, also if two processes make it.
fn store(path: &Path, key: &str) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let part = path.with_added_extension(std::process::id().to_string());
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    writeln!(file, "{key}")?;
    file.sync_all()?;
    let linked = fs::hard_link(&part, path);
    fs::remove_file(&part)?;
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
