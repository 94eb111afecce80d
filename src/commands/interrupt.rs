//! Ctrl-C ends a command, with a message about what was done.

use std::time::Duration;

use crate::CommandError;

/// How long an interrupted command may take to print its message, also on a machine that is busy.
const MESSAGE_LIMIT: Duration = Duration::from_secs(2);
const INTERRUPTED: i32 = 130;

/// Does the work until Ctrl-C; then `told` says what was done, and how to go on.
///
/// # Errors
/// Those of the work, and the interruption.
pub async fn or_interrupted<T>(
    work: impl Future<Output = Result<T, CommandError>>,
    message: impl FnOnce() -> String,
) -> Result<T, CommandError> {
    tokio::select! {
        // What is done when the signal comes counts as done.
        biased;
        done = work => done,
        Ok(()) = tokio::signal::ctrl_c() => Err(CommandError::interrupted(message())),
    }
}

/// Does the work until Ctrl-C. The process ends even if the work is in a call that does not return, such as a read of the terminal.
///
/// # Errors
/// Those of the work, and the interruption.
pub async fn always<T>(work: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            tokio::time::sleep(MESSAGE_LIMIT).await;
            std::process::exit(INTERRUPTED);
        }
    });
    or_interrupted(work, String::new).await
}
