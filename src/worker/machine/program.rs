//! Finds the program of a profile, and the path of this program.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The path of the program: relative to `dir`, or the first match in PATH for a bare name. It must be an executable file.
pub fn find_program(program: &Path, dir: &Path) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| path.metadata().is_ok_and(|data| data.is_file() && is_executable(&data));
    if program.components().count() > 1 {
        return Some(dir.join(program)).filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(is_program)
}

fn is_executable(data: &Metadata) -> bool {
    data.permissions().mode() & 0o111 != 0
}

/// Why a program that is given by its path was not found.
pub fn why_not(program: &Path, dir: &Path) -> String {
    let path = dir.join(program);
    match path.metadata() {
        Ok(data) if data.is_file() && !is_executable(&data) => format!("{0} can't be executed: chmod +x {0}", path.display()),
        Ok(data) if !data.is_file() => format!("{} is no file", path.display()),
        _ if program.components().count() > 1 => format!("there is no file {}", path.display()),
        _ => format!("the program {} is not installed", program.display()),
    }
}

/// The path of this program. After an update, it leads to the new version.
pub fn own_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(path.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map_or_else(|| path.clone(), PathBuf::from))
}
