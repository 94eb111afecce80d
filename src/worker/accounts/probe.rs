//! Checks without a task whether a profile or an account works, by a run of the Claude CLI that says one word.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use crate::claude::cli_settings::config_dir;
use crate::claude::stream::Reading;
use crate::machine::command;
use crate::machine::program::find_program;
use crate::profile::Profile;
use crate::run::invocation::{claude_call, claude_options};
use crate::run::verdict::error_of;
use bloom_core::pause::PauseCause;
use bloom_core::task::Reason;

/// How many bytes of the CLI's output are read.
const MOST: usize = 4 << 20;
const LIMIT: Duration = Duration::from_secs(90);
/// The prompt, and options that make the run as small as it can be.
const ARGS: [&str; 6] =
    ["-p", "Answer with the word ok.", "--output-format=stream-json", "--verbose", "--max-turns=1", "--no-session-persistence"];
/// The options of a probe that does not use those of the profile.
const BARE: [&str; 4] = ["--tools=", "--setting-sources=user", "--strict-mcp-config", "--system-prompt=Answer with one word."];

/// Few retries: a task waits for the result of a probe, and the next probe is made anyway.
const MAX_RETRIES: &str = "2";

/// The error for a program that ends with status 0 and prints nothing that explains it.
const NO_STREAM: &str = "the program ended with status 0 and printed no stream of the Claude CLI; check program, and args of the profile, which must \
                         leave --output-format alone";

/// Why a probe failed: the cause, if the failure says something about the profile or its account, and what the CLI printed.
pub(crate) type ProbeFailure = (Option<PauseCause>, String);

/// Checks whether runs of the profile start and reach their model, or this one.
pub(crate) async fn of_profile(profile: &Profile, model: Option<&str>, profiles_dir: &Path, dir: &Path) -> Result<(), ProbeFailure> {
    run(profile, claude_options(profile, profiles_dir, model, profile.max_budget_usd), profiles_dir, dir).await
}

/// Checks whether the account of the profile works with the model that the CLI chooses.
pub(crate) async fn of_account(profile: &Profile, profiles_dir: &Path, dir: &Path) -> Result<(), ProbeFailure> {
    run(profile, BARE.map(OsString::from).to_vec(), profiles_dir, dir).await
}

async fn run(profile: &Profile, options: Vec<OsString>, profiles_dir: &Path, dir: &Path) -> Result<(), ProbeFailure> {
    let program = profile.program();
    let missing = || (Some(PauseCause::Start), format!("{} does not exist or is not executable", program.display()));
    let mut call = claude_call(find_program(&program, profiles_dir).ok_or_else(missing)?, profile);
    // The options follow the prompt, because a profile may end all options with `--`.
    call.args(ARGS).args(options).current_dir(dir).env("CLAUDE_CODE_MAX_RETRIES", MAX_RETRIES);
    let ended = command::ended(call, Stdio::null(), LIMIT, MOST).await.map_err(|why| (None, why))?;
    let mut reading = Reading::default();
    String::from_utf8_lossy(&ended.stdout).lines().for_each(|line| reading.line(line, &mut Vec::new()));
    match error_of(&reading) {
        // The run reached the model, which did not say the word, or it reached an API that does not accept this prompt.
        Some((Reason::AgentError | Reason::InvalidRequest | Reason::Refused | Reason::BadOutput | Reason::ContextFull, _)) | None
            if reading.result.is_some() =>
        {
            Ok(())
        }
        Some((reason, text)) => Err((cause_of(reason), text.to_owned())),
        None => {
            // The status says nothing here: another program than the CLI, and a CLI whose `args` ask for another format, end with status 0.
            // A program that was ended because it printed too much has no status.
            let cause = ended.status.filter(|_| reading.session_id.is_none()).map(|_| PauseCause::Start);
            let errors = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
            let is_silent = errors.is_empty() && ended.status.is_some_and(|status| status.success());
            Err((cause, if is_silent && cause.is_some() { NO_STREAM.to_owned() } else { errors }))
        }
    }
}

/// What a failure implies for the account.
pub(crate) fn cause_of(reason: Reason) -> Option<PauseCause> {
    match reason {
        Reason::Auth => Some(PauseCause::Credentials),
        Reason::Billing => Some(PauseCause::Billing),
        Reason::RateLimited => Some(PauseCause::Quota),
        _ => None,
    }
}

/// When the file with the CLI's credentials for this profile was last changed. A login writes this file.
pub(crate) fn login_changed_at(profile: &Profile) -> Option<SystemTime> {
    config_dir(&profile.env)?.join(".credentials.json").metadata().and_then(|file| file.modified()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::profile::Runner;

    /// The result of a probe whose program is this shell script.
    async fn probed(script: &str) -> Result<(), ProbeFailure> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("claude");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let profile = Profile { program: Some(program), ..Profile::of(Runner::Claude) };
        of_profile(&profile, None, dir.path(), dir.path()).await
    }

    #[tokio::test]
    async fn a_program_that_ends_without_a_session_does_not_start() {
        for silent in ["exit 0", "echo ok"] {
            assert_eq!(probed(silent).await, Err((Some(PauseCause::Start), NO_STREAM.into())), "{silent}");
        }
        assert_eq!(probed("echo 'wrong option' >&2").await, Err((Some(PauseCause::Start), "wrong option".into())));
        assert_eq!(probed("echo 'wrong option' >&2; exit 1").await, Err((Some(PauseCause::Start), "wrong option".into())));
        let begun = r#"echo '{"type":"system","subtype":"init","session_id":"0199a4b6-5a51-7000-8b0e-4dbb7d3d4f0a"}'"#;
        assert_eq!(probed(begun).await, Err((None, String::new())), "it has begun, so the profile works so far");
    }
}
