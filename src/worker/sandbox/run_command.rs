//! The command of a run in the sandbox of its profile, if it has one.

use std::io;
use std::path::{Path, PathBuf};

use crate::claude::cli_settings::config_dir;
use crate::home::Home;
use crate::profile::{Profile, Runner};
use crate::run::invocation::{Invocation, RunFiles};
use crate::sandbox::bubblewrap::{ClaudeDirs, Needs};
use crate::sandbox::egress::WayOut;
use crate::sandbox::hardening::Hardening;

/// `plain` is the command without the sandbox.
pub(crate) fn sandboxed(
    plain: Invocation,
    profile: &Profile,
    profiles_dir: &Path,
    home: &Home,
    hardening: &Hardening,
    context_id: &str,
    files: &RunFiles<'_>,
) -> io::Result<Invocation> {
    let Some(sandbox) = &profile.sandbox else { return Ok(plain) };
    let bubblewrap = sandbox.installed(profiles_dir)?;
    let config = config_dir(&profile.env).filter(|_| profile.runner == Runner::Claude);
    let dirs = |config| Ok::<_, io::Error>(ClaudeDirs { config, sessions: home.sandboxed_sessions(context_id), empty: home.empty_file()? });
    let claude = config.map(dirs).transpose()?;
    let config = profile.mcp_config.iter().map(|path| profiles_dir.join(path));
    let tool = files.permission_tool;
    let asks = tool.into_iter().flat_map(|tool| [tool.program.clone(), tool.dir.answered()]);
    let (own, shared) = files.git_dirs.clone().map_or((None, None), |[own, shared]| (Some(own), Some(shared)));
    let readable = config.chain([files.prompt.to_owned()]).chain(asks).chain(shared).collect();
    let writable = tool.into_iter().map(|tool| tool.dir.asked()).chain(own).collect();
    let needs = Needs { program: &plain.program, context_dir: files.context_dir, readable, writable, claude, way_out: files.way_out };
    let mut words = sandbox.command(&bubblewrap, hardening, profiles_dir, &needs).into_iter();
    let program = words.next().map_or(bubblewrap, PathBuf::from);
    let replaced = files.way_out.into_iter().flat_map(WayOut::env).map(|(name, value)| (name.to_owned(), value.to_owned()));
    let env = plain.env.into_iter().chain(replaced).collect();
    Ok(Invocation { program, args: words.chain(plain.args).collect(), env, ..plain })
}
