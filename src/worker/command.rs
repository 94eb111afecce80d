//! Commands that the push server runs: updates and clones.

use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::{run, stream};

/// Runs the command. Returns the start of what it printed.
///
/// # Errors
/// It could not be started, failed, or took longer than `limit`; the text says which, and what the command printed.
pub(super) async fn output(command: Command, limit: Duration) -> Result<String, String> {
    let ended = ended(command, limit).await?;
    let text = |bytes: &[u8]| stream::cut(String::from_utf8_lossy(bytes).trim(), 2_000).to_owned();
    if ended.status.success() { Ok(text(&ended.stdout)) } else { Err(format!("{} ({})", text(&ended.stderr), ended.status)) }
}

/// Runs the command, whatever its status is.
///
/// # Errors
/// It could not be started, or took longer than `limit`.
pub(super) async fn ended(mut command: Command, limit: Duration) -> Result<Output, String> {
    run::scrub(&mut command);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = timeout(limit, command.output()).await.map_err(|_| format!("it took longer than {} s", limit.as_secs()))?;
    ended.map_err(|error| error.to_string())
}
