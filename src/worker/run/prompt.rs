//! Composes the input of a run: the task's prompt, and the files and references of its context hints.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use globset::GlobBuilder;

use crate::machine::open_below::open_below;
use crate::run::task::Task;
use bloom_core::task::Format;

const MAX_FILES: usize = 100;
/// The maximum number of files and directories that a glob may visit.
const MAX_ENTRIES: usize = 100_000;
const MAX_FILE_BYTES: usize = 256 * 1024;
const MAX_ALL_BYTES: usize = 1 << 20;

/// The text for the runner's standard input.
///
/// Hints that name files in the context's directory, by path or glob, are replaced by the contents of the files. Hints that begin with `@`,
/// or that match no file, become references.
///
/// # Errors
/// A hint leads out of the directory, or its files are too many, too large, or not text. The message is for the task's owner.
pub(crate) fn compose(task: &Task, dir: &Path, resumed_after_crash: bool) -> Result<String, String> {
    let dir = fs::canonicalize(dir).map_err(|error| format!("the context's directory can't be used: {error}"))?;
    let mut text = String::new();
    if resumed_after_crash {
        text.push_str(
            "Your last run on this task was interrupted. Look at what is done already, go on from there, and answer as asked:\n\n",
        );
    }
    if text.is_empty() && task.prompt.starts_with('/') {
        // A slash as the first character would make the prompt a command of the Claude CLI, which may answer nothing, or forget the
        // conversation.
        text.push('\n');
    }
    text.push_str(&escaped(&task.prompt, &dir));
    let (mut files, mut references) = (Vec::new(), Vec::new());
    for hint in &task.context_hints {
        let found = if hint.starts_with('@') { Vec::new() } else { matches(hint, &dir)? };
        if found.is_empty() {
            check_reference(hint, &dir)?;
            references.push(hint);
        }
        files.extend(found);
    }
    files.sort();
    files.dedup();
    if files.len() > MAX_FILES {
        return Err(format!("the context hints name {} files; at most {MAX_FILES} can be read", files.len()));
    }
    if !references.is_empty() {
        text.push_str("\n\nReferences:\n");
        references.iter().for_each(|reference| text.push_str(&format!("{reference}\n")));
    }
    let context =
        Dir::open_ambient_dir(&dir, ambient_authority()).map_err(|error| format!("the context's directory can't be used: {error}"))?;
    let mut total = 0;
    for path in files {
        let path = path.strip_prefix(&dir).unwrap_or(&path);
        let name = path.display();
        let bytes = read(&context, path).map_err(|error| format!("the context hint {name} can't be read: {error}"))?;
        total += bytes.len();
        if bytes.len() > MAX_FILE_BYTES || total > MAX_ALL_BYTES {
            return Err(format!("the context hints name too much text: at most 256 KiB per file, 1 MiB in total ({name})"));
        }
        let content = String::from_utf8(bytes).map_err(|_| format!("the context hint {name} is not a text file"))?;
        let content = escaped(content.trim_end_matches('\n'), &dir);
        text.push_str(&format!("\n\n<file path=\"{name}\">\n{content}\n</file>"));
    }
    if task.desired_format == Format::Json {
        text.push_str("\n\nAnswer with a single JSON value and nothing else.");
    }
    text.push('\n');
    Ok(text)
}

/// The bytes of a file, up to one more than its limit. Another run of the context may have replaced the file by a symbolic link or a named
/// pipe since it was found.
fn read(context: &Dir, path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_below(context, path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The files that a hint names; empty if it matches none.
fn matches(hint: &str, dir: &Path) -> Result<Vec<PathBuf>, String> {
    let given = Path::new(hint);
    let inside = given.strip_prefix(dir).unwrap_or(given).to_string_lossy();
    if leads_out(&inside, dir) {
        return Err(outside(hint));
    }
    if !inside.contains(['*', '?', '[']) {
        let path = fs::canonicalize(dir.join(&*inside)).ok();
        return Ok(path.filter(|path| path.is_file()).into_iter().collect());
    }
    // Its matching time is linear in the length of the path, whatever the pattern.
    let Ok(pattern) = GlobBuilder::new(&inside).literal_separator(true).build() else { return Ok(Vec::new()) };
    let pattern = pattern.compile_matcher();
    let names_hidden = inside.split('/').any(|part| part.starts_with('.'));
    let mut found = Vec::new();
    let mut looked_at = 0;
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > MAX_ENTRIES {
                return Err(format!("the context hint {hint} searches more than {MAX_ENTRIES} files: make it more specific"));
            }
            // Symbolic links are not followed, because they may lead out of the directory or in circles.
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if entry.file_name().as_encoded_bytes().starts_with(b".") && !names_hidden {
                continue;
            }
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() && path.strip_prefix(dir).is_ok_and(|inside| pattern.is_match(inside)) {
                found.push(path);
            }
        }
        if found.len() > MAX_FILES {
            return Err(format!("the context hint {hint} names more than {MAX_FILES} files"));
        }
    }
    Ok(found)
}

