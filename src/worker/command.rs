//! Commands that the push server runs: updates and clones.

use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::{run, stream};

/// Runs the command. Returns the start of what it printed.
///
/// # Errors
/// It could not be started, failed, or took longer than `limit`; the text says which, and what the command printed.
pub(super) async fn output(mut command: Command, limit: Duration) -> Result<String, String> {
    run::scrub(&mut command);
    command.stdin(std::process::Stdio::null()).kill_on_drop(true);
    let ended = timeout(limit, command.output()).await.map_err(|_| format!("it took longer than {} s", limit.as_secs()))?;
    let ended = ended.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| stream::cut(String::from_utf8_lossy(bytes).trim(), 2_000).to_owned();
    if ended.status.success() { Ok(text(&ended.stdout)) } else { Err(format!("{} ({})", text(&ended.stderr), ended.status)) }
}
