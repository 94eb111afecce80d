//! Parses the output of `git diff`: the files and their changed lines.

use crate::times::shortened;

/// The maximum number of files and lines that a page shows. If there are more, the page says so.
const FILES: usize = 100;
const LINES: usize = 600;
const CHARS: usize = 20_000;
const NAME_CHARS: usize = 200;
const LINE_CHARS: usize = 400;
/// If all files together have at most this many lines, none of them is folded at first.
const OPEN_LINES: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Changed,
    Added,
    Removed,
    Renamed,
    Copied,
}

#[derive(Debug)]
pub(crate) struct ChangedFile {
    pub name: String,
    /// The previous name; empty if the file was not renamed or copied.
    pub from: String,
    pub change: Change,
    pub is_binary: bool,
    pub added: usize,
    pub removed: usize,
    pub lines: Vec<Line>,
    /// Whether the file has more lines than `lines`.
    pub has_more: bool,
}

#[derive(Debug)]
pub(crate) struct Line {
    /// The class of the line's style.
    pub class: &'static str,
    pub text: String,
}

#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub files: Vec<ChangedFile>,
    pub added: usize,
    pub removed: usize,
    pub are_open: bool,
    /// Whether the diff has more than what is kept here.
    pub is_cut: bool,
}

impl Changes {
    /// Parses the text. If it is not a diff of git, or only the end of one, the result has no files.
    pub(crate) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        let (mut left, mut chars, mut is_hunk) = (LINES, CHARS, false);
        for line in text.lines() {
            if let Some(names) = line.strip_prefix("diff --git ") {
                is_hunk = false;
                if found.files.len() == FILES {
                    found.is_cut = true;
                    break;
                }
                found.files.push(ChangedFile::new(names));
                continue;
            }
            let Some(file) = found.files.last_mut() else { continue };
            if !is_hunk && !line.starts_with("@@ ") {
                file.header(line);
                continue;
            }
            is_hunk = true;
            let class = match line.as_bytes().first() {
                Some(b'+') => "added",
                Some(b'-') => "removed",
                Some(b'@') => "place",
                _ => "",
            };
            file.added += usize::from(class == "added");
            file.removed += usize::from(class == "removed");
            if left == 0 || chars == 0 {
                (file.has_more, found.is_cut) = (true, true);
                continue;
            }
            left -= 1;
            let text = shortened(line, LINE_CHARS);
            chars = chars.saturating_sub(text.chars().count());
            found.is_cut |= text.len() != line.len();
            file.lines.push(Line { class, text });
        }
        for file in &mut found.files {
            (file.name, file.from) = (shortened(&file.name, NAME_CHARS), shortened(&file.from, NAME_CHARS));
        }
        found.added = found.files.iter().map(|file| file.added).sum();
        found.removed = found.files.iter().map(|file| file.removed).sum();
        found.are_open = LINES - left <= OPEN_LINES;
        found
    }
}

impl ChangedFile {
    /// `names`: the rest of the line after `diff --git`. If the two names differ or are quoted, later lines give them more reliably.
    fn new(names: &str) -> Self {
        let half = names.get(..names.len().saturating_sub(1) / 2).unwrap_or(names);
        Self {
            name: without_side(half),
            from: String::new(),
            change: Change::Changed,
            is_binary: false,
            added: 0,
            removed: 0,
            lines: Vec::new(),
            has_more: false,
        }
    }

    fn header(&mut self, line: &str) {
        let is_name = |name: &&str| *name != "/dev/null";
        if let Some(from) = line.strip_prefix("rename from ") {
            (self.change, self.from) = (Change::Renamed, from.to_owned());
        } else if let Some(from) = line.strip_prefix("copy from ") {
            (self.change, self.from) = (Change::Copied, from.to_owned());
        } else if let Some(to) = line.strip_prefix("rename to ").or_else(|| line.strip_prefix("copy to ")) {
            self.name = to.to_owned();
        } else if line.starts_with("new file mode ") {
            self.change = Change::Added;
        } else if line.starts_with("deleted file mode ") {
            self.change = Change::Removed;
        } else if line.starts_with("Binary files ") || line == "GIT binary patch" {
            self.is_binary = true;
        } else if let Some(name) = line.strip_prefix("+++ ").or_else(|| line.strip_prefix("--- ")).filter(is_name) {
            self.name = without_side(name);
        }
    }
}

/// A name without its prefix `a/` or `b/`. Git writes a tab after a name with spaces.
fn without_side(name: &str) -> String {
    let name = name.trim_end_matches('\t');
    let (quote, bare) = if let Some(bare) = name.strip_prefix('"') { ("\"", bare) } else { ("", name) };
    let bare = bare.strip_prefix("a/").or_else(|| bare.strip_prefix("b/")).unwrap_or(bare);
    format!("{quote}{bare}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIFF: &str = "diff --git a/one two.rs b/one two.rs\nindex 1..2 100644\n--- a/one two.rs\t\n+++ b/one two.rs\t\n@@ -1,3 +1,3 @@ fn\n same\n--- not a header\n+++ neither\n\\ No newline at end of file\n\
        diff --git a/old b/new\nsimilarity index 100%\nrename from old\nrename to new\n\
        diff --git a/i.png b/i.png\nnew file mode 100644\nindex 0..1\nBinary files /dev/null and b/i.png differ\n\
        diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n";

    #[test]
    fn files_are_told_apart() {
        let changes = Changes::parse(DIFF);
        let told: Vec<_> =
            changes.files.iter().map(|file| (&*file.name, &*file.from, file.change, file.is_binary, file.added, file.removed)).collect();
        assert_eq!(
            told,
            [
                ("one two.rs", "", Change::Changed, false, 1, 1),
                ("new", "old", Change::Renamed, false, 0, 0),
                ("i.png", "", Change::Added, true, 0, 0),
                ("gone", "", Change::Removed, false, 0, 1),
            ]
        );
        let classes: Vec<_> = changes.files[0].lines.iter().map(|line| line.class).collect();
        assert_eq!(classes, ["place", "", "removed", "added", ""]);
        assert_eq!((changes.added, changes.removed, changes.are_open, changes.is_cut), (1, 2, true, false));
        assert!(Changes::parse("no diff\n+x").files.is_empty());
    }

    #[test]
    fn lines_and_files_have_limits() {
        let long = format!("diff --git a/a b/a\n@@ -0,0 +1,1000 @@\n{}diff --git a/b b/b\n@@ -1 +1 @@\n-x\n", "+line\n".repeat(1_000));
        let changes = Changes::parse(&long);
        assert_eq!((changes.files[0].lines.len(), changes.files[0].added, changes.files[1].removed), (LINES, 1_000, 1));
        assert!(changes.is_cut && !changes.are_open && changes.files[0].has_more && changes.files[1].has_more);
        let many = "diff --git a/a b/a\nold mode 100644\nnew mode 100755\n".repeat(FILES + 1);
        let changes = Changes::parse(&many);
        assert_eq!((changes.files.len(), changes.is_cut), (FILES, true));
    }
}
