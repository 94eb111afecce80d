//! The files of a context in the agent's directory: their names, and the record of the context's session.

use std::fs;
use std::io;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::contexts::session::SessionRecord;
use crate::home::{Home, read_json, write_json};

impl Home {
    /// The paths that the repository of a context has in each project's directory; most do not exist.
    pub(crate) fn context_repositories(&self, context_id: &str) -> Vec<PathBuf> {
        let name = self.context_dir(context_id).with_added_extension("git");
        let projects = fs::read_dir(self.repositories_dir()).into_iter().flatten().flatten().map(|entry| entry.path());
        projects.map(|project| project.join("contexts").join(name.file_name().unwrap_or_default())).collect()
    }

    pub(crate) fn context_dir(&self, context_id: &str) -> PathBuf {
        self.contexts_dir().join(file_name(context_id))
    }

    /// Where the CLI keeps the sessions of a context whose runs are in a sandbox. The directory exists once there was such a run.
    pub(crate) fn sandboxed_sessions(&self, context_id: &str) -> PathBuf {
        self.session_path(context_id).with_extension("sandbox")
    }

    pub(crate) fn session(&self, context_id: &str) -> Option<SessionRecord> {
        read_json::<SessionRecord>(&self.session_path(context_id)).filter(|record| record.context_id == context_id)
    }

    /// # Errors
    /// The record can't be written.
    pub(crate) fn keep_session(&self, record: &SessionRecord) -> io::Result<()> {
        write_json(&self.session_path(&record.context_id), record)
    }

    fn session_path(&self, context_id: &str) -> PathBuf {
        self.root().join("sessions").join(file_name(context_id)).with_added_extension("json")
    }

    /// The note that says when the directory of a context without a project was used.
    pub(crate) fn use_path(&self, context_id: &str) -> PathBuf {
        self.session_path(context_id).with_extension("used")
    }

    pub(crate) fn use_paths(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root().join("sessions")).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "used")).collect()
    }

    /// All paths of a context without a project. The note comes last.
    pub(crate) fn paths_of(&self, context_id: &str) -> Vec<PathBuf> {
        vec![self.context_dir(context_id), self.sandboxed_sessions(context_id), self.session_path(context_id), self.use_path(context_id)]
    }
}

/// A file name for any text. It is readable, and differs for different texts, even if somebody searches for a collision.
fn file_name(text: &str) -> String {
    with_digest(text, 32)
}

/// A shorter file name. Somebody who searches for it can find two texts with the same name.
pub(crate) fn short_file_name(text: &str) -> String {
    with_digest(text, 12)
}

fn with_digest(text: &str, digits: usize) -> String {
    let shown: String = text.chars().take(40).map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' }).collect();
    let digest = hex::encode(Sha256::digest(text.as_bytes()));
    format!("{shown}-{}", &digest[..digits])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_have_names_of_their_own() {
        let names = ["a", "a/b", "a_b", "../..", ".", "ä", "A"].map(file_name);
        assert!(names.iter().all(|name| !name.contains(['/', '.'])), "{names:?}");
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len());
    }
}
