//! The key that `dev` makes for itself, in its data directory, where the commands of the same user find it.

use std::fs::{self, OpenOptions};
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

/// The key of this data directory, if `dev` has made one there.
///
/// # Errors
/// The file can't be read, or contains no key.
pub fn stored(data_dir: &Path) -> Result<Option<SecretString>, CommandError> {
    let path = path(data_dir);
    if path.exists() { read_key(&path).map(Some) } else { Ok(None) }
}

/// The key of this data directory, which is `new` if there is none.
///
/// # Errors
/// The key can't be stored or read.
pub fn stored_or(data_dir: &Path, new: &str) -> Result<SecretString, CommandError> {
    let path = path(data_dir);
    if !path.exists() {
        store(&path, new).map_err(|error| {
            format!("the key for dev can't be written to {}: {error}; choose another --data-dir, or set RUNTIME_API_KEY", path.display())
        })?;
    }
    read_key(&path)
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
