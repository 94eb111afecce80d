//! The worktree of a context: a branch of its own in a project's repository, which goes on where the last run of the context left it.
//!
//! ```text
//! repositories/PROJECT/git/     bare repository (see [`repository`])
//! contexts/NAME/                the worktree: what a run may write
//! ```

mod author;
mod commit;
mod removal;
mod repository;
mod survey;
mod trouble;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::command::output;
use super::git::bounded;
use super::home::{file_name, private_dir};
pub use author::{CommitAuthor, commit_author};
pub use commit::Changes;
pub use removal::remove_all;
pub use repository::Repository;
use repository::{FETCH_LIMIT, LOCAL_LIMIT};
pub use trouble::Trouble;

/// What a merge, a rebase or the like leaves behind in a git directory while it waits for a person.
const UNFINISHED: [(&str, &str); 6] = [
    ("MERGE_HEAD", "a merge"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("BISECT_LOG", "a bisection"),
];
/// How long a run waits for the newest state of a repository that it does not need to begin.
const FOLLOW_LIMIT: Duration = Duration::from_secs(60);
/// The longest name of a context that is a part of a branch's name as it is.
const PLAIN_NAME: usize = 100;

/// The worktree of a context, ready for a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Prepared {
    pub branch: String,
    /// The commit that the run begins with.
    pub base: String,
    pub origin: Origin,
    /// Why the run begins with what this machine had: the repository's server could not be reached.
    #[serde(default)]
    pub unfetched: Option<String>,
}

/// Where the branch of a worktree begins.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Where the last run of the context left it on this machine.
    Kept,
    /// Where a run of the context on another worker left it, which has pushed the branch.
    Fetched,
    /// At the ref that the task names.
    Fresh,
}

/// The branch of a context. It is the same on every worker.
pub fn branch(context_id: &str) -> String {
    let is_plain = (1..=PLAIN_NAME).contains(&context_id.len())
        && context_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        && !context_id.starts_with('-');
    format!("bloom/{}", if is_plain { context_id.to_owned() } else { file_name(context_id) })
}

/// The worktree of one context in the repository of a project.
#[derive(Clone, Debug)]
pub struct Worktree {
    pub repository: Repository,
    /// The directory of the context.
    pub dir: PathBuf,
    pub branch: String,
}

impl Worktree {
    /// The git directory of the worktree. It has the name of the worktree's directory, and is written by git alone.
    pub fn own_git_dir(&self) -> PathBuf {
        self.repository.git_dir().join("worktrees").join(self.dir.file_name().unwrap_or_default())
    }

    fn branch_ref(&self) -> String {
        format!("refs/heads/{}", self.branch)
    }

    fn in_tree(&self) -> Command {
        let mut git = self.repository.local(&self.own_git_dir());
        // Paths of commands are relative to the worktree; git does not look for a repository there.
        git.arg("--work-tree").arg(&self.dir).current_dir(&self.dir);
        git
    }

    async fn head(&self) -> Result<String, Trouble> {
        let head = self.repository.parsed(&self.own_git_dir(), "HEAD^{commit}").await;
        head.ok_or_else(|| self.state("its branch has no commit"))
    }

    /// What only a person can mend. They must not let git find its way from the worktree either, so they get the whole command.
    fn state(&self, why: &str) -> Trouble {
        let (own, dir) = (self.own_git_dir(), self.dir.display());
        let command = format!("git --git-dir {} --work-tree {dir}", own.display());
        Trouble::State(format!(
            "the worktree of this context can't be used: {why}. Mend it on the worker with {command} …, or use another context"
        ))
    }

    pub fn exists(&self) -> bool {
        self.complete_mark().exists() && self.dir.is_dir()
    }

    /// Exists once all files of the worktree are there. With half of them, it would look like one in which a run has deleted the others.
    fn complete_mark(&self) -> PathBuf {
        self.own_git_dir().join("bloom-complete")
    }

    /// Prepares the worktree for a run that wants this branch, tag or commit; `None` = the default branch of the repository. A context that
    /// has a branch goes on with it, whatever is wanted.
    pub async fn prepare(&self, wanted: Option<&str>) -> Result<Prepared, Trouble> {
        let _lock = self.repository.lock.lock().await;
        if self.exists() {
            self.forget_locks();
            self.check_unfinished()?;
            self.check_branch()?;
            self.link()?;
            let Err(trouble) = self.repository.fetch(FOLLOW_LIMIT).await else { return self.follow_pushed().await };
            // The worktree is there, so the run does not need the repository's server.
            return Ok(Prepared { unfetched: Some(trouble.to_string()), ..self.prepared(self.head().await?, Origin::Kept) });
        }
        self.repository.fetch(FETCH_LIMIT).await?;
        let of_branch = |name: String| async move { self.repository.commit_of(&name).await };
        let (origin, base) = if let Some(commit) = of_branch(self.branch_ref()).await {
            (Origin::Kept, commit)
        } else if let Some(commit) = of_branch(self.pushed_ref()).await {
            (Origin::Fetched, commit)
        } else {
            (Origin::Fresh, self.repository.wanted_commit(wanted).await?)
        };
        self.add(&base).await?;
        if origin == Origin::Kept {
            return self.follow_pushed().await;
        }
        Ok(self.prepared(base, origin))
    }

    fn prepared(&self, base: String, origin: Origin) -> Prepared {
        Prepared { branch: self.branch.clone(), base, origin, unfetched: None }
    }

    fn pushed_ref(&self) -> String {
        format!("refs/remotes/origin/{}", self.branch)
    }

