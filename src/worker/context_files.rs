//! The files of a context in the agent's directory: their names, and the record of its session.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::home::{Home, read_json, write_json};
use super::session::SessionRecord;

impl Home {
    /// Where the repository of a context is, for each project; most do not exist.
    pub fn context_repositories(&self, context_id: &str) -> Vec<PathBuf> {
        let name = self.context_dir(context_id).with_added_extension("git");
        let projects = fs::read_dir(self.repositories_dir()).into_iter().flatten().flatten().map(|entry| entry.path());
        projects.map(|project| project.join("contexts").join(name.file_name().unwrap_or_default())).collect()
    }

    pub fn context_dir(&self, context_id: &str) -> PathBuf {
        self.contexts_dir().join(context_name(self.root(), context_id))
    }

    /// Where the CLI keeps the sessions of a context whose runs are in a sandbox. It exists once there was such a run.
    pub fn sandboxed_sessions(&self, context_id: &str) -> PathBuf {
        self.session_path(context_id).with_extension("sandbox")
    }

    pub fn session(&self, context_id: &str) -> Option<SessionRecord> {
        read_json::<SessionRecord>(&self.session_path(context_id)).filter(|record| record.context_id == context_id)
    }

    /// # Errors
    /// The record can't be written.
    pub fn keep_session(&self, record: &SessionRecord) -> io::Result<()> {
        write_json(&self.session_path(&record.context_id), record)
    }

    fn session_path(&self, context_id: &str) -> PathBuf {
        self.root().join("sessions").join(context_name(self.root(), context_id)).with_added_extension("json")
    }

    /// The note that tells when the directory of a context without a project was used.
    pub fn use_path(&self, context_id: &str) -> PathBuf {
        self.session_path(context_id).with_extension("used")
    }

    pub fn use_paths(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root().join("sessions")).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "used")).collect()
    }

    /// All that is here of a context without a project; the note comes last.
    pub fn paths_of(&self, context_id: &str) -> Vec<PathBuf> {
        vec![self.context_dir(context_id), self.sandboxed_sessions(context_id), self.session_path(context_id), self.use_path(context_id)]
    }
}

/// Says whose files have a name: a file of its own, or the record of the context's session.
#[derive(Deserialize, Serialize)]
struct Owner {
    context_id: String,
}

/// The name of the files of a context below `root`. Those that an earlier version made keep their name, because sessions of the CLI and
/// worktrees belong to the path of the directory.
pub fn context_name(root: &Path, context_id: &str) -> String {
    let earlier = short_file_name(context_id);
    if is_of_context(root, &earlier, context_id) { earlier } else { file_name(context_id) }
}

/// Whether files of an earlier version are those of the context. Two contexts can have the same short name: it is that of the first one that
/// uses it since then, or the one whose session is there.
fn is_of_context(root: &Path, earlier: &str, context_id: &str) -> bool {
    let sessions = root.join("sessions");
    let named = |kind: &str| sessions.join(earlier).with_added_extension(kind);
    let owner = named("owner");
    if !owner.exists() {
        let session = named("json");
        let is_others = read(&session).is_some_and(|known| known.context_id != context_id);
        let exists = [root.join("contexts").join(earlier), session, named("sandbox")].iter().any(|path| path.exists());
        if is_others || !exists {
            return false;
        }
        if let Err(error) = claim(&sessions, &owner, context_id) {
            tracing::debug!(context_id, %error, "the files of the context were not claimed");
        }
    }
    read(&owner).is_some_and(|owner| owner.context_id == context_id)
}

/// Makes the file by a link: at once and whole, or not at all if another context was faster.
fn claim(sessions: &Path, owner: &Path, context_id: &str) -> io::Result<()> {
    let claim = sessions.join(file_name(context_id)).with_added_extension("claim");
    fs::write(&claim, serde_json::to_vec(&Owner { context_id: context_id.to_owned() })?)?;
    let made = fs::hard_link(&claim, owner);
    fs::remove_file(&claim)?;
    made
}

fn read(path: &Path) -> Option<Owner> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// A file name for any text: readable, and different for different texts, also if somebody looks for two that have the same.
fn file_name(text: &str) -> String {
    with_digest(text, 32)
}

/// A shorter one. Somebody who looks for them finds two texts that have the same.
pub fn short_file_name(text: &str) -> String {
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
    use crate::home::private_dir;

    #[test]
    fn contexts_have_names_of_their_own() {
        let names = ["a", "a/b", "a_b", "../..", ".", "ä", "A"].map(file_name);
        assert!(names.iter().all(|name| !name.contains(['/', '.'])), "{names:?}");
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn a_short_name_is_that_of_one_context() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for part in ["contexts", "sessions"] {
            fs::create_dir(root.join(part)).unwrap();
        }
        assert_eq!(context_name(root, "new"), file_name("new"));
        let old = short_file_name("old");
        fs::create_dir(root.join("contexts").join(&old)).unwrap();
        assert_eq!((context_name(root, "old"), context_name(root, "old")), (old.clone(), old.clone()));
        // As if both contexts had the same short name.
        assert!(!is_of_context(root, &old, "forged") && is_of_context(root, &old, "old"));
        let older = short_file_name("older");
        let session = root.join("sessions").join(&older).with_added_extension("json");
        fs::write(session, r#"{"context_id": "older", "program": "p"}"#).unwrap();
        assert!(!is_of_context(root, &older, "forged") && is_of_context(root, &older, "older"));
    }

    #[test]
    fn files_of_earlier_versions_are_used_by_one_context() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(&dir.path().join("agent")).unwrap();
        let earlier = home.contexts_dir().join(short_file_name("old"));
        private_dir(&earlier).unwrap();
        assert_eq!((home.context_dir("old"), home.context_dir("old")), (earlier.clone(), earlier.clone()));
        let record = SessionRecord {
            context_id: "old".into(),
            program: "p".into(),
            session_id: "s".into(),
            open_task: None,
            context_reset_at: None,
            after: None,
            has_answered: true,
            warning: None,
            refusals: 0,
            refused: None,
        };
        home.keep_session(&record).unwrap();
        assert_eq!(home.session("old"), Some(record.clone()));
        // The session of an earlier version is found, too.
        let session = home.root().join("sessions").join(short_file_name("older")).with_added_extension("json");
        write_json(&session, &SessionRecord { context_id: "older".into(), ..record }).unwrap();
        assert!(home.session("older").is_some());
        fs::remove_dir(&earlier).unwrap();
        assert_eq!(home.context_dir("old"), earlier, "also before it is made again");
    }
}
