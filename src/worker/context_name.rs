//! The names of the files of a context in the agent's directory.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

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
}