    /// If the context was on another worker meanwhile, and that has pushed the branch, the worktree follows what was fetched of it. Work of this
    /// machine that is not part of it stays as it is.
    async fn follow_pushed(&self) -> Result<Prepared, Trouble> {
        let head = self.head().await?;
        let Some(pushed) = self.repository.commit_of(&self.pushed_ref()).await else { return Ok(self.prepared(head, Origin::Kept)) };
        if pushed == head || !self.repository.is_ancestor(&head, &pushed).await {
            return Ok(self.prepared(head, Origin::Kept));
        }
        let mut read = self.in_tree();
        // It changes nothing if a file has other changes.
        read.args(["read-tree", "-m", "-u", &head, &pushed]);
        if output(read, LOCAL_LIMIT).await.is_err() {
            return Ok(self.prepared(head, Origin::Kept));
        }
        self.update_branch(&pushed).await?;
        Ok(self.prepared(pushed, Origin::Fetched))
    }

    /// Whether a worktree can be made in the directory of the context. What is left of one that was not made completely is removed.
    pub fn check_free(&self) -> Result<(), Trouble> {
        if self.own_git_dir().exists() {
            self.discard();
        }
        let is_empty = fs::read_dir(&self.dir).map_or(true, |mut entries| entries.next().is_none());
        if !is_empty {
            let why = "has files of runs without this project, or of another one (also one that had the same name): use another context, or remove the \
                 directory on the worker";
            return Err(Trouble::State(format!("the context's directory {} {why}", self.dir.display())));
        }
        Ok(())
    }

    async fn add(&self, start: &str) -> Result<(), Trouble> {
        self.check_free()?;
        if let Some(parent) = self.dir.parent() {
            private_dir(parent).map_err(|error| Trouble::of_disk("the contexts' directory can't be created", &error))?;
        }
        let mut add = self.repository.local(&self.repository.git_dir());
        add.args(["worktree", "add", "--quiet", "--force", "-B", &self.branch]).arg(&self.dir).arg(start);
        if let Err(why) = bounded(add, FETCH_LIMIT, &self.dir, self.repository.settings.max_bytes).await {
            self.discard();
            return Err(Trouble::of_git("the worktree can't be made", &why));
        }
        fs::write(self.complete_mark(), "").map_err(|error| Trouble::of_disk("the worktree can't be made", &error))
    }

    /// Runs find the repository by this file, which an earlier run may have removed.
    fn link(&self) -> Result<(), Trouble> {
        let (link, text) = (self.dir.join(".git"), format!("gitdir: {}\n", self.own_git_dir().display()));
        // A run may have put anything in its place: a pipe, or a link to a device. It is not opened.
        let known = fs::symlink_metadata(&link);
        let is_right = known.as_ref().is_ok_and(|known| known.is_file() && known.len() == text.len() as u64)
            && fs::read(&link).is_ok_and(|known| known == text.as_bytes());
        if is_right || known.is_ok_and(|known| known.is_dir()) {
            return Ok(());
        }
        let _ = fs::remove_file(&link);
        let made = fs::File::options().write(true).create_new(true).open(&link);
        made.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Trouble::of_disk("the worktree can't be prepared", &error))
    }

    /// A command that was killed leaves its locks behind. Nobody else uses this git directory now.
    fn forget_locks(&self) {
        let (own, common) = (self.own_git_dir(), self.repository.git_dir());
        for lock in [own.join("index.lock"), own.join("HEAD.lock"), common.join(format!("{}.lock", self.branch_ref()))] {
            let _ = fs::remove_file(lock);
        }
    }

    fn check_unfinished(&self) -> Result<(), Trouble> {
        let own = self.own_git_dir();
        match UNFINISHED.iter().find(|(file, _)| own.join(file).exists()) {
            Some((_, what)) => Err(self.state(&format!("a run has left {what} unfinished: finish or abort it"))),
            None => Ok(()),
        }
    }

    fn check_branch(&self) -> Result<(), Trouble> {
        let head = fs::read_to_string(self.own_git_dir().join("HEAD")).unwrap_or_default();
        if head.trim_end() == format!("ref: {}", self.branch_ref()) {
            return Ok(());
        }
        Err(self.state(&format!("a run has checked out something else than its branch {}", self.branch)))
    }

    /// Lets the branch name this commit, at once or not at all, and the worktree be on the branch.
    async fn update_branch(&self, commit: &str) -> Result<(), Trouble> {
        let failed = |why: String| Trouble::of_git("the branch can't be updated", &why);
        let mut update = self.repository.local(&self.own_git_dir());
        update.args(["update-ref", "-m", "bloom-runtime", &self.branch_ref(), commit]);
        output(update, LOCAL_LIMIT).await.map_err(failed)?;
        let mut point = self.repository.local(&self.own_git_dir());
        point.args(["symbolic-ref", "HEAD", &self.branch_ref()]);
        output(point, LOCAL_LIMIT).await.map(drop).map_err(failed)
    }

    /// Removes a worktree that was not made completely.
    fn discard(&self) {
        if let Err(error) = self.remove() {
            tracing::warn!(dir = %self.dir.display(), %error, "half a worktree could not be removed");
        }
    }

    /// Removes the worktree; the branch stays, so that a later run of the context goes on there.
    ///
    /// # Errors
    /// Some of it could not be removed; its git directory stays until its files are gone.
    pub fn remove(&self) -> io::Result<()> {
        remove_all(&self.dir)?;
        remove_all(&self.own_git_dir())
    }
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
