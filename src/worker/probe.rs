//! Tries whether an account works again, without a task: a run of the Claude CLI that says one word.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::process::Command;

use super::command;
use super::profile::{Profile, find_program};
use super::stream::Reading;
use super::verdict::error_of;
use bloom_core::pause::PauseCause;
use bloom_core::task::Reason;

const LIMIT: Duration = Duration::from_secs(90);
/// The prompt, and options that make the run as small as it can be.
const ARGS: [&str; 9] = [
    "-p",
    "Answer with the word ok.",
    "--output-format=stream-json",
    "--verbose",
    "--max-turns=1",
    "--tools=",
    "--strict-mcp-config",
    "--no-session-persistence",
    "--system-prompt=Answer with one word.",
];

/// # Errors
/// The API refuses the account of this profile, or does not answer: `None`.
pub async fn probe(profile: &Profile, profiles_dir: &Path, dir: &Path) -> Result<(), (Option<PauseCause>, String)> {
    // A task says more than a probe about everything but the account.
    let Some(program) = find_program(&profile.program(), profiles_dir) else { return Ok(()) };
    let mut call = Command::new(program);
    call.args(ARGS).args(profile.model.iter().map(|model| format!("--model={model}"))).args(&profile.args).current_dir(dir);
    call.envs(&profile.env).env("DISABLE_AUTOUPDATER", "1");
    let ended = command::ended(call, LIMIT).await.map_err(|why| (None, why))?;
    let mut reading = Reading::new(false);
    String::from_utf8_lossy(&ended.stdout).lines().for_each(|line| reading.line(line, &mut Vec::new()));
    let Some((reason, text)) = error_of(&reading) else { return Ok(()) };
    match cause_of(reason) {
        Some(cause) => Err((Some(cause), text.to_owned())),
        None => Ok(()),
    }
}

/// What a failure says about the account.
pub fn cause_of(reason: Reason) -> Option<PauseCause> {
    match reason {
        Reason::Auth => Some(PauseCause::Credentials),
        Reason::Billing => Some(PauseCause::Billing),
        _ => None,
    }
}

/// When the file was changed in which the CLI keeps the credentials of this profile. A login writes it.
pub fn login_changed_at(profile: &Profile) -> Option<SystemTime> {
    let variable = |name: &str| profile.env.get(name).map(PathBuf::from).or_else(|| std::env::var_os(name).map(PathBuf::from));
    let dir = variable("CLAUDE_CONFIG_DIR").or_else(|| Some(variable("HOME")?.join(".claude")))?;
    dir.join(".credentials.json").metadata().and_then(|file| file.modified()).ok()
}
