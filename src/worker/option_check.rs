//! Asks the Claude CLI at the start whether it accepts the options of each profile: with a wrong one, every run would fail.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::process::Command;

use super::command;
use super::environment;
use super::invocation::claude_options;
use super::profile::Runner;
use super::profiles::Profiles;
use super::program::find_program;

const LIMIT: Duration = Duration::from_secs(60);

/// # Errors
/// The CLI refuses the options of a profile; the text says which.
pub async fn check(profiles: &Profiles) -> Result<(), String> {
    let mut accepted = BTreeSet::new();
    for (slug, profile) in profiles.all().filter(|(_, profile)| profile.runner == Runner::Claude) {
        let Some(program) = find_program(&profile.program(), &profiles.dir) else { continue };
        let options = claude_options(profile, &profiles.dir, None, profile.max_budget_usd);
        if !accepted.insert((program.clone(), options.clone())) {
            continue;
        }
        let mut call = Command::new(program);
        environment::inherit(call.as_std_mut(), &profile.env, &profile.pass_env);
        // Behind the options, because it looks at those in front of it only, and not behind the end of all options.
        let (checked, _) = options.split_at(options.iter().position(|word| word == "--").unwrap_or(options.len()));
        call.args(checked).arg("--version").envs(&profile.env).env("DISABLE_AUTOUPDATER", "1");
        if let Err(why) = command::output(call, LIMIT).await {
            // Some errors are printed below the program's own code.
            let line = why.lines().find(|line| line.starts_with("error: ")).unwrap_or(&why);
            return Err(format!("profile {slug}: the Claude CLI does not accept its options: {line}; correct them, or update the CLI"));
        }
    }
    Ok(())
}
