//! Output to the terminal: escapes control characters, and handles readers that have gone away.

use std::io::{ErrorKind, IsTerminal, Write, stderr, stdin, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, ColorChoice};
use rustix::fs::{Stat, fstat};

use crate::CommandError;
pub use bloom_api::visible_text::escaped as safe;

/// As [`safe`], on one line.
pub fn line(text: &str) -> String {
    safe(text).split(['\n', '\t']).collect::<Vec<_>>().join(" ")
}

/// Text of others with all lines but the first indented, so that none looks like a line of this program.
pub fn indented(text: &str) -> String {
    text.replace('\n', "\n    ")
}

/// The first `most` characters, on one line.
pub fn short(text: &str, most: usize) -> String {
    // Only the beginning is processed, because the text may have several megabytes.
    let head: String = text.trim_start().chars().take(most + 1).collect();
    let cut = head.chars().count() > most;
    let mut shown = line(&head.chars().take(if cut { most.saturating_sub(1) } else { most }).collect::<String>());
    if cut {
        shown.push('…');
    }
    shown
}

/// Whether standard output is a terminal.
pub fn is_out_terminal() -> bool {
    stdout().is_terminal()
}

/// The width of the terminal, or 80 if it is unknown. `None` if standard output is not a terminal.
pub fn out_width() -> Option<usize> {
    let told = rustix::termios::tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_col));
    is_out_terminal().then_some(if told == 0 { 80 } else { told })
}

/// Whether standard error is a terminal.
pub fn is_err_terminal() -> bool {
    stderr().is_terminal()
}

/// Whether standard output and standard error go to the same file, pipe or terminal, so that a line of one would follow unfinished text of
/// the other.
fn is_one_output() -> bool {
    let place = |stat: Stat| (stat.st_dev, stat.st_ino);
    match (fstat(stdout()), fstat(stderr())) {
        (Ok(out), Ok(err)) => place(out) == place(err),
        _ => false,
    }
}

/// Whether standard input is a terminal.
pub fn is_in_terminal() -> bool {
    stdin().is_terminal()
}

/// Whether to print colors: only on a terminal, and not if NO_COLOR is set.
pub fn has_colors() -> bool {
    is_out_terminal() && AutoStream::choice(&stdout()) != ColorChoice::Never
}

/// Prints data unchanged.
///
/// # Errors
/// The output can't be written; [`CommandError::unread`] if its reader has closed it.
pub fn print(text: &str) -> Result<(), CommandError> {
    if !text.is_empty() {
        IS_IN_LINE.store(!text.ends_with('\n'), Ordering::Relaxed);
    }
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(CommandError::unread()),
        Err(error) => Err(format!("the output can't be written: {error}").into()),
    }
}

/// Prints text of others: unchanged to a file or a pipe, with escaped control characters on a terminal.
///
/// # Errors
/// As [`print()`].
pub fn print_foreign(text: &str) -> Result<(), CommandError> {
    if is_out_terminal() { print(&safe(text)) } else { print(text) }
}

/// Replaces the last line of the terminal by this text, on standard error. An empty text clears the line.
pub fn last_line(text: &str) {
    let mut out = stderr().lock();
    let _ = write!(out, "\r\x1b[2K{text}").and_then(|()| out.flush());
}

static MUTED: AtomicBool = AtomicBool::new(false);
/// Whether the last text on standard output did not end with a line break.
static IS_IN_LINE: AtomicBool = AtomicBool::new(false);

/// Whether standard output has an unfinished line.
pub fn is_in_line() -> bool {
    IS_IN_LINE.load(Ordering::Relaxed)
}

/// Ends the line of standard output if it is unfinished.
///
/// # Errors
/// As [`print()`].
pub fn end_line() -> Result<(), CommandError> {
    if is_in_line() { print("\n") } else { Ok(()) }
}

/// Suppresses all further messages. While a shell completes a line, they would appear in that line.
pub fn mute() {
    MUTED.store(true, Ordering::Relaxed);
}

/// Prints a message for the user to standard error.
pub fn info(text: &str) {
    if !MUTED.load(Ordering::Relaxed) {
        // The message must not follow an unfinished line.
        if is_one_output() {
            let _ = end_line();
        }
        let _ = writeln!(stderr().lock(), "{}", safe(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(safe("plain\ttext\n"), "plain\ttext\n");
        assert_eq!(safe("a\x1b[2Jb\x07\r\nc\rd\u{9b}"), "a\\u001b[2Jb\\u0007\nc\\u000dd\\u009b");
        assert_eq!(safe("\u{202e}x\u{200b}"), "\\u202ex\\u200b");
        assert_eq!(safe("\u{e0041}"), "\\udb40\\udc41");
        assert_eq!(line("a\nb\tc\x1b"), "a b c\\u001b");
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(short("abcdef", 6), "abcdef");
        assert_eq!(short("abcdefg", 6), "abcde…");
        assert_eq!(short("  äöü\nx", 9), "äöü x");
    }
}
