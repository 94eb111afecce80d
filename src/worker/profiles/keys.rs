//! Keys of a profile that its runner does not use. Somebody who sets a key expects an effect, so none is silently ignored.

use toml::Table;

use crate::profile::{Profile, Runner};

/// Keys that only the Claude CLI uses, and what to do instead with another program.
const OF_CLAUDE: [(&str, &str); 15] = [
    ("program", "with runner = \"command\", the first word of command names the program; leave it out"),
    ("args", "with runner = \"command\", arguments are further words of command; leave it out"),
    ("fallback_model", "leave it out"),
    ("permission_mode", LIMITS_NOTHING),
    ("allowed_tools", LIMITS_NOTHING),
    ("disallowed_tools", LIMITS_NOTHING),
    ("setting_sources", "leave it out"),
    ("mcp_config", "leave it out"),
    ("append_system_prompt", "leave it out"),
    ("max_budget_usd", "another program is not stopped at a cost; leave it out"),
    ("background", "leave it out"),
    ("background_seconds", "leave it out"),
    ("on_session_lost", "leave it out"),
    ("ask_human", "other programs do not ask; leave it out"),
    ("ask_human_seconds", "other programs do not ask; leave it out"),
];
const LIMITS_NOTHING: &str = "what another program may do, only a sandbox limits; leave it out";
/// Keys that only the runner `command` uses.
const OF_COMMAND: [(&str, &str); 2] = [
    ("command", "the Claude CLI gets further arguments from args, and program names it; leave it out, or set the runner"),
    ("output", "the output of other runners has a format of its own; leave it out"),
];

/// Checks that all keys in a profile's table have an effect. A useless key is an error even if its value is the default: the author does
/// not know that it has no effect.
///
/// # Errors
/// A key has no effect; the text names it, and says what to do.
pub(crate) fn check(profile: &Profile, table: &Table) -> Result<(), String> {
    let runner = match profile.runner {
        Runner::Claude => "claude",
        Runner::Command => "command",
        Runner::Echo => "echo",
    };
    let wrong = |keys: &[(&str, &str)], needed: &str| match keys.iter().find(|(key, _)| table.contains_key(*key)) {
        Some((key, what)) if runner != needed => {
            Err(format!("{key} needs runner = \"{needed}\", and that of this profile is \"{runner}\": {what}"))
        }
        _ => Ok(()),
    };
    wrong(&OF_CLAUDE, "claude")?;
    wrong(&OF_COMMAND, "command")?;
    if table.contains_key("ask_human_seconds") && !profile.ask_human {
        return Err("ask_human_seconds needs ask_human = true: without it, nobody is asked; add that, or leave it out".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        check(&toml::from_str(text).unwrap(), &text.parse().unwrap())
    }

    #[test]
    fn keys_of_another_runner_are_refused() {
        let value = |key: &str| match key {
            "args" | "allowed_tools" | "disallowed_tools" | "command" => "[\"a\"]",
            "setting_sources" => "[\"user\"]",
            "max_budget_usd" => "2.0",
            "background" | "ask_human" => "true",
            "background_seconds" | "ask_human_seconds" => "60",
            "on_session_lost" => "\"new\"",
            "output" => "\"text\"",
            _ => "\"a\"",
        };
        for (runners, keys, needed) in [(["echo", "command"], &OF_CLAUDE[..], "claude"), (["echo", "claude"], &OF_COMMAND[..], "command")] {
            for (runner, (key, _)) in runners.iter().flat_map(|runner| keys.iter().map(move |key| (runner, key))) {
                let told = checked(&format!("runner = \"{runner}\"\n{key} = {}", value(key))).unwrap_err();
                let expected = format!("{key} needs runner = \"{needed}\", and that of this profile is \"{runner}\": ");
                assert!(told.starts_with(&expected), "{told}");
            }
        }
        assert!(checked("command = [\"cat\"]").unwrap_err().starts_with("command needs runner = \"command\""), "claude is the default");
    }

    #[test]
    fn a_limit_of_questions_needs_questions() {
        for off in ["ask_human_seconds = 60", "ask_human_seconds = 60\nask_human = false"] {
            assert!(checked(off).unwrap_err().starts_with("ask_human_seconds needs ask_human = true"), "{off}");
        }
        assert_eq!(checked("ask_human = true\nask_human_seconds = 60"), Ok(()));
        assert_eq!(checked("runner = \"command\"\ncommand = [\"cat\"]\noutput = \"text\"\nmodel = \"m\"\nstall_seconds = 5"), Ok(()));
    }
}
