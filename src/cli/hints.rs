//! Errors of the command line that say more than the parser does by itself.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

/// Words that people know from other tools: the group in which they are given, the word, and the commands that they mean.
const HABITS: &[(Option<&str>, &str, &[&str])] = &[
    (None, "version", &["--version"]),
    (None, "status", &["stats", "doctor", "task list", "worker list"]),
    (Some("task"), "status", &["task get", "task describe"]),
    (Some("task"), "show", &["task get", "task describe"]),
    (Some("worker"), "status", &["worker get", "worker describe"]),
    (Some("worker"), "show", &["worker get", "worker describe"]),
];

/// Has each flag take a negative number as its value: the error then names the flag and what it expects. Without that, -1 is told to be an
/// unexpected argument.
pub fn negative_values(command: Command) -> Command {
    let flag = |arg: Arg| {
        let has_value = !arg.is_positional() && arg.get_action().takes_values();
        if has_value { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(flag).mut_subcommands(negative_values)
}

/// The error of this command line with tips that fit this program.
pub fn told(mut error: Error, command: &Command, line: &[String]) -> Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => with_commands(error, command, line),
        ErrorKind::UnknownArgument => {
            // The parser's tip is how to send the flag as a value, which nobody means.
            if let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) {
                let others: Vec<StyledStr> = tips.into_iter().filter(|tip| !tip.to_string().contains("as a value")).collect();
                if !others.is_empty() {
                    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(others));
                }
            }
            error
        }
        _ => error,
    }
}

/// Adds to the error of an unknown command what it is called here. If the group is missing, as in `submit`, these are the commands that end
/// with this word, such as `task submit`; if it was given, no command of another group.
fn with_commands(mut error: Error, command: &Command, line: &[String]) -> Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let before = line.iter().skip(1).take_while(|given| *given != word);
    let group = before.filter_map(|given| command.find_subcommand(given)).find(|group| group.has_subcommands()).map(Command::get_name);
    let of_group = |group: &&Command| group.get_subcommands().any(|member| member.get_name_and_visible_aliases().contains(&word.as_str()));
    let meant = HABITS.iter().find(|(of, habit, _)| *of == group && habit == word).map(|(.., meant)| *meant);
    let (tip, commands): (_, Vec<String>) = match (meant, group) {
        (Some(meant), _) => ("here it is", meant.iter().map(|meant| (*meant).to_owned()).collect()),
        (None, Some(_)) => return error,
        (None, None) => {
            let groups = command.get_subcommands().filter(of_group);
            ("it is a part of another command", groups.map(|group| format!("{} {word}", group.get_name())).collect())
        }
    };
    if !commands.is_empty() {
        let named: Vec<String> = commands.iter().map(|named| format!("{} {named}", command.get_name())).collect();
        error.remove(ContextKind::SuggestedSubcommand);
        let tip = format!("{tip}: {}", named.join(", "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}
