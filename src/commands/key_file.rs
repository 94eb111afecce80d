//! Keys that are stored in files.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use secrecy::SecretString;

use super::term;
use crate::CommandError;

/// Reads a key from a file. Line breaks at its end are removed. Warns if everybody on this machine can read the file.
///
/// # Errors
/// The file can't be read, or contains no key.
pub fn read_key(path: &Path) -> Result<SecretString, CommandError> {
    // The user may have given the key itself instead of a file, so it is not shown.
    let shown = path.to_string_lossy();
    let shown = if shown.len() >= 16 && !shown.contains(['/', '.']) && !path.exists() { "****".into() } else { shown };
    let wrong = |why: String| CommandError::usage(format!("the key file {shown}: {why}"));
    if let Ok(about) = fs::metadata(path)
        && about.is_file()
        && about.mode() & 0o004 != 0
    {
        let mode = about.mode() & 0o7777;
        term::info(&format!("Warning: other users can read the key file {shown} (mode {mode:04o}). Restrict it: chmod 600 {shown}"));
    }
    bloom_client::read_key(path).map_err(wrong)
}

/// The key, which is given directly or in a file. `name` and `file_name` are the names of the two ways to give it.
///
/// # Errors
/// Both are given, or the file can't be used.
pub(crate) fn one_key(
    name: &str,
    key: Option<SecretString>,
    file_name: &str,
    file: Option<PathBuf>,
) -> Result<Option<SecretString>, CommandError> {
    match (key, file) {
        (Some(_), Some(_)) => Err(CommandError::usage(format!("{name} and {file_name} are both given; use only one of them"))),
        (None, Some(file)) => read_key(&file).map(Some),
        (key, None) => Ok(key),
    }
}

/// A file for a key that is not created yet. The file is created first, so that no key is created that can't be stored.
pub(crate) struct NewKeyFile {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl NewKeyFile {
    /// Creates the file, which only its owner can read.
    ///
    /// # Errors
    /// The file exists already, or can't be created.
    pub(crate) fn create(path: PathBuf) -> Result<Self, CommandError> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        match made {
            Ok(file) => Ok(Self { path, file, is_kept: false }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(CommandError::usage(format!(
                "--out: {} exists already, and may have a key that is in use; name another file",
                path.display()
            ))),
            Err(error) => Err(format!("--out: {} can't be made: {error}", path.display()).into()),
        }
    }

    /// Stores the key.
    ///
    /// # Errors
    /// The key can't be written. The file is then removed.
    pub(crate) fn keep(mut self, key: &str) -> Result<PathBuf, CommandError> {
        let written = self.file.write_all(format!("{key}\n").as_bytes()).and_then(|()| self.file.sync_all());
        written
            .map_err(|error| format!("the key can't be written to {}: {error}; revoke it and create another one", self.path.display()))?;
        self.is_kept = true;
        Ok(self.path.clone())
    }
}

impl Drop for NewKeyFile {
    /// Removes a file without a key, also if the call is interrupted.
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}
