//! The agent's own git commands. They execute nothing that a repository or a run wrote.

pub(crate) mod repositories;
pub(crate) mod worktree;
pub(crate) mod worktrees;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::sleep;

use crate::machine::walk::{Next, Seen, walk};

/// The interval at which the size of a command's output files is checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The maximum number of files whose sizes are added up in one check; a clone with more counts as too large.
const MAX_FILES: usize = 2_000_000;

/// The memory limit of one git command.
const MAX_MEMORY_KIB: u32 = 2 << 20;

/// The limits of what the agent may fetch.
#[derive(Clone, Debug, PartialEq)]
pub struct GitSettings {
    /// The protocols that git may use, such as `https` and `ssh`.
    pub protocols: Vec<String>,
    /// The maximum size of one clone, in bytes.
    pub max_bytes: u64,
}

/// Git settings that could otherwise execute a program, or write outside of the repository. Each command has them on its command line, so
/// they take precedence over a repository's own settings.
const SAFE: [&str; 12] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.symlinks=true",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "diff.ignoreSubmodules=all",
    "gc.auto=0",
    "maintenance.auto=false",
    "transfer.fsckObjects=true",
];

/// Faults in old commits of real repositories that do no harm: names, addresses and dates in another format. Git itself clones such
/// commits, but without this list `transfer.fsckObjects` refuses them.
const HARMLESS: [&str; 11] = [
    "badDate",
    "badDateOverflow",
    "badEmail",
    "badName",
    "badTimezone",
    "missingEmail",
    "missingNameBeforeEmail",
    "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail",
    "multipleAuthors",
    "zeroPaddedDate",
];

/// The value of `--strict` for `index-pack`, with the same exceptions as fetches.
pub(crate) fn strict() -> String {
    HARMLESS.map(|fault| format!("{fault}=ignore")).join(",")
}

/// Variables in the agent's environment that would direct its git commands to another repository, or make them execute a program.
const MISLEADING: [&str; 16] = [
    "GIT_DEFAULT_HASH",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_TEMPLATE_DIR",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_EDITOR",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
];

/// A git command of the agent: without hooks, submodules and file system monitors.
pub(crate) fn git(protocols: &[String]) -> Command {
    let mut git = Command::new("sh");
    // The content of a repository can make git allocate any amount of memory. The limit does not include mapped files, so large
    // repositories have room.
    git.args(["-c", &format!("ulimit -d {MAX_MEMORY_KIB} 2>/dev/null; exec git \"$@\""), "git"]);
    for name in MISLEADING {
        git.env_remove(name);
    }
    for setting in SAFE {
        git.args(["-c", setting]);
    }
    for fault in HARMLESS {
        git.args(["-c", &format!("fetch.fsck.{fault}=ignore")]);
    }
    // Git and ssh must fail instead of asking for a password.
    git.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ALLOW_PROTOCOL", protocols.join(":")).env("GIT_LFS_SKIP_SMUDGE", "1");
    git.env("LC_ALL", "C").env("GIT_OPTIONAL_LOCKS", "0");
    git
}

/// Whether git is installed.
pub(crate) fn is_installed() -> bool {
    crate::machine::program::find_program("git".as_ref(), "".as_ref()).is_some()
}

/// The git-lfs program, if it is installed.
pub fn lfs_program() -> Option<PathBuf> {
    crate::machine::program::find_program("git-lfs".as_ref(), "".as_ref())
}

/// Waits for a command that writes below `dir`, and ends it when that directory takes more than `most` bytes.
///
/// # Errors
/// The error of the command, or that it took more space.
pub(crate) async fn bounded(command: impl Future<Output = Result<String, String>>, dir: &Path, most: u64) -> Result<String, String> {
    let dir = dir.to_owned();
    unless(move || size_of(&dir, most) > most, &too_large(most), command).await
}

/// Waits for a command, and ends it when its output files become too large.
///
/// # Errors
/// The error of the command, or `why` if the files became too large.
pub(crate) async fn unless(
    is_large: impl Fn() -> bool + Clone + Send + 'static,
    why: &str,
    command: impl Future<Output = Result<String, String>>,
) -> Result<String, String> {
    let is_large = || async { tokio::task::spawn_blocking(is_large.clone()).await.unwrap_or_default() };
    let watched = async {
        loop {
            sleep(LOOK_EVERY).await;
            if is_large().await {
                return;
            }
        }
    };
    tokio::select! {
        ended = command => match ended {
            Ok(_) if is_large().await => Err(why.to_owned()),
            ended => ended,
        },
        // Dropping the command ends its process group.
        () = watched => Err(why.to_owned()),
    }
}

fn too_large(most: u64) -> String {
    format!("it is larger than {} MiB, which this agent takes at most (--max-clone-mib)", most >> 20)
}

/// The total size of all files below the directory, in bytes; counting stops above `enough`. Links are not followed. If something can't be
/// examined, the size counts as unlimited.
pub(crate) fn size_of(dir: &Path, enough: u64) -> u64 {
    let mut size = 0_u64;
    let is_whole = walk(dir, MAX_FILES, |seen| match seen {
        Seen::Entry { about, .. } => {
            size = size.saturating_add(if about.is_dir() { 0 } else { about.len() });
            if size > enough { Next::Stop } else { Next::Into }
        }
        Seen::Unreadable { .. } => Next::Stop,
    });
    if is_whole || size > enough { size } else { u64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::output;

    #[tokio::test]
    async fn a_command_has_a_limit_of_memory() {
        let mut shell = git(&[]);
        shell.args(["-c", "alias.limit=!ulimit -d", "limit"]);
        assert_eq!(output(shell, Duration::from_secs(60)).await, Ok(MAX_MEMORY_KIB.to_string()));
    }
}
