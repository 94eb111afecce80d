//! Files that no run has changed, although git would commit them as others.
//!
//! A repository may have files that its own `.gitattributes` would store in another form: with the line ends of Windows where `eol=lf` is wanted, or
//! a large file itself where a pointer to it is. Git leaves them as they are, until somebody adds them. The agent adds all files, so it takes
//! those back whose bytes are those of the commit.

use super::confined::Confined;

/// The modes of regular files begin so.
const FILE: &[u8] = b"100";

/// A file whose content in the index is not that of the commit.
struct Changed<'a> {
    mode: &'a [u8],
    /// The object that the commit has.
    committed: &'a [u8],
    path: &'a [u8],
}

impl Confined<'_> {
    /// Takes back what was added to the index of files whose bytes are those that the commit has.
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
        // There may be more than are listed: then none is taken back.
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

/// The regular files of `:OLDMODE NEWMODE OLDID NEWID M`, NUL, `PATH`, NUL.
fn changed(listed: &[u8]) -> impl Iterator<Item = Changed<'_>> {
    let mut parts = listed.split(|byte| *byte == 0);
    std::iter::from_fn(move || Some((parts.next()?, parts.next()?))).filter_map(|(about, path)| {
        let mut words = about.strip_prefix(b":")?.split(|byte| *byte == b' ');
        let (old, mode, committed) = (words.next()?, words.next()?, words.next()?);
        (old.starts_with(FILE) && mode.starts_with(FILE)).then_some(Changed { mode, committed, path })
    })
}

/// A path in a line of its own, as git reads it between quotation marks: whatever bytes it has.
fn quoted(path: &[u8]) -> Vec<u8> {
    let escaped = path.iter().flat_map(|byte| format!("\\{byte:03o}").into_bytes());
    b"\"".iter().copied().chain(escaped).chain(*b"\"\n").collect()
}
