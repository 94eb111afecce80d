//! The command of a run in the sandbox of its profile.

use std::io;
use std::path::{Path, PathBuf};

use super::claude_settings::config_dir;
use super::home::{Home, private_dir};
use super::invocation::Invocation;
use super::profile::{Profile, Runner};
use super::program::find_program;
use super::sandbox::{ClaudeDirs, Needs, Sandbox};

/// `plain` is the command without the sandbox.
pub fn sandboxed(
    plain: Invocation,
    sandbox: &Sandbox,
    profile: &Profile,
    profiles_dir: &Path,
    home: &Home,
    context_id: &str,
    prompt: PathBuf,
) -> io::Result<Invocation> {
    let gone = || io::Error::new(io::ErrorKind::NotFound, "bubblewrap is not installed any more");
    let program = find_program(sandbox.program(), profiles_dir).ok_or_else(gone)?;
    let config = config_dir(&profile.env).filter(|_| profile.runner == Runner::Claude);
    let claude = config.map(|config| ClaudeDirs { config, sessions: home.sandboxed_sessions(context_id) });
    if let Some(claude) = &claude {
        private_dir(&claude.sessions)?;
    }
    let files = profile.mcp_config.iter().map(|path| profiles_dir.join(path)).chain([prompt]).collect();
    let needs = Needs { program: &plain.program, context_dir: &home.context_dir(context_id), files, claude };
    let args = sandbox.args(profiles_dir, &needs).into_iter().chain(plain.args).collect();
    Ok(Invocation { program, args, ..plain })
}
