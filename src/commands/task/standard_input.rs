//! Prompts from standard input and from files.

use std::io::{ErrorKind, Read, stdin};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};

use crate::CommandError;
use crate::term;

/// Longer than any prompt that a server accepts.
const MAX_PROMPT_BYTES: u64 = 64 * 1024 * 1024;
/// How many seconds the first byte may take, if there is already a prompt. Under cron, ssh or systemd, standard input may be a pipe to
/// which nobody writes, and which nobody closes.
const PATIENCE: i64 = 3;

/// Reads all of standard input.
///
/// # Errors
/// It can't be read as text, or is too long.
pub(crate) fn whole() -> Result<String, CommandError> {
    read("standard input", stdin().lock())
}

/// The text that standard input adds to a prompt: its content, if it is a file, or if it is a pipe or socket that is ready within
/// [`PATIENCE`].
///
/// # Errors
/// It can't be read as text, or is too long.
pub(crate) fn beside_a_prompt() -> Result<Option<String>, CommandError> {
    if !may_have_content() {
        return Ok(None);
    }
    let input = stdin();
    let mut waited = [PollFd::new(&input, PollFlags::IN)];
    // The end of a pipe is an event, too.
    if poll(&mut waited, Some(&Timespec { tv_sec: PATIENCE, tv_nsec: 0 })).is_ok_and(|ready| ready == 0) {
        term::info(&format!(
            "Standard input is open, but nothing came within {PATIENCE} s, so only the prompt is sent. \
             Give < /dev/null if there is nothing, or --prompt-file - to wait for it."
        ));
        return Ok(None);
    }
    whole().map(Some)
}

/// Whether standard input can have content for the prompt. Terminals and /dev/null are devices, and have none.
fn may_have_content() -> bool {
    let kind = fstat(stdin()).map(|about| FileType::from_raw_mode(about.st_mode));
    matches!(kind, Ok(FileType::RegularFile | FileType::Fifo | FileType::Socket))
}

/// Removes the byte order mark that some editors write at the beginning of a text.
pub(crate) fn without_mark(text: String) -> String {
    text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)
}

/// The error about a text that can't be read.
pub(crate) fn unreadable(name: &str, error: &std::io::Error) -> CommandError {
    let advice = if error.kind() == ErrorKind::InvalidData { "; convert it, for example with iconv" } else { "" };
    CommandError::usage(format!("{name} can't be read as UTF-8 text: {error}{advice}"))
}

/// # Errors
/// The source can't be read as text, or is too long.
pub(crate) fn read(name: &str, source: impl Read) -> Result<String, CommandError> {
    let mut text = String::new();
    let read = source.take(MAX_PROMPT_BYTES + 1).read_to_string(&mut text);
    match read.map_err(|error| unreadable(name, &error))? as u64 {
        0..=MAX_PROMPT_BYTES => Ok(without_mark(text)),
        _ => Err(CommandError::usage(format!("{name} is longer than {MAX_PROMPT_BYTES} bytes, which no server accepts"))),
    }
}
