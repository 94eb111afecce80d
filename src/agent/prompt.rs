//! What the runner is asked: the task's prompt and what its context hints name.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::wire::Task;
use crate::core::task::Format;

const MAX_FILES: usize = 100;
const MAX_FILE_BYTES: u64 = 256 * 1024;
const MAX_ALL_BYTES: u64 = 1 << 20;

/// The text for the runner's standard input.
///
/// Hints that name files in the context's directory (paths or globs) are read in; `@…` hints and those that name nothing there are
/// given as references.
///
/// # Errors
/// A hint leads out of the directory, or names too much. The text is for the task's owner.
pub fn compose(task: &Task, dir: &Path, resumed_after_crash: bool) -> Result<String, String> {
    let dir = fs::canonicalize(dir).map_err(|error| format!("the context's directory can't be used: {error}"))?;
    let mut text = String::new();
    if resumed_after_crash {
        text.push_str(
            "Your last run on this task was interrupted. Look at what is done already, go on from there, and answer as asked:\n\n",
        );
    }
    text.push_str(&task.prompt);
    let (mut files, mut references) = (Vec::new(), Vec::new());
    for hint in &task.context_hints {
        match hint.strip_prefix('@') {
            Some(reference) if leads_out(reference) => return Err(outside(hint)),
            Some(_) => references.push(hint),
            None => match matches(hint, &dir)? {
                found if found.is_empty() => references.push(hint),
                found => files.extend(found),
            },
        }
    }
    files.sort();
    files.dedup();
    if files.len() > MAX_FILES {
        return Err(format!("the context hints name {} files; {MAX_FILES} at most are read in", files.len()));
    }
    if !references.is_empty() {
        text.push_str("\n\nReferences:\n");
        references.iter().for_each(|reference| text.push_str(&format!("{reference}\n")));
    }
    let mut total = 0;
    for path in files {
        let name = path.strip_prefix(&dir).unwrap_or(&path).display().to_string();
        let size = fs::metadata(&path).map_err(|error| format!("the context hint {name} can't be read: {error}"))?.len();
        total += size;
        if size > MAX_FILE_BYTES || total > MAX_ALL_BYTES {
            return Err(format!("the context hints name too much to read in: a file may have 256 KiB, all together 1 MiB ({name})"));
        }
        let bytes = fs::read(&path).map_err(|error| format!("the context hint {name} can't be read: {error}"))?;
        let content = String::from_utf8(bytes).map_err(|_| format!("the context hint {name} is not a text file"))?;
        text.push_str(&format!("\n\n<file path=\"{name}\">\n{}\n</file>", content.trim_end_matches('\n')));
    }
    if task.desired_format == Format::Json {
        text.push_str("\n\nAnswer with a single JSON value and nothing else.");
    }
    text.push('\n');
    Ok(text)
}

/// The files that a hint names, none if it is just a word.
fn matches(hint: &str, dir: &Path) -> Result<Vec<PathBuf>, String> {
    let given = Path::new(hint);
    if given.components().any(|part| part == Component::ParentDir) {
        return Err(outside(hint));
    }
    let pattern =
        if given.is_absolute() { hint.to_owned() } else { format!("{}/{hint}", glob::Pattern::escape(&dir.display().to_string())) };
    let Ok(paths) = glob::glob(&pattern) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for path in paths.flatten() {
        // A link may lead anywhere.
        let path = fs::canonicalize(&path).map_err(|error| format!("the context hint {hint} can't be read: {error}"))?;
        if !path.starts_with(dir) {
            return Err(outside(hint));
        }
        if path.is_file() {
            found.push(path);
        }
        if found.len() > MAX_FILES {
            return Err(format!("the context hint {hint} names more than {MAX_FILES} files"));
        }
    }
    // What is outside is refused whether it is there or not.
    if given.is_absolute() && found.is_empty() && !given.starts_with(dir) {
        return Err(outside(hint));
    }
    Ok(found)
}

fn leads_out(reference: &str) -> bool {
    let path = Path::new(reference);
    reference.starts_with('~') || path.is_absolute() || path.components().any(|part| part == Component::ParentDir)
}

fn outside(hint: &str) -> String {
    format!("the context hint {hint} leads out of the context's directory")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn composed(dir: &Path, hints: &[&str]) -> Result<String, String> {
        let task = json!({
            "id": uuid::Uuid::nil(), "context_id": "c", "agent_slug": "a", "prompt": "Look", "policy": {"timeout_sec": 60},
            "desired_format": "text", "context_hints": hints,
        });
        compose(&serde_json::from_value(task).unwrap(), dir, false)
    }

    #[test]
    fn files_inside_are_read_and_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("ctx");
        fs::create_dir_all(inside.join("src")).unwrap();
        fs::write(dir.path().join("secret"), "no").unwrap();
        fs::write(inside.join("src/a.rs"), "fn a() {}\n").unwrap();
        fs::write(inside.join("src/b.rs"), "fn b() {}\n").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), inside.join("link")).unwrap();

        let text = composed(&inside, &["src/*.rs", "src/a.rs", "@README.md", "just a word"]).unwrap();
        assert_eq!(
            text,
            "Look\n\nReferences:\n@README.md\njust a word\n\n\n<file path=\"src/a.rs\">\nfn a() {}\n</file>\n\n\
             <file path=\"src/b.rs\">\nfn b() {}\n</file>\n"
        );
        let absolute = inside.join("src/a.rs");
        assert!(composed(&inside, &[absolute.to_str().unwrap()]).unwrap().contains("fn a()"));
        for hint in ["../secret", "link", "/etc/passwd", "/no/such/file", "src/../../secret", "@/etc/passwd", "@../secret", "@~/x"] {
            assert!(composed(&inside, &[hint]).unwrap_err().contains("leads out"), "{hint}");
        }
    }

    #[test]
    fn too_much_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("big"), vec![b'x'; 300_000]).unwrap();
        fs::write(dir.path().join("odd"), [0xff, 0xfe]).unwrap();
        assert!(composed(dir.path(), &["big"]).unwrap_err().contains("too much"));
        assert!(composed(dir.path(), &["odd"]).unwrap_err().contains("not a text file"));
    }
}
