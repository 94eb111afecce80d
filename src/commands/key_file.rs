//! A key that is kept in a file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use secrecy::SecretString;

use crate::CommandError;

const MAX_KEY_BYTES: u64 = 64 * 1024;

/// Reads a key from a file. Line breaks at its end are removed.
///
/// # Errors
/// The file can't be read, or contains no key.
pub fn read_key(path: &Path) -> Result<SecretString, CommandError> {
    // What was given may be the key itself.
    let shown = path.to_string_lossy();
    let shown = if shown.len() >= 16 && !shown.contains(['/', '.']) && !path.exists() { "****".into() } else { shown };
    let wrong = |why: String| CommandError::usage(format!("the key file {shown}: {why}"));
    let mut text = String::new();
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let read = file.take(MAX_KEY_BYTES + 1).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if read as u64 > MAX_KEY_BYTES {
        return Err(wrong(format!("it is longer than {MAX_KEY_BYTES} bytes")));
    }
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(wrong("it is empty".into())),
        key => Ok(SecretString::from(key)),
    }
}
