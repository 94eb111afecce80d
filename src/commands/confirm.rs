//! Asks before something is done that can't be undone.

use std::io::{BufRead, BufReader, Read, Write, stderr, stdin};

use super::{interrupt, term};
use crate::CommandError;

/// Asks the user whether to do this to so many objects.
///
/// # Errors
/// There is no terminal to ask on, or the user pressed Ctrl-C.
pub(crate) async fn confirm(verb: &str, count: &str) -> Result<bool, CommandError> {
    if !term::is_in_terminal() {
        return Err(CommandError::usage(format!("this would {verb} {count}; standard input is not a terminal, so give --yes to confirm")));
    }
    let question = format!("{verb} {count}? [y/N] ");
    let ask = move || {
        let mut out = stderr().lock();
        let _ = write!(out, "{question}").and_then(|()| out.flush());
        drop(out);
        let mut answer = String::new();
        let read = BufReader::new(stdin().lock().take(64)).read_line(&mut answer);
        read.map_err(|error| format!("the answer can't be read: {error}"))?;
        Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    };
    let answer = interrupt::blocking(ask, "interrupted; nothing was changed").await;
    if interrupt::is_interrupted() {
        // The message must begin on a line of its own, not after the question.
        term::info("");
    }
    answer
}
