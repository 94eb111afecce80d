//! Files that no run has changed, although git would commit them with other contents.
//!
//! A repository may have files that its own `.gitattributes` would store in another form: for example with Windows line endings where
//! `eol=lf` is set, or a large file instead of a pointer to it. Git leaves them unchanged until somebody adds them. The agent adds all
//! files, so it then reverts those whose bytes are the same as in the commit.

use super::confined::Confined;

/// The prefix of the modes of regular files.
const FILE: &[u8] = b"100";

/// A file whose content in the index differs from the commit.
struct Changed<'a> {
    mode: &'a [u8],
    /// The object in the commit.
    committed: &'a [u8],
    path: &'a [u8],
}

impl Confined<'_> {
    /// Reverts index entries of files whose bytes are the same as in the commit.
    pub(crate) async fn keep_unchanged(&self, head: &str) -> Result<(), String> {
        let mut diff = self.git();
        diff.args([
            "diff-index",
            "--cached",
            "--raw",
            "-z",
            "--no-renames",
            "--no-abbrev",
            "--diff-filter=M",
            "--ignore-submodules=all",
            head,
        ]);
        // If the list is too long to be read completely, no entry is reverted.
        let Ok(listed) = self.answer(&diff, Vec::new(), &[0]).await else { return Ok(()) };
        let changed: Vec<Changed<'_>> = changed(&listed).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let mut hash = self.git();
        hash.args(["hash-object", "--no-filters", "--stdin-paths"]);
        let hashed = self.answer(&hash, changed.iter().flat_map(|file| quoted(file.path)).collect(), &[0]).await?;
        let ids: Vec<&[u8]> = hashed.split(|byte| *byte == b'\n').collect();
        if ids.len() != changed.len() + 1 {
            return Err("git told of other files than it was asked about".into());
        }
        let same = changed.iter().zip(ids).filter(|(file, id)| file.committed == *id);
        let entries: Vec<u8> = same.flat_map(|(file, _)| [file.mode, b" ", file.committed, b"\t", file.path, b"\0"].concat()).collect();
        if entries.is_empty() {
            return Ok(());
        }
        let mut update = self.git();
        update.args(["update-index", "-z", "--index-info"]);
        self.answer(&update, entries, &[0]).await.map(drop)
    }
}

/// Parses the entries of regular files, which have the form `:OLDMODE NEWMODE OLDID NEWID M`, NUL, `PATH`, NUL.
fn changed(listed: &[u8]) -> impl Iterator<Item = Changed<'_>> {
    let mut parts = listed.split(|byte| *byte == 0);
    std::iter::from_fn(move || Some((parts.next()?, parts.next()?))).filter_map(|(about, path)| {
        let mut words = about.strip_prefix(b":")?.split(|byte| *byte == b' ');
        let (old, mode, committed) = (words.next()?, words.next()?, words.next()?);
        (old.starts_with(FILE) && mode.starts_with(FILE)).then_some(Changed { mode, committed, path })
    })
}

/// A path as a line in git's quoted form, which can have any bytes.
fn quoted(path: &[u8]) -> Vec<u8> {
    let escaped = path.iter().flat_map(|byte| format!("\\{byte:03o}").into_bytes());
    b"\"".iter().copied().chain(escaped).chain(*b"\"\n").collect()
}
