//! Why a context has no worktree, or why its changes are not committed.

use std::io;

use bloom_core::task::{NOT_FETCHED, NOT_PUSHED, Reason};

use crate::machine::reserve::is_of_disk;

/// The beginning of the error if the files of a run can't be committed.
pub(crate) const NOT_COMMITTED: &str = "the changes can't be committed";
/// The error if a command took more space than the run may use.
pub(crate) const ROOM: &str = "it takes more room on the disk than limits.disk_mib of the profile allows";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The repository can't be fetched: it no longer exists, or the worker may not read it.
    Repository(String),
    /// The name is neither a branch nor a tag nor a commit of the repository.
    RefMissing(String),
    /// The default branch of the repository does not exist. The repository has these branches.
    NoDefault(String),
    /// The repository has no commit.
    Empty,
    /// The repository is larger than the agent's limit.
    Size(String),
    /// A command that the run has made git execute takes more space than the run may use.
    Room(String),
    /// The disk is full, or can't be written.
    Disk(String),
    /// The run has left an unfinished merge or rebase, or another state that needs a person.
    State(String),
    /// The repository has files in git-lfs, which is not installed.
    Lfs(String),
    /// The server of the repository refuses the branch, or can't be reached.
    Push(String),
    Failed(String),
}

impl Trouble {
    pub(crate) fn of_disk(what: &str, error: &io::Error) -> Self {
        let text = format!("{what}: {error}");
        match error.kind() {
            io::ErrorKind::FileTooLarge => Self::Size(text),
            _ if is_of_disk(error) => Self::Disk(text),
            // Other errors may be caused by a run, and are no reason to stop the worker.
            _ => Self::Failed(text),
        }
    }

    /// The error of a git command that writes files.
    pub(crate) fn of_git(what: &str, why: &str) -> Self {
        let text = format!("{what}: {why}");
        match why {
            ROOM => Self::Room(text),
            why if why.contains("No space left on device") || why.contains("Disk quota exceeded") => Self::Disk(text),
            why if why.contains("larger than") => Self::Size(text),
            _ => Self::Failed(text),
        }
    }

    pub(crate) fn of_fetch(why: &str) -> Self {
        // Git's text for a protocol that the agent does not allow.
        let advice = if why.contains("not allowed") { "; --git-protocols of the agent says which protocols it may use" } else { "" };
        match Self::of_git(NOT_FETCHED, &[&without_urls(why), advice].concat()) {
            Self::Failed(text) => Self::Repository(text),
            other => other,
        }
    }

    pub(crate) fn of_push(branch: &str, why: &str) -> Self {
        Self::Push(format!("the branch {branch} {NOT_PUSHED}: {}", without_urls(why)))
    }

    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Disk(_) => Reason::WorkerDisk,
            Self::Room(_) => Reason::DiskLimit,
            _ => Reason::Project,
        }
    }

    /// Whether the same attempt may succeed later, or on another worker.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Repository(_) | Self::Disk(_) | Self::Failed(_))
    }
}

/// Git's message without the URLs of repositories: whoever submits a task need not know them. `git@host:path` counts as a URL, too.
fn without_urls(why: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '\'' | '"');
    let is_url =
        |word: &str| word.contains("://") || word.split_once(':').is_some_and(|(host, path)| host.contains('@') && !path.is_empty());
    let told = |word: &str| {
        let bare = word.trim_end_matches(is_end);
        if is_url(bare) { format!("…{}", &word[bare.len()..]) } else { word.to_owned() }
    };
    why.split_inclusive(is_end).map(told).collect()
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RefMissing(name) => write!(f, "the project's repository has no branch, tag or commit '{name}'"),
            Self::NoDefault(branches) => {
                write!(f, "the default branch of the project's repository does not exist: submit with a ref; it has {branches}")
            }
            Self::Empty => f.write_str("the project's repository is empty: push a first commit to it"),
            Self::Repository(why)
            | Self::Size(why)
            | Self::Room(why)
            | Self::Disk(why)
            | Self::State(why)
            | Self::Lfs(why)
            | Self::Push(why)
            | Self::Failed(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without_urls;

    #[test]
    fn urls_are_left_out() {
        for (said, told) in [
            (
                "fatal: unable to access 'https://h/team/x.git/': Could not resolve host",
                "fatal: unable to access '…': Could not resolve host",
            ),
            ("To file:///srv/x.git\n ! [rejected] main", "To …\n ! [rejected] main"),
            ("fatal: 'git@h:team/x.git' does not appear to be a git repository", "fatal: '…' does not appear to be a git repository"),
            ("git@h: Permission denied (publickey).", "git@h: Permission denied (publickey)."),
            ("error: cannot lock ref 'refs/heads/a'", "error: cannot lock ref 'refs/heads/a'"),
        ] {
            assert_eq!(without_urls(said), told);
        }
    }
}
