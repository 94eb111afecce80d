//! Finds the program of a profile, and this one.

use std::io;
use std::path::{Path, PathBuf};

/// The path of the program: relative to `dir`, or for a bare name the first match in PATH. It must be an executable file.
pub fn find_program(program: &Path, dir: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let is_program = |path: &PathBuf| path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0);
    if program.components().count() > 1 {
        return Some(dir.join(program)).filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(is_program)
}

/// The path of this program. After an update it is the path of the new one.
pub fn own_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(path.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map_or_else(|| path.clone(), PathBuf::from))
}
