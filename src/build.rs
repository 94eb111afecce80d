//! Tells the program of which commit it is, for `--version`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let is = |name: &str, word: &str| std::env::var(name).is_ok_and(|value| value == word);
    println!("cargo:rerun-if-changed=src/build.rs");
    println!("cargo:rerun-if-env-changed=SOURCE_COMMIT");
    let commit = match std::env::var("SOURCE_COMMIT") {
        Ok(given) if !given.is_empty() => Some(given),
        // While the program is developed, each commit would compile it again.
        _ if is("PROFILE", "release") => head(&root).map(|(commit, log)| {
            println!("cargo:rerun-if-changed={}", log.display());
            commit
        }),
        _ => None,
    };
    println!("cargo:rustc-env=BLOOM_VERSION={}", version(&std::env::var("CARGO_PKG_VERSION").unwrap_or_default(), commit.as_deref()));
}

/// The version as `--version` shows it: with the first twelve digits of the commit, if it is known.
pub fn version(version: &str, commit: Option<&str>) -> String {
    let commit = commit.filter(|commit| commit.len() >= 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
    commit.and_then(|commit| commit.get(..12)).map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
}

/// The commit that is checked out in this directory, and the file that changes with it. `None` if it is not the root of a repository: the sources may have been unpacked
/// in a repository of something else.
pub fn head(root: &Path) -> Option<(String, PathBuf)> {
    let output =
        Command::new("git").arg("-C").arg(root).args(["rev-parse", "--show-toplevel", "HEAD", "--git-path", "logs/HEAD"]).output().ok()?;
    let said = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let [top, commit, log] = said.lines().collect::<Vec<_>>().try_into().ok()?;
    let is_root = Path::new(top).canonicalize().ok()? == root.canonicalize().ok()?;
    is_root.then(|| (commit.to_owned(), root.join(log)))
}
