//! The changes of a run in its worktree: commits them with plumbing commands, which run no hooks, shows them, and pushes them.
//!
//! Repositories below the worktree are left out: they are not part of the project.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::author::CommitAuthor;
use super::confined::Confined;
use super::repository::{FETCH_LIMIT, LOCAL_LIMIT};
use super::survey::repositories_within;
use super::trouble::{NOT_COMMITTED, Trouble};
use super::{PUSHED, Prepared, Worktree};
use crate::machine::command::{ended, output};
use crate::sandbox::confinement::Confinement;

/// The maximum size of a patch that is shown, in bytes.
pub(crate) const MAX_PATCH: usize = 16 << 20;
const MAX_STAT: usize = 64 << 10;
/// How many times the agent tries to push a branch to which others push meanwhile.
const PUSHES: usize = 4;

/// The changes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    pub commit: String,
    pub stat: String,
    /// The beginning of the patch, at most [`MAX_PATCH`] bytes. Lines keep the bytes of the files, in whatever encoding, because git would
    /// not apply any other patch.
    pub patch: Vec<u8>,
    pub is_cut: bool,
    /// Repositories within the worktree, whose contents were left out.
    pub left_out: Vec<String>,
}

#[cfg(test)]
impl Changes {
    pub(crate) fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.patch)
    }
}

impl Worktree {
    /// Commits the state of the worktree, and returns what changed since the run began; `None` if nothing did. The branch is updated
    /// atomically, and the call may be repeated. `ignored` is a file in the form of a `.gitignore` with what is not committed.
    pub(crate) async fn commit(
        &self,
        confinement: &Confinement,
        begun: &Prepared,
        message: &str,
        author: &CommitAuthor,
        ignored: &Path,
    ) -> Result<Option<Changes>, Trouble> {
        let failed = |why: String| Trouble::of_git(NOT_COMMITTED, &why);
        let mut confined = Confined::new(self, confinement);
        confined.forget_locks().await;
        confined.renew().await?;
        self.check_unfinished()?;
        let head = confined.head(&begun.base).await?;
        let left_out = self.left_out().await?;
        confined.read = vec![ignored.to_owned()];
        let commit = confined.commit_files(&head, &left_out, ignored, author, message).await;
        confined.read.clear();
        let mut commit = commit?;
        self.take(&confined, &commit, Some(&begun.base)).await?;
        if commit != begun.base && !self.is_marked(&commit).await? {
            commit = confined.commit_tree(&format!("{commit}^{{tree}}"), &commit, author, message).await.map_err(failed)?;
            self.take(&confined, &commit, Some(&begun.base)).await?;
        }
        if commit != begun.base && confined.lfs.is_some() && self.repository.uses_lfs(&commit).await {
            self.take_large_files(&confined, &commit).await?;
        }
        // A run may have made commits of its own, even on another branch, but it must not have dropped those of earlier runs.
        if !self.repository.is_ancestor(&begun.base, &commit).await {
            let why = format!(
                "a run has checked out {head}, which does not build on {} {}; the commands build it on that, with the files as they are now",
                begun.branch, begun.base
            );
            // Otherwise the next run would continue without the branch's previous commits.
            confined.detach(&commit, &begun.base).await?;
            let merge = format!("merge --strategy=ours --allow-unrelated-histories --no-edit {}", begun.base);
            return Err(self.state(&why, &[&merge, &format!("checkout -B {}", self.branch)]));
        }
        self.repository.set_ref(&self.branch_ref(), &commit).await?;
        confined.update_branch(&commit).await?;
        confined.prune_shared().await;
        if commit == begun.base {
            return Ok(None);
        }
        let (stat, _) = self.diff(&begun.base, &commit, &["--stat=120"], MAX_STAT).await?;
        let (patch, is_cut) =
            self.diff(&begun.base, &commit, &["--patch", "--find-renames", "--binary", "--full-index"], MAX_PATCH).await?;
        Ok(Some(Changes {
            commit,
            stat: String::from_utf8_lossy(&stat).replace('\0', "\u{fffd}"),
            patch,
            is_cut,
            left_out: left_out.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        }))
    }

