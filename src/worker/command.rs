//! Commands that the push server runs: updates and clones.

use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use rustix::process::Signal;

use super::environment::scrub;
use super::process::send_to_group;
use super::stream;

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
    scrub(command.as_std_mut());
    // A group of its own, so that the time limit ends what the command has started, too.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let child = command.spawn().map_err(|error| error.to_string())?;
    let mut group = Group(child.id().and_then(|id| i32::try_from(id).ok()));
    let ended = timeout(limit, child.wait_with_output()).await.map_err(|_| format!("it took longer than {} s", limit.as_secs()))?;
    // It was waited for, so its id may be used for another.
    group.0 = None;
    ended.map_err(|error| error.to_string())
}

/// Ends the process group when it is dropped: at the time limit, and when the agent stops.
struct Group(Option<i32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            send_to_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_time_limit_ends_all_that_the_command_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("sh -c 'echo $$ >{0}; exec sleep 250' & while [ ! -s {0} ]; do :; done; wait", file.display()));
        let why = output(shell, Duration::from_secs(2)).await.unwrap_err();
        assert_eq!(why, "it took longer than 2 s");
        let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        let ended = async {
            while crate::process::Leader::of(pid).is_some() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), ended).await.unwrap();
    }
}
