//! Asks the Claude CLI when the agent starts for its version, whether it accepts the options of each profile, and whether it is signed in.
//! Otherwise every run would fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;

use crate::claude::cli_settings::{CREDENTIALS, config_dir};
use crate::claude::cli_version::Version;
use crate::machine::command;
use crate::machine::program::find_program;
use crate::profile::{Profile, Runner};
use crate::profiles::Profiles;
use crate::run::invocation::{claude_call, claude_options};

const LIMIT: Duration = Duration::from_secs(60);
/// How many bytes of the CLI's output are read; errors have a limit of their own.
const MOST: usize = 64 << 10;
/// How the Claude CLI of a profile gets access, as far as the agent can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// By this environment variable, which runs of the profile have.
    Variable(&'static str),
    /// By a login that is stored in a file.
    Login,
    /// By neither: perhaps by a login that is stored elsewhere.
    Unseen,
}

/// Variables that give the CLI access without a login.
const ACCESS: [&str; 6] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
];

/// Stores the versions in the profiles, because options depend on the version.
///
/// # Errors
/// The CLI refuses the options of a profile; the text says which.
pub(crate) async fn check(profiles: &mut Profiles) -> Result<(), String> {
    let mut versions = BTreeMap::<PathBuf, Option<Version>>::new();
    let (mut accepted, mut signed_in) = (BTreeSet::new(), BTreeSet::new());
    let dir = profiles.dir.clone();
    for (slug, profile) in profiles.all_mut().filter(|(_, profile)| profile.runner == Runner::Claude) {
        let Some(program) = find_program(&profile.program(), &dir) else { continue };
        profile.cli_version = match versions.get(&program) {
            Some(known) => *known,
            None => *versions.entry(program.clone()).or_insert(version(&program, profile).await),
        };
        // A program that is not the Claude CLI would take the question for a run.
        if profile.cli_version.is_some() && signed_in.insert((program.clone(), config_dir(&profile.env))) {
            check_login(&program, slug, profile).await;
        }
        let options = claude_options(profile, &dir, None, profile.max_budget_usd);
        if !accepted.insert((program.clone(), options.clone())) {
            continue;
        }
        let mut call = claude_call(program, profile);
        // Called like a run, but without a prompt, and with a session id that the CLI refuses after it has parsed all options, and before
        // it does anything.
        call.args(["-p", "--session-id=none"]).args(&options);
        let refused = match command::ended(call, Stdio::null(), LIMIT, MOST).await {
            // The CLI prints some errors below an excerpt of its own code.
            Ok(ended) => String::from_utf8_lossy(&ended.stderr).lines().find(|line| line.starts_with("error: ")).map(str::to_owned),
            Err(why) => Some(why),
        };
        if let Some(why) = refused {
            return Err(format!("profile {slug}: the Claude CLI does not accept its options: {why}; correct them, or update the CLI"));
        }
    }
    Ok(())
}

/// How the Claude CLI of this profile gets access. As in the CLI, a variable takes precedence over a login.
pub fn access(profile: &Profile) -> Access {
    let call = claude_call(profile.program(), profile);
    let is_set = |name: &str| call.as_std().get_envs().any(|(set, value)| set == name && value.is_some_and(|value| !value.is_empty()));
    let has_login = || config_dir(&profile.env).is_some_and(|dir| dir.join(CREDENTIALS).exists());
    match ACCESS.into_iter().find(|name| is_set(name)) {
        Some(name) => Access::Variable(name),
        None if has_login() => Access::Login,
        None => Access::Unseen,
    }
}

/// The part of the output of `claude auth status` that is needed. Versions without that command print something else.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Login {
    logged_in: bool,
}

/// Warns if the CLI reports that it is not signed in. It is asked only if the agent sees neither a login nor a variable in place of one.
async fn check_login(program: &Path, slug: &str, profile: &Profile) {
    let mut call = claude_call(program.to_owned(), profile);
    if access(profile) != Access::Unseen {
        return;
    }
    call.args(["auth", "status"]);
    let Ok(ended) = command::ended(call, Stdio::null(), LIMIT, MOST).await else { return };
    if serde_json::from_slice::<Login>(&ended.stdout).is_ok_and(|login| !login.logged_in) {
        tracing::warn!(
            profile = slug,
            "the Claude CLI is not signed in, so tasks of this profile wait: start `claude` as the user of the agent and sign in, which counts at once; or set \
             ANTHROPIC_API_KEY for the agent, and restart it"
        );
    }
}

/// The version that the program reports. Logs it.
async fn version(program: &Path, profile: &Profile) -> Option<Version> {
    let mut call = claude_call(program.to_owned(), profile);
    call.arg("--version");
    let printed = command::output(call, LIMIT).await;
    let version = printed.as_deref().ok().and_then(Version::parse);
    let program = program.display();
    match version.map(|version| (version, version.faults())) {
        Some((version, None)) => tracing::info!(%program, %version, "the Claude CLI"),
        Some((version, Some((oldest, faults)))) => {
            tracing::warn!(%program, %version, faults, "this version of the Claude CLI has known faults: update it to {oldest} or newer");
        }
        None => tracing::warn!(%program, "the Claude CLI does not tell its version; it gets only the options that all versions know"),
    }
    version
}
