//! Ctrl-C ends a command, and says what it leaves behind.

use std::time::Duration;

use crate::CommandError;

/// How long an interrupted command may take to say what it leaves behind.
const LAST_WORDS: Duration = Duration::from_millis(500);
const INTERRUPTED: i32 = 130;

/// Does the work until Ctrl-C; then `told` says what was done, and how to go on.
///
/// # Errors
/// Those of the work, and the interruption.
pub async fn or_interrupted<T>(
    work: impl Future<Output = Result<T, CommandError>>,
    told: impl FnOnce() -> String,
) -> Result<T, CommandError> {
    tokio::select! {
        // What is done when the signal comes counts as done.
        biased;
        done = work => done,
        Ok(()) = tokio::signal::ctrl_c() => Err(CommandError::interrupted(told())),
    }
}

/// Does the work until Ctrl-C. The process ends even if the work is in a call that does not return, such as a read of the terminal.
///
/// # Errors
/// Those of the work, and the interruption.
pub async fn always<T>(work: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            tokio::time::sleep(LAST_WORDS).await;
            std::process::exit(INTERRUPTED);
        }
    });
    or_interrupted(work, String::new).await
}
