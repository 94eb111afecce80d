//! Errors of the command line that say more than the parser does by itself.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

/// Has each flag take a negative number as its value: the error then names the flag and what it expects. Without that, -1 is told to be an
/// unexpected argument.
pub fn negative_values(command: Command) -> Command {
    let flag = |arg: Arg| {
        let has_value = !arg.is_positional() && arg.get_action().takes_values();
        if has_value { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(flag).mut_subcommands(negative_values)
}

/// Adds to the error of an unknown command, such as `submit`, the commands that end with this word, such as `task submit`.
pub fn with_group(mut error: Error, command: &Command) -> Error {
    let Some(ContextValue::String(word)) =
        error.get(ContextKind::InvalidSubcommand).filter(|_| error.kind() == ErrorKind::InvalidSubcommand)
    else {
        return error;
    };
    let of_group = |group: &&Command| group.get_subcommands().any(|member| member.get_name_and_visible_aliases().contains(&word.as_str()));
    // The same word is unknown to a group only if none of its members has it.
    let named: Vec<String> =
        command.get_subcommands().filter(of_group).map(|group| format!("{} {} {word}", command.get_name(), group.get_name())).collect();
    if !named.is_empty() {
        error.remove(ContextKind::SuggestedSubcommand);
        let tip = format!("it is a part of another command: {}", named.join(", "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}
