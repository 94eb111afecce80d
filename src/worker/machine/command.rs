//! Commands that the agent runs: git, updates, probes. They have a time limit, and their output is kept up to a size limit, because runs
//! may influence some of it.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use rustix::process::Signal;

use crate::claude::stream;
use crate::machine::environment::scrub;
use crate::machine::process::send_to_group;

/// How many bytes of a command's output are kept, unless the caller sets another limit.
const MOST: usize = 1 << 20;
/// How many bytes of a command's errors are kept. The rest is read and dropped.
const MOST_ERRORS: usize = 64 << 10;
/// How many bytes of the output appear in messages.
const SHOWN: usize = 2_000;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None`: the command was ended, because it printed more than was wanted.
    pub status: Option<ExitStatus>,
    /// The beginning of its output.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// The same command, with these words before it. Of its environment, only variables that were set explicitly are kept.
pub(crate) fn started_by(words: impl IntoIterator<Item = OsString>, command: &Command) -> Command {
    let command = command.as_std();
    let mut words = words.into_iter().chain([command.get_program().to_owned()]).chain(command.get_args().map(OsStr::to_owned));
    let mut started = Command::new(words.next().unwrap_or_default());
    started.args(words).env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    started.current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
    started
}

/// Runs the command. Returns the beginning of its output.
///
/// # Errors
/// It could not be started, failed, printed too much, or took longer than `limit`. The text says which, and what the command printed.
pub(crate) async fn output(command: Command, limit: Duration) -> Result<String, String> {
    output_of(command, Stdio::null(), limit).await
}

/// Like [`output`], with this standard input.
pub(crate) async fn output_of(command: Command, stdin: Stdio, limit: Duration) -> Result<String, String> {
    succeeded(command, stdin, limit).await.map(|ended| text(&ended.stdout))
}

/// Like [`output`], but returns the beginning of standard error: a command may succeed without having done everything.
pub(crate) async fn warnings(command: Command, limit: Duration) -> Result<String, String> {
    succeeded(command, Stdio::null(), limit).await.map(|ended| String::from_utf8_lossy(&ended.stderr).into_owned())
}

async fn succeeded(command: Command, stdin: Stdio, limit: Duration) -> Result<Ended, String> {
    let ended = ended(command, stdin, limit, MOST).await?;
    match ended.status {
        Some(status) if status.success() => Ok(ended),
        Some(status) => Err(format!("{} ({status})", text(&ended.stderr))),
        None => Err(format!("it printed more than {} MiB", MOST >> 20)),
    }
}

fn text(bytes: &[u8]) -> String {
    stream::cut(String::from_utf8_lossy(bytes).trim(), SHOWN).to_owned()
}

/// Runs the command, and accepts any status. A command that prints more than `most` bytes is ended.
///
/// # Errors
/// It could not be started, or took longer than `limit`.
pub(crate) async fn ended(mut command: Command, stdin: Stdio, limit: Duration, most: usize) -> Result<Ended, String> {
    scrub(command.as_std_mut());
    // The command gets its own process group, so that the time limit also ends what the command has started.
    command.process_group(0).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut group = Group(child.id().and_then(|id| i32::try_from(id).ok()));
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let all = async {
        let errors = beginning(errors, MOST_ERRORS, true);
        tokio::pin!(errors);
        let mut stderr = None;
        let out = beginning(out, most, false);
        tokio::pin!(out);
        let stdout = loop {
            tokio::select! {
                stdout = &mut out => break stdout,
                all = &mut errors, if stderr.is_none() => stderr = Some(all),
            }
        };
        if stdout.len() > most {
            return Ok(Ended { status: None, stdout, stderr: Vec::new() });
        }
        let stderr = match stderr {
            Some(stderr) => stderr,
            None => errors.await,
        };
        child.wait().await.map(|status| Ended { status: Some(status), stdout, stderr })
    };
    let ended = timeout(limit, all).await.map_err(|_| format!("it took longer than {} s", limit.as_secs()))?;
    if ended.as_ref().is_ok_and(|ended| ended.status.is_some()) {
        // The process was reaped, so its id may now belong to another one.
        group.0 = None;
    }
    ended.map_err(|error| error.to_string())
}

/// The beginning of a stream. It has one byte more than `most` if there is more. With `drained`, the rest is read and dropped.
async fn beginning(stream: Option<impl AsyncRead + Unpin>, most: usize, drained: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Some(mut stream) = stream else { return bytes };
    // An error means that no more output comes.
    let _ = (&mut stream).take(most as u64 + 1).read_to_end(&mut bytes).await;
    if drained {
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        bytes.truncate(most);
    }
    bytes
}

/// Ends the process group when it is dropped: at the time limit, or when the agent stops.
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
    async fn what_is_printed_has_a_limit() {
        let shell = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            shell
        };
        let errors = output(shell("head -c 30000000 /dev/zero >&2; echo done"), Duration::from_secs(60));
        assert_eq!(errors.await, Ok("done".into()), "errors are dropped");
        assert_eq!(output(shell("exec yes"), Duration::from_secs(60)).await, Err("it printed more than 1 MiB".into()));
        let cut = ended(shell("exec yes"), Stdio::null(), Duration::from_secs(60), 10).await.unwrap();
        assert_eq!((cut.status, cut.stdout.as_slice()), (None, &b"y\ny\ny\ny\ny\ny"[..]));
    }

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
            while crate::machine::process::Leader::of(pid).is_some() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), ended).await.unwrap();
    }
}
