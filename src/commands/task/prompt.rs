//! The prompt of a new task: an argument, a file, standard input, or two of them.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;

use super::from_file::NOTHING_SUBMITTED;
use super::standard_input;
use crate::CommandError;
use crate::interrupt::blocking;
use crate::term;

/// How much of a prompt is repeated in an error.
const SHOWN_PROMPT: usize = 200;
const HOW: &str = "give it as an argument, with --prompt-file, or on standard input";

#[derive(Args, Debug)]
pub(crate) struct PromptArgs {
    /// The prompt, before the text of the file or of standard input; -: standard input
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// What follows a prompt that is not quoted: taken only to say so.
    #[arg(hide = true)]
    further_words: Vec<String>,
    /// Take the prompt from this file, after PROMPT if there is one; - is standard input
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
}

impl PromptArgs {
    /// # Errors
    /// The argument is not quoted. The error shows how to call this command.
    pub(crate) fn must_be_one(&self, command: &str) -> Result<(), CommandError> {
        if self.further_words.is_empty() {
            return Ok(());
        }
        let words: Vec<&str> = self.prompt.iter().chain(&self.further_words).map(String::as_str).collect();
        let count = words.len();
        let prompt = term::short(&words.join(" "), SHOWN_PROMPT);
        // Within double quotes, a shell replaces some characters.
        let quoted = if prompt.contains(['"', '$', '`', '\\', '!']) {
            format!("'{}'", prompt.replace('\'', r"'\''"))
        } else {
            format!("\"{prompt}\"")
        };
        Err(CommandError::usage(format!("the prompt is one argument, but there are {count}; quote the prompt: {command} {quoted}")))
    }

    pub(crate) fn is_given(&self) -> bool {
        self.prompt.is_some() || self.prompt_file.is_some()
    }

    /// # Errors
    /// There is no prompt, too much of it, or it can't be read.
    pub(crate) async fn read(&self) -> Result<String, CommandError> {
        let (argument, file) = (self.prompt.clone(), self.prompt_file.clone());
        blocking(move || text(argument, file.as_deref()), NOTHING_SUBMITTED).await
    }
}

/// Up to two of the argument, the text of --prompt-file and standard input, in this order.
fn text(argument: Option<String>, file: Option<&Path>) -> Result<String, CommandError> {
    let is_dash = argument.as_deref() == Some("-") || file == Some(Path::new("-"));
    let argument = argument.filter(|prompt| prompt != "-");
    let file = file.filter(|file| *file != Path::new("-"));
    let read = |file: &Path| {
        let name = file.display().to_string();
        let open = File::open(file).map_err(|error| CommandError::usage(format!("{name} can't be opened: {error}")))?;
        standard_input::read(&name, open)
    };
    let file = file.map(read).transpose()?;
    let is_whole = is_dash || (argument.is_none() && file.is_none());
    let input = if is_dash {
        Some(standard_input::whole()?)
    } else if argument.is_some() || file.is_some() {
        standard_input::beside_a_prompt()?
    } else if term::is_in_terminal() {
        return Err(CommandError::usage(format!("there is no prompt: {HOW}")));
    } else {
        Some(standard_input::whole()?)
    };
    if let Some(added) = input.as_ref().filter(|added| !is_whole && !added.is_empty()) {
        // In a shell loop that reads lines, the first command would silently consume all remaining lines, so this is reported.
        term::info(&format!(
            "The prompt has standard input at its end: {} lines. Give < /dev/null to leave it out.",
            added.lines().count()
        ));
    }
    let parts: Vec<String> = [argument, file, input].into_iter().flatten().filter(|part| !part.is_empty()).collect();
    if parts.len() > 2 {
        return Err(CommandError::usage(
            "the prompt comes from three places: the argument, --prompt-file and standard input. Give two of them: leave out PROMPT or \
             --prompt-file to send the other one with standard input, or give < /dev/null to send PROMPT and the file",
        ));
    }
    let text = parts.join("\n\n");
    if text.trim().is_empty() { Err(CommandError::usage(format!("the prompt is empty: {HOW}"))) } else { Ok(text) }
}
