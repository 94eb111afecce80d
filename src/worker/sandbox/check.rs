//! Tries out the sandboxes of the profiles when the agent starts: if a sandbox can't be made, every run would fail.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use crate::home::{Home, replace_with};
use crate::machine::command;
use crate::machine::program::find_program;
use crate::profile::Runner;
use crate::profiles::Profiles;
use crate::sandbox::bubblewrap::{Needs, Sandbox};
use crate::sandbox::egress::lacks_api;
use crate::sandbox::hardening::Hardening;
use crate::sandbox::syscall_filter;

/// A function that enables one hardening measure.
type Add<'a> = &'a dyn Fn(&mut Hardening);

const LIMIT: Duration = Duration::from_secs(30);

/// Tries out the sandboxes, and determines which hardening measures work on this machine. `hidden` are the files and directories of the
/// agent that runs must not see.
///
/// # Errors
/// A sandbox can't be made, or would expose files of the agent. The text says what to do.
pub(crate) async fn check(profiles: &Profiles, hidden: &[PathBuf], home: &Home) -> Result<Hardening, String> {
    let mut hardening = None;
    for (slug, profile) in profiles.all() {
        let Some(sandbox) = &profile.sandbox else { continue };
        let failed = |why: String| format!("profile {slug}: {why}");
        let program = find_program(&profile.program(), &profiles.dir).unwrap_or_default();
        if let Some((path, shown)) = sandbox.exposes(&profiles.dir, &program, hidden) {
            return Err(failed(format!(
                "its runs could read {}, which is the agent's, because its sandbox shows {}: move one of them to another directory",
                path.display(),
                shown.display()
            )));
        }
        let known = hardening.clone().unwrap_or_default();
        try_it(sandbox, &known, &profiles.dir, &home.contexts_dir()).await.map_err(failed)?;
        if hardening.is_none() {
            hardening = Some(find_hardening(sandbox, &profiles.dir, home).await?);
        }
        if let Some(api) = lacks_api(&sandbox.network, &profile.env).filter(|_| profile.runner == Runner::Claude) {
            tracing::warn!(profile = slug, "the Claude CLI will reach no model, because sandbox.network lacks its API: add {api:?}");
        }
    }
    Ok(hardening.unwrap_or_default())
}

/// The hardening measures that work here. Warns about those that do not.
async fn find_hardening(sandbox: &Sandbox, profiles_dir: &Path, home: &Home) -> Result<Hardening, String> {
    let (mut found, mut missing) = (Hardening::default(), Vec::new());
    let filter = write_filter(home)?;
    let parts: [(&str, Add<'_>); 3] = [
        ("a ban of user namespaces", &|hardening| hardening.bans_namespaces = true),
        ("a limit for the size of /tmp", &|hardening| hardening.limits_sizes = true),
        ("a filter of system calls", &|hardening| hardening.filter.clone_from(&filter)),
    ];
    for (name, add) in parts {
        let mut more = found.clone();
        add(&mut more);
        match try_made(sandbox, &more, profiles_dir, &home.contexts_dir()).await {
            Ok(()) => found = more,
            Err(why) => missing.push(format!("{name} ({why})")),
        }
    }
    if filter.is_none() {
        missing.push(format!("a filter of system calls (there is none for {})", std::env::consts::ARCH));
    }
    if !missing.is_empty() {
        let missing = missing.join("; ");
        tracing::warn!(missing, "sandboxes on this machine are weaker than they could be; bubblewrap 0.8.0 or later has what they lack");
    }
    Ok(found)
}

/// Writes the filter of system calls. `None`: there is no filter for this architecture.
fn write_filter(home: &Home) -> Result<Option<PathBuf>, String> {
    let Ok(filter) = syscall_filter::bytes() else { return Ok(None) };
    let path = home.syscall_filter();
    let written = replace_with(&path, &filter);
    written.map_err(|error| format!("{} can't be written: {error}; make room for it, or choose another --work-dir", path.display()))?;
    Ok(Some(path))
}

/// # Errors
/// The sandbox can't be made. The text says what to do.
pub(crate) async fn try_it(sandbox: &Sandbox, hardening: &Hardening, profiles_dir: &Path, dir: &Path) -> Result<(), String> {
    sandbox.check(profiles_dir)?;
    if find_program(sandbox.program(), profiles_dir).is_none() {
        return Err(format!(
            "its sandbox needs the program {}, which is not installed: install the package bubblewrap, or remove sandbox",
            sandbox.program().display()
        ));
    }
    try_made(sandbox, hardening, profiles_dir, dir).await.map_err(|why| {
        format!(
            "its sandbox can't be made here: {why}; allow this user to make user namespaces (sysctl user.max_user_namespaces and \
             kernel.unprivileged_userns_clone, or kernel.apparmor_restrict_unprivileged_userns on Ubuntu; a container needs a security \
             profile that allows them), or remove sandbox"
        )
    })
}

/// Makes the sandbox once. `dir` is a directory to be shown in it.
async fn try_made(sandbox: &Sandbox, hardening: &Hardening, profiles_dir: &Path, dir: &Path) -> Result<(), String> {
    let bubblewrap = find_program(sandbox.program(), profiles_dir).ok_or("bubblewrap is not installed")?;
    let tried = find_program(Path::new("true"), profiles_dir).unwrap_or_else(|| PathBuf::from("/bin/true"));
    let needs = Needs { program: &tried, context_dir: dir, readable: Vec::new(), writable: Vec::new(), claude: None, way_out: None };
    let mut words = sandbox.command(&bubblewrap, hardening, profiles_dir, &needs).into_iter();
    let mut call = Command::new(words.next().unwrap_or_default());
    call.args(words);
    command::output(call, LIMIT).await.map(drop)
}
