//! The key of a client, which may be in a file that changes.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use reqwest::header::HeaderValue;
use secrecy::{ExposeSecret, SecretString};

use super::{Client, Error};

const MAX_KEY_BYTES: u64 = 64 * 1024;

/// Reads a key from a file. Line breaks at its end are removed.
///
/// # Errors
/// The file can't be read, or contains no key.
pub fn read_key(path: &Path) -> Result<SecretString, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(MAX_KEY_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if read as u64 > MAX_KEY_BYTES {
        return Err(format!("it is longer than {MAX_KEY_BYTES} bytes"));
    }
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(
            "it is empty. In a shell, `> FILE` empties the file before the command starts, so a `key create` that failed has removed the \
                   key that was in it: revoke that key, and create another one with --out FILE"
                .into(),
        ),
        key => Ok(SecretString::from(key)),
    }
}

/// Shared by the clones of a client.
#[derive(Debug, Default)]
pub(super) struct Key {
    value: RwLock<Option<HeaderValue>>,
    /// The file that contains it, if it may change.
    file: Option<PathBuf>,
}

impl Key {
    pub(crate) fn new(key: Option<&SecretString>) -> Result<Self, Error> {
        Ok(Self { value: RwLock::new(key.map(header).transpose()?), file: None })
    }

    pub(crate) fn value(&self) -> Option<HeaderValue> {
        self.value.read().clone()
    }
}

fn header(key: &SecretString) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(key.expose_secret()).map_err(|_| {
        Error::Usage("the key must be one line of visible ASCII characters: correct BLOOM_KEY, or the file of --key-file".into())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

impl Client {
    /// A client whose key is in this file. The file is read again when the server refuses the key, and by [`renew_key`](Self::renew_key).
    /// The client shares no key with other clones.
    #[must_use]
    pub fn with_key_file(self, file: Option<PathBuf>) -> Self {
        Self { key: Arc::new(Key { value: RwLock::new(self.key.value()), file }), ..self }
    }

    /// A client with this key of its own, which shares connections and TLS with this one.
    ///
    /// # Errors
    /// The key can't be sent as a header.
    pub fn with_key(&self, key: &SecretString) -> Result<Self, Error> {
        Ok(Self { key: Arc::new(Key::new(Some(key))?), ..self.clone() })
    }

    /// Uses another key from now on, in all clones.
    ///
    /// # Errors
    /// The key can't be sent as a header; the client keeps using the previous one.
    pub fn use_key(&self, key: &SecretString) -> Result<(), Error> {
        *self.key.value.write() = Some(header(key)?);
        Ok(())
    }

    /// Reads the key file again, if there is one, and returns whether the key has changed.
    ///
    /// # Errors
    /// The file contains no usable key; the client keeps using the previous one.
    pub fn renew_key(&self) -> Result<bool, Error> {
        // A pipe can be read only once.
        let Some(file) = self.key.file.as_deref().filter(|file| !file.exists() || file.is_file()) else { return Ok(false) };
        let key = read_key(file).map_err(|why| Error::Usage(format!("the key file {}: {why}", file.display())))?;
        let key = Some(header(&key)?);
        let is_other = *self.key.value.read() != key;
        if is_other {
            *self.key.value.write() = key;
            tracing::info!("the key file has changed; calls of the server use the new key");
        }
        Ok(is_other)
    }
}
