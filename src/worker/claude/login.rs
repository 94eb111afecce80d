//! The login of the Claude CLI, which all runs of an account share. A run in a sandbox can write the file, because its CLI renews the login
//! there. The file is written in place, as it is mounted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::claude::cli_settings::{CREDENTIALS, config_dir};
use crate::machine::disk_size::held::is_written_by;
use crate::machine::disk_size::size_of;
use crate::profile::{Profile, Runner};

/// The maximum size of a login file. A login has a few hundred bytes; logins of MCP servers add some thousands.
const MOST: u64 = 1 << 20;
/// How long another CLI may take to write the file.
const WRITTEN_WITHIN: Duration = Duration::from_millis(200);

/// The login file, while a run that can write it continues.
pub(crate) struct Login {
    path: PathBuf,
    /// The newest content that could be a login.
    kept: Mutex<Vec<u8>>,
}

impl Login {
    /// `None`: runs of the profile can't write the file, or it does not exist.
    pub(crate) fn of(profile: &Profile) -> Option<Self> {
        profile.sandbox.as_ref().filter(|_| profile.runner == Runner::Claude)?;
        let path = config_dir(&profile.env)?.join(CREDENTIALS);
        let kept = Mutex::new(content(&path)?);
        Some(Self { path, kept })
    }

    /// Checks the file, and repairs it at once if it is too large. Returns its size on the disk if one of these processes, which belong to
    /// the run, was writing it: the file is mounted in the runs of all contexts, and no other run is to blame.
    pub(crate) fn look(&self, processes: &[i32]) -> u64 {
        if let Some(newer) = content(&self.path) {
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = newer;
            return 0;
        }
        let Some(about) = fs::metadata(&self.path).ok().filter(|about| about.len() > MOST) else { return 0 };
        let is_writer = is_written_by(processes, &about);
        self.write();
        if is_writer { size_of(&about) } else { 0 }
    }

    /// Restores the last valid content if the run has left something that can't be a login.
    pub(crate) fn repair(&self) {
        if content(&self.path).is_some() {
            return;
        }
        std::thread::sleep(WRITTEN_WITHIN);
        if content(&self.path).is_none() {
            self.write();
        }
    }

    /// Writes the file in place, because runs have it mounted.
    fn write(&self) {
        let path = self.path.display();
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match fs::write(&self.path, &*kept) {
            Ok(()) => tracing::warn!(%path, "a run has spoiled the login of the Claude CLI; the last good one is there again"),
            Err(error) => tracing::warn!(%path, %error, "a run has spoiled the login of the Claude CLI, and it can't be written"),
        }
    }
}

/// The content, if it could be a login: a single JSON object of limited size.
fn content(path: &Path) -> Option<Vec<u8>> {
    let read = || -> io::Result<Vec<u8>> {
        let about = fs::metadata(path)?;
        if !about.is_file() || about.len() > MOST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        fs::read(path)
    };
    read().ok().filter(|bytes| serde_json::from_slice::<Map<String, Value>>(bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_that_a_run_has_spoiled_is_put_right() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CREDENTIALS);
        fs::write(&path, r#"{"token": 1}"#).unwrap();
        let login = Login { kept: Mutex::new(content(&path).unwrap()), path: path.clone() };
        let now = || fs::read_to_string(&path).unwrap();
        fs::write(&path, r#"{"token": 2}"#).unwrap();
        login.look(&[]);
        for spoiled in ["", "[]", "x"] {
            fs::write(&path, spoiled).unwrap();
            login.look(&[]);
            assert_eq!(now(), spoiled, "it may be written just now");
            login.repair();
            assert_eq!(now(), r#"{"token": 2}"#);
        }
        fs::write(&path, vec![b' '; 2 << 20]).unwrap();
        let own = [std::process::id().cast_signed()];
        assert_eq!(login.look(&own), 0, "written by another");
        assert_eq!(now(), r#"{"token": 2}"#, "at once");
        let reading = fs::File::open(&path).unwrap();
        fs::write(&path, vec![b' '; 2 << 20]).unwrap();
        assert_eq!(login.look(&own), 0, "it is read only");
        let mut writing = fs::OpenOptions::new().write(true).open(&path).unwrap();
        io::Write::write_all(&mut writing, &vec![b' '; 2 << 20]).unwrap();
        assert!(login.look(&own) >= 2 << 20);
        drop((reading, writing));
    }
}
