//! What a run has left in its worktree, as far as git must be kept from it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::trouble::Trouble;

/// Entries of a worktree that are looked at.
const MAX_ENTRIES: usize = 1_000_000;
/// Repositories within a worktree: each is named to git.
const MAX_REPOSITORIES: usize = 1_000;
/// Files that git reads wherever it finds them. It would wait for ever for the other end of a pipe.
const READ_BY_GIT: [&str; 2] = [".gitignore", ".gitattributes"];

/// Directories below the worktree that are repositories of their own, or that pose as such. Git would run commands inside of them, with
/// their own settings. So none may be missed, whatever its name is, and a directory that can't be read is an error.
pub fn repositories_within(tree: &Path, max_bytes: u64) -> Result<BTreeSet<PathBuf>, Trouble> {
    let (mut found, mut left) = (BTreeSet::new(), vec![PathBuf::new()]);
    let (mut seen, mut bytes) = (0_usize, 0_u64);
    while let Some(dir) = left.pop() {
        let unreadable =
            |error| Trouble::State(format!("the changes can't be committed: {} can't be read: {error}", tree.join(&dir).display()));
        for entry in fs::read_dir(tree.join(&dir)).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let (about, name) = (entry.metadata().map_err(unreadable)?, entry.file_name());
            seen += 1;
            bytes = bytes.saturating_add(if about.is_file() { about.len() } else { 0 });
            if seen > MAX_ENTRIES || found.len() > MAX_REPOSITORIES || bytes > max_bytes {
                return Err(Trouble::Size(format!(
                    "the changes can't be committed: the worktree has more than {MAX_ENTRIES} files, {MAX_REPOSITORIES} repositories within it, \
                     or {} MiB (--max-clone-mib)",
                    max_bytes >> 20
                )));
            }
            if name.eq_ignore_ascii_case(".git") {
                if dir != Path::new("") {
                    found.insert(dir.clone());
                }
            } else if about.is_dir() {
                left.push(dir.join(&name));
            } else if !about.is_file() && !about.is_symlink() && READ_BY_GIT.iter().any(|read| name == *read) {
                let why = "the changes can't be committed: it is no file, but git reads it";
                return Err(Trouble::State(format!("{why}: {}", entry.path().display())));
            }
        }
    }
    Ok(found)
}

/// All of the worktree but these directories, as git reads it from a file: by their bytes, because names need not be UTF-8.
pub fn all_but(repositories: &BTreeSet<PathBuf>) -> Vec<u8> {
    let mut paths = b".\0".to_vec();
    for path in repositories {
        paths.extend_from_slice(b":(exclude,literal,top)");
        paths.extend_from_slice(path.as_os_str().as_bytes());
        paths.push(0);
    }
    paths
}