    /// The paths in the worktree that are not part of the project. Fails if the changes in the worktree could not be committed.
    pub(super) async fn left_out(&self) -> Result<BTreeSet<PathBuf>, Trouble> {
        let (tree, most) = (self.dir.clone(), self.repository.settings.max_bytes);
        let looked = tokio::task::spawn_blocking(move || repositories_within(&tree, most)).await;
        looked.map_err(|error| Trouble::Failed(format!("the changes can't be committed: {error}")))?
    }

    /// The beginning of the difference between two commits, and whether it was cut. A patch may be far larger than the files.
    async fn diff(&self, from: &str, to: &str, form: &[&str], most: usize) -> Result<(Vec<u8>, bool), Trouble> {
        // Names that are not ASCII are shown unquoted if they are UTF-8.
        let (mut bytes, mut is_cut) = self.diff_bytes(from, to, form, most, "core.quotePath=false").await?;
        if !is_text(&bytes) {
            (bytes, is_cut) = self.diff_bytes(from, to, form, most, "core.quotePath=true").await?;
        }
        Ok((bytes, is_cut))
    }

    async fn diff_bytes(&self, from: &str, to: &str, form: &[&str], most: usize, names: &str) -> Result<(Vec<u8>, bool), Trouble> {
        let mut diff = self.repository.local(&self.repository.git_dir());
        diff.args(["-c", names, "diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color"]);
        // Only trees are compared, so git does not look into submodules.
        diff.args(["--ignore-submodules=none", "--submodule=short"]).args(form).args([from, to]);
        let failed = |why: String| Trouble::of_git("the changes can't be shown", &why);
        let ended = ended(diff, Stdio::null(), LOCAL_LIMIT, most).await.map_err(failed)?;
        if ended.status.is_some_and(|status| !status.success()) {
            return Err(failed(String::from_utf8_lossy(&ended.stderr).trim().to_owned()));
        }
        let (mut bytes, is_cut) = (ended.stdout, ended.status.is_none());
        bytes.truncate(most);
        Ok((bytes, is_cut))
    }

    /// Pushes the branch with the user's own credentials, unless the project's server already has its commits as of the last fetch. Merges
    /// what others have pushed meanwhile. Returns the commit that was pushed.
    pub(crate) async fn push(&self) -> Result<Option<String>, Trouble> {
        let failed = |why: &str| Trouble::of_push(&self.branch, why);
        let mut commit = self.repository.commit_of(&self.branch_ref()).await.ok_or_else(|| failed("its branch is gone"))?;
        let mut known = self.repository.commit_of(&self.pushed_ref()).await;
        if known.is_none() && self.is_of_another_branch(&commit).await {
            return Ok(None);
        }
        let stopped = |trouble: Trouble| failed(&trouble.to_string());
        let mut refused = None;
        for _ in 0..PUSHES {
            self.check_branch_name(&self.branch).await.map_err(stopped)?;
            if let Some(theirs) = &known {
                // Somebody may have created the branch on the server since the run began.
                if self.repository.commit_of(&self.record_ref()).await.is_none() {
                    self.check_own().await.map_err(stopped)?;
                }
                commit = self.joined(&commit, theirs).await.map_err(stopped)?;
                if commit == *theirs {
                    self.note_pushed(theirs).await?;
                    // An earlier attempt has pushed the commit, although its answer did not arrive.
                    return Ok(refused.map(|_: String| commit));
                }
            }
            let Err(why) = self.push_once(&commit, known.as_deref()).await else { return Ok(Some(commit)) };
            let _ = self.repository.fetch(FETCH_LIMIT).await;
            let there = self.repository.commit_of(&self.pushed_ref()).await;
            if there == known {
                return Err(failed(&why));
            }
            (known, refused) = (there, Some(why));
        }
        Err(Trouble::of_push(&self.branch, "others push to it all the time"))
    }

    /// Whether a branch on the server has the commit, so that the context has made no commit of its own.
    async fn is_of_another_branch(&self, commit: &str) -> bool {
        let mut ask = self.repository.local(&self.repository.git_dir());
        ask.args(["for-each-ref", "--count=1", "--format=%(refname)", "--contains", commit, PUSHED]);
        output(ask, LOCAL_LIMIT).await.is_ok_and(|known| !known.is_empty())
    }
}

/// Whether the bytes are UTF-8. The last character may be cut.
fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true)
}
