//! Finds what a run has left in its worktree that git must not touch.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::trouble::Trouble;
use crate::machine::walk::{Next, Seen, walk};

/// The maximum number of entries of a worktree that are examined.
const MAX_ENTRIES: usize = 1_000_000;
/// The maximum number of repositories within a worktree: the name of each is passed to git.
const MAX_REPOSITORIES: usize = 1_000;
/// Files that git reads wherever it finds them. If such a file were a pipe, git would wait forever for a writer.
const READ_BY_GIT: [&str; 2] = [".gitignore", ".gitattributes"];

/// Directories below the worktree that are repositories of their own, or pretend to be. Git would run commands inside of them with their
/// own settings, so none may be missed, whatever its name is. Unreadable directories are included.
pub(crate) fn repositories_within(tree: &Path, max_bytes: u64) -> Result<BTreeSet<PathBuf>, Trouble> {
    let (mut found, mut bytes, mut trouble) = (BTreeSet::new(), 0_u64, None);
    let is_whole = walk(tree, MAX_ENTRIES, |seen| {
        let (path, name, about) = match seen {
            Seen::Entry { path, name, about } => (path, name, about),
            // Git could not look into it and must not try: the run may have hidden a repository there.
            Seen::Unreadable { path, error } if error.kind() == io::ErrorKind::PermissionDenied && path != Path::new("") => {
                found.insert(path.to_owned());
                return if found.len() > MAX_REPOSITORIES { Next::Stop } else { Next::Past };
            }
            Seen::Unreadable { path, error } => {
                let text = format!("the changes can't be committed: {} can't be read: {error}", tree.join(path).display());
                trouble = Some(Trouble::State(text));
                return Next::Stop;
            }
        };
        bytes = bytes.saturating_add(if about.is_file() { about.len() } else { 0 });
        if bytes > max_bytes {
            return Next::Stop;
        }
        if name.eq_ignore_ascii_case(".git") {
            let dir = path.parent().unwrap_or(Path::new(""));
            if dir != Path::new("") {
                found.insert(dir.to_owned());
            }
            return if found.len() > MAX_REPOSITORIES { Next::Stop } else { Next::Past };
        }
        if !about.is_dir() && !about.is_file() && !about.is_symlink() && READ_BY_GIT.iter().any(|read| name == *read) {
            let why = "the changes can't be committed: it is no file, but git reads it";
            trouble = Some(Trouble::State(format!("{why}: {}", tree.join(path).display())));
            return Next::Stop;
        }
        Next::Into
    });
    match trouble {
        Some(trouble) => Err(trouble),
        None if is_whole => Ok(found),
        None => Err(Trouble::Size(format!(
            "the changes can't be committed: the worktree has more than {MAX_ENTRIES} files, {MAX_REPOSITORIES} repositories within it, \
             or {} MiB (--max-clone-mib)",
            max_bytes >> 20
        ))),
    }
}

/// All of the worktree except these directories, in the form of git's pathspec files. The paths are bytes, because names need not be UTF-8.
pub(crate) fn all_but(repositories: &BTreeSet<PathBuf>) -> Vec<u8> {
    let mut paths = b".\0".to_vec();
    for path in repositories {
        paths.extend_from_slice(b":(exclude,literal,top)");
        paths.extend_from_slice(path.as_os_str().as_bytes());
        paths.push(0);
    }
    paths
}
