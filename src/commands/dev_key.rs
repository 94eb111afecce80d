//! The key that `dev` creates for itself, in its data directory, where the commands of the same user find it.
//!
//! `dev` locks the file while it runs, and stores its address next to it. Commands send the key only to this address, and only while `dev`
//! runs. Otherwise another user of the machine could receive the key by listening at another port, or at the port of a `dev` that has
//! ended.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use secrecy::SecretString;

use super::key_file::read_key;
use crate::CommandError;

/// The path of the key in a data directory.
pub fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("dev.key")
}

fn address_path(data_dir: &Path) -> PathBuf {
    data_dir.join("dev.address")
}

/// The key of a running `dev`, and its address.
#[derive(Debug)]
pub struct InUse {
    /// The key that it accepts.
    pub key: SecretString,
    /// `http://127.0.0.1:5000`.
    pub url: String,
}

impl InUse {
    /// Whether this is the address of the `dev`, with or without the scheme. Another name for the same host does not count, because another
    /// user's program may listen there.
    pub fn is_at(&self, server: &str) -> bool {
        let server = server.trim_end_matches('/');
        server == self.url || self.url.strip_prefix("http://") == Some(server)
    }
}

/// The maximum size of the file with the address.
const MOST_BYTES: u64 = 4_096;

/// The key and the address of the `dev` that runs with this data directory; `None` if none runs, or if it does not listen yet.
///
/// # Errors
/// The key can't be read, or the file contains none.
pub fn in_use(data_dir: &Path) -> Result<Option<InUse>, CommandError> {
    let path = path(data_dir);
    let is_locked = File::open(&path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
    // Only a regular file is read, because a pipe might never end.
    let address = address_path(data_dir);
    let is_file = fs::metadata(&address).is_ok_and(|found| found.is_file() && found.len() < MOST_BYTES);
    match fs::read_to_string(address) {
        _ if !is_file => Ok(None),
        Ok(url) if is_locked => Ok(Some(InUse { key: read_key(&path)?, url: url.trim().to_owned() })),
        _ => Ok(None),
    }
}

/// Stores the address of the `dev` with this data directory, which must have [`locked`] the directory.
///
/// # Errors
/// The file can't be written.
pub fn listens(data_dir: &Path, url: &str) -> io::Result<()> {
    replace(&address_path(data_dir), url, |part, path| fs::rename(part, path))
}

/// Returns the key of this data directory, which is set to `new` if there is none, and its file. The key stays locked as long as the file
/// is open.
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
        // The stored address is that of an earlier `dev`.
        Ok(()) => match fs::remove_file(address_path(data_dir)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("{}: {error}", address_path(data_dir).display()).into()),
            _ => Ok((key, file)),
        },
        Err(_) => Err(format!("another dev uses the data directory {}: stop it, or choose another --data-dir", data_dir.display()).into()),
    }
}

/// Stores the key atomically: the file has the whole key or does not exist, even if two processes create it.
fn store(path: &Path, key: &str) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    match replace(path, key, |part, path| fs::hard_link(part, path).and_then(|()| fs::remove_file(part))) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => fs::remove_file(part_of(path)),
        other => other,
    }
}

fn part_of(path: &Path) -> PathBuf {
    path.with_added_extension(std::process::id().to_string())
}

/// Writes a file that only its owner can read, under a temporary name in the same directory, and moves it to `path` once it is complete.
fn replace(path: &Path, text: &str, moves: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let part = part_of(path);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    moves(&part, path)
}