/// Checks a reference. References become a part of the prompt, and the CLI attaches the files that a prompt mentions. So none may be
/// outside of the directory.
fn check_reference(hint: &str, dir: &Path) -> Result<(), String> {
    if hint.chars().any(char::is_control) {
        return Err("a context hint contains control characters".to_owned());
    }
    let mentions_outside = || hint.split('@').skip(1).any(|mention| is_outside(mention, dir));
    if leads_out(hint, dir) || mentions_outside() { Err(outside(hint)) } else { Ok(()) }
}

/// The text with a backslash before each `@` at which the CLI would attach a file from outside the directory. The CLI looks for an `@`
/// after a space or one of these characters.
fn escaped(text: &str, dir: &Path) -> String {
    let mut result = String::with_capacity(text.len());
    let mut before = ' ';
    for (at, char) in text.char_indices() {
        let begins = before.is_whitespace() || before == '\u{feff}' || matches!(before, '。' | '、' | '？' | '！');
        if char == '@' && begins && is_outside(&text[at + 1..], dir) {
            result.push('\\');
        }
        result.push(char);
        before = char;
    }
    result
}

/// Whether a text begins with a path that leads out of the directory. The path may be in quotes, or extend to the next space, and may end
/// before a `#` with line numbers, or before punctuation.
fn is_outside(text: &str, dir: &Path) -> bool {
    let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let unquoted = text.trim_start_matches(['"', '\'']);
    let quoted = unquoted.split(['"', '\'']).next().filter(|_| unquoted.len() < text.len());
    let word = unquoted.split(char::is_whitespace).next();
    quoted.into_iter().chain(word).any(|path| {
        let file = path.split('#').next().unwrap_or_default();
        [path, file].into_iter().flat_map(|path| [path, path.trim_end_matches(|char| !is_word(char))]).any(|path| leads_out(path, dir))
    })
}

fn leads_out(text: &str, dir: &Path) -> bool {
    let path = Path::new(text);
    let leads_elsewhere = || fs::canonicalize(dir.join(path)).is_ok_and(|path| !path.starts_with(dir));
    text.starts_with('~') || path.is_absolute() || path.components().any(|part| part == Component::ParentDir) || leads_elsewhere()
}

fn outside(hint: &str) -> String {
    format!("the context hint {hint} leads out of the context's directory")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn composed(dir: &Path, hints: &[&str]) -> Result<String, String> {
        let task = Task::for_test(&json!({"prompt": "Look", "context_hints": hints}));
        compose(&task, dir, false)
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
        for hint in [
            "../secret",
            "link",
            "/etc/passwd",
            "/no/such/file",
            "src/../../secret",
            "@/etc/passwd",
            "@../secret",
            "@~/x",
            "~/x",
            " @/etc/passwd",
            "see @/etc/passwd",
            "@\"/etc/passwd\"",
            "@link",
            "@link#L1-2",
            "see @link, please",
        ] {
            assert!(composed(&inside, &[hint]).unwrap_err().contains("leads out"), "{hint}");
        }
    }

    #[test]
    fn a_prompt_attaches_nothing_from_outside() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("inside"), "").unwrap();
        let composed = |prompt: &str| {
            let task = Task::for_test(&json!({"prompt": prompt, "context_hints": []}));
            compose(&task, dir.path(), false).unwrap()
        };
        assert_eq!(composed("see @/etc/passwd, @../x and @~/.ssh/id"), "see \\@/etc/passwd, \\@../x and \\@~/.ssh/id\n");
        assert_eq!(composed("@\"/etc/passwd\""), "\\@\"/etc/passwd\"\n");
        for same in ["see @inside and @none", "write to me@example.org or @team"] {
            assert_eq!(composed(same), format!("{same}\n"));
        }
    }

    #[test]
    fn a_glob_with_many_stars_ends() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a".repeat(250));
        fs::create_dir_all(deep.join(".hidden")).unwrap();
        fs::write(deep.join("x"), "found").unwrap();
        fs::write(deep.join(".hidden/x"), "not found").unwrap();
        let stars = "*a".repeat(40);
        assert!(composed(dir.path(), &[&format!("{stars}*b/x")]).unwrap().contains("References"));
        let found = composed(dir.path(), &[&format!("{stars}*/x"), "**/x"]).unwrap();
        assert_eq!(found.matches("found").count(), 1, "{found}");
    }

    #[test]
    fn what_was_exchanged_since_it_was_found_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("ctx");
        fs::create_dir_all(inside.join("sub")).unwrap();
        fs::write(dir.path().join("secret"), "no").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), inside.join("link")).unwrap();
        std::os::unix::fs::symlink("..", inside.join("sub/up")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(inside.join("pipe")).status().unwrap().success());
        let context = Dir::open_ambient_dir(&inside, ambient_authority()).unwrap();
        for name in ["link", "sub/up/../../secret", "pipe", "sub"] {
            assert!(read(&context, Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn too_much_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("big"), vec![b'x'; 300_000]).unwrap();
        fs::write(dir.path().join("odd"), [0xff, 0xfe]).unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("circle")).unwrap();
        assert!(composed(dir.path(), &["**/nothing"]).unwrap().contains("nothing"));
        assert!(composed(dir.path(), &["a\n@/etc/passwd"]).unwrap_err().contains("control characters"));
        assert!(composed(dir.path(), &["big"]).unwrap_err().contains("too much"));
        assert!(composed(dir.path(), &["odd"]).unwrap_err().contains("not a text file"));
    }
}
