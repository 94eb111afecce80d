//! Adds tips to errors of the command line, beyond those of the parser.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

use bloom_core::similar::similar;

/// Words that people know from other tools: the group of commands in which they are used, the word, and the commands that do the same here.
const HABITS: &[(Option<&str>, &str, &[&str])] = &[
    (None, "version", &["--version"]),
    (None, "run", &["task submit"]),
    (None, "status", &["stats", "doctor", "task list", "worker list"]),
    (Some("task"), "status", &["task get", "task describe"]),
    (Some("context"), "show", &["context list"]),
    (Some("context"), "describe", &["context list"]),
    (Some("context"), "get", &["context list"]),
    (Some("key"), "show", &["key list", "key whoami"]),
    (Some("key"), "describe", &["key list", "key whoami"]),
    (Some("key"), "get", &["key list", "key whoami"]),
    (Some("queue"), "show", &["queue list"]),
    (Some("queue"), "describe", &["queue list"]),
    (Some("queue"), "get", &["queue list"]),
    (Some("worker"), "status", &["worker get", "worker describe"]),
];

/// Groups of commands that are easily confused: the name of the group, and a tip that names the other one.
const MISTAKEN: &[(&str, &str)] = &[
    ("context", "context is about servers and their keys; the tasks of a conversation are in: bloom-runtime conversation"),
    ("conversation", "conversation is about tasks with one --context; servers and their keys are in: bloom-runtime context"),
];

/// Lets each flag take a negative number as its value. The error about the number then names the flag and what it expects. Otherwise, the
/// parser would report -1 as an unexpected argument.
pub fn negative_values(command: Command) -> Command {
    let flag = |arg: Arg| {
        let has_value = !arg.is_positional() && arg.get_action().takes_values();
        if has_value { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(flag).mut_subcommands(negative_values)
}

/// Returns the error of this command line with tips that fit this program.
pub fn told(error: Error, command: &Command, line: &[String]) -> Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => with_commands(error, command, line),
        ErrorKind::UnknownArgument => with_flags(error, command, line),
        ErrorKind::InvalidValue => with_values(error),
        _ => error,
    }
}

/// Whether the words are so different that one is hardly a misspelling of the other.
fn is_far(given: &str, meant: &str) -> bool {
    similar(given, [meant]).is_none()
}

/// The error of an invalid value. The parser suggests any value that shares letters with the given one; such a suggestion is removed if it
/// is far off. The error lists all possible values anyway.
fn with_values(mut error: Error) -> Error {
    if let (Some(ContextValue::String(given)), Some(ContextValue::String(meant))) =
        (error.get(ContextKind::InvalidValue), error.get(ContextKind::SuggestedValue))
        && is_far(given, meant)
    {
        error.remove(ContextKind::SuggestedValue);
    }
    error
}

/// The error of an unknown flag, with tips that fit.
fn with_flags(mut error: Error, command: &Command, line: &[String]) -> Error {
    // The parser's tip says how to pass the flag as a value, which nobody intends.
    let tips = match error.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips,
        _ => Vec::new(),
    };
    let mut tips: Vec<StyledStr> = tips.into_iter().filter(|tip| !tip.to_string().contains("as a value")).collect();
    let has_port = |named: &Command| named.get_arguments().any(|arg| arg.get_long() == Some("port"));
    let given = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(given)) => given.clone(),
        _ => String::new(),
    };
    // People know `--listen` from the agent. Commands with a port have `--host` and `--port` instead.
    let is_listen = given == "--listen" && line.iter().skip(1).find_map(|word| command.find_subcommand(word)).is_some_and(has_port);
    if is_listen {
        tips.push(StyledStr::from("here it is: --host and --port"));
    }
    // The parser suggests any flag that shares letters with the given one.
    if is_listen || matches!(error.get(ContextKind::SuggestedArg), Some(ContextValue::String(flag)) if is_far(&given, flag)) {
        error.remove(ContextKind::SuggestedArg);
        // The usage shows the same wrong flag.
        error.remove(ContextKind::Usage);
    }
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// Adds the names of the intended commands to the error of an unknown command. If the group is missing, as in `submit`, these are the
/// commands that end with this word, such as `task submit`. If a group is given, commands of other groups are not suggested.
fn with_commands(mut error: Error, command: &Command, line: &[String]) -> Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand).cloned() else { return error };
    let before = line.iter().skip(1).take_while(|given| **given != word);
    let group = before.filter_map(|given| command.find_subcommand(given)).find(|group| group.has_subcommands()).map(Command::get_name);
    let of_group = |group: &&Command| group.get_subcommands().any(|member| member.get_name_and_visible_aliases().contains(&word.as_str()));
    let meant = HABITS.iter().find(|(of, habit, _)| *of == group && *habit == word).map(|(.., meant)| *meant);
    let (tip, commands): (_, Vec<String>) = match (meant, group) {
        (Some(meant), _) => ("here it is", meant.iter().map(|meant| (*meant).to_owned()).collect()),
        (None, Some(_)) => ("", Vec::new()),
        (None, None) => {
            let groups = command.get_subcommands().filter(of_group);
            ("it is a part of another command", groups.map(|group| format!("{} {word}", group.get_name())).collect())
        }
    };
    let mistaken = MISTAKEN.iter().find(|(of, _)| group == Some(*of)).map(|(_, tip)| (*tip).to_owned());
    match error.remove(ContextKind::SuggestedSubcommand) {
        // The parser puts the most similar name last.
        Some(ContextValue::Strings(names)) if commands.is_empty() => {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names.into_iter().rev().collect()));
        }
        _ => {}
    }
    let named: Vec<String> = commands.iter().map(|named| format!("{} {named}", command.get_name())).collect();
    let found = (!named.is_empty()).then(|| format!("{tip}: {}", named.join(", ")));
    let tips: Vec<StyledStr> = found.into_iter().chain(mistaken).map(StyledStr::from).collect();
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}
