//! Tries the sandboxes of the profiles at the start of the agent: where one can't be made, every run would fail.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use super::command;
use super::egress::lacks_api;
use super::profile::Runner;
use super::profiles::Profiles;
use super::program::find_program;
use super::sandbox::{Needs, Sandbox};

const LIMIT: Duration = Duration::from_secs(30);

/// `hidden` are the files and directories of the agent that runs must not see, and `dir` a directory that is shown for the trial.
///
/// # Errors
/// A sandbox can't be made, or would show what is the agent's. The text says what to do.
pub async fn check(profiles: &Profiles, hidden: &[PathBuf], dir: &Path) -> Result<(), String> {
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
        try_it(sandbox, &profiles.dir, dir).await.map_err(failed)?;
        if let Some(api) = lacks_api(&sandbox.network, &profile.env).filter(|_| profile.runner == Runner::Claude) {
            tracing::warn!(profile = slug, "the Claude CLI will reach no model, because sandbox.network lacks its API: add {api:?}");
        }
    }
    Ok(())
}

/// # Errors
/// The sandbox can't be made. The text says what to do.
pub async fn try_it(sandbox: &Sandbox, profiles_dir: &Path, dir: &Path) -> Result<(), String> {
    sandbox.check(profiles_dir)?;
    let wrapper = find_program(sandbox.program(), profiles_dir).ok_or_else(|| {
        format!(
            "its sandbox needs the program {}, which is not installed: install the package bubblewrap, or remove sandbox",
            sandbox.program().display()
        )
    })?;
    let tried = find_program(Path::new("true"), profiles_dir).unwrap_or_else(|| PathBuf::from("/bin/true"));
    let mut call = Command::new(wrapper);
    let needs = Needs { program: &tried, context_dir: dir, readable: Vec::new(), writable: Vec::new(), claude: None, way_out: None };
    call.args(sandbox.args(profiles_dir, &needs));
    command::output(call, LIMIT).await.map(drop).map_err(|why| {
        format!(
            "its sandbox can't be made here: {why}; allow this user to make user namespaces (sysctl user.max_user_namespaces and \
             kernel.unprivileged_userns_clone, or kernel.apparmor_restrict_unprivileged_userns on Ubuntu; a container needs a security \
             profile that allows them), or remove sandbox"
        )
    })
}
