//! What a run changed in its worktree: committed by plumbing, which knows no hooks, shown, and pushed.
//!
//! Repositories below the worktree are left out: they are no part of the project.

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

/// The bytes of a patch that are shown.
pub(crate) const MAX_PATCH: usize = 16 << 20;
const MAX_STAT: usize = 64 << 10;
/// How often a branch is pushed to which others push meanwhile.
const PUSHES: usize = 4;

/// What a run changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    pub commit: String,
    pub stat: String,
    /// The beginning of the patch, at most [`MAX_PATCH`] bytes. Lines of files have the bytes that the files have, in whatever encoding: git applies no other patch.
    pub patch: Vec<u8>,
    pub is_cut: bool,
    /// Repositories within the worktree, whose content was left out.
    pub left_out: Vec<String>,
}

#[cfg(test)]
impl Changes {
    pub(crate) fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.patch)
    }
}

impl Worktree {
    /// Commits what is in the worktree, and shows what changed since the run began; `None` if nothing did. The branch moves at once or not at
    /// all. It may be repeated. `ignored` names files that are not committed, in the form of a `.gitignore`.
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
        // A run may have made commits of its own, also on another branch; but not thrown away those of earlier runs.
        if !self.repository.is_ancestor(&begun.base, &commit).await {
            let why = format!(
                "a run has checked out {head}, which does not build on {} {}; the commands build it on that, with the files as they are now",
                begun.branch, begun.base
            );
            // Else the next run would go on without what the branch had.
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

    /// What of the worktree is no part of the project. Fails if the worktree is such that its changes could not be committed.
    pub(super) async fn left_out(&self) -> Result<BTreeSet<PathBuf>, Trouble> {
        let (tree, most) = (self.dir.clone(), self.repository.settings.max_bytes);
        let looked = tokio::task::spawn_blocking(move || repositories_within(&tree, most)).await;
        looked.map_err(|error| Trouble::Failed(format!("the changes can't be committed: {error}")))?
    }

    /// What changed between two commits: the beginning of it, and whether that is not all. A patch may be far larger than the files.
    async fn diff(&self, from: &str, to: &str, form: &[&str], most: usize) -> Result<(Vec<u8>, bool), Trouble> {
        // Names that are not ASCII are shown as they are, if they are UTF-8.
        let (mut bytes, mut is_cut) = self.diff_bytes(from, to, form, most, "core.quotePath=false").await?;
        if !is_text(&bytes) {
            (bytes, is_cut) = self.diff_bytes(from, to, form, most, "core.quotePath=true").await?;
        }
        Ok((bytes, is_cut))
    }

    async fn diff_bytes(&self, from: &str, to: &str, form: &[&str], most: usize, names: &str) -> Result<(Vec<u8>, bool), Trouble> {
        let mut diff = self.repository.local(&self.repository.git_dir());
        diff.args(["-c", names, "diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color"]);
        // Trees are compared: nothing is looked for in a submodule.
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

    /// Pushes the branch with the user's own credentials, unless the repository's server has its commits already, as far as the last fetch
    /// tells. What others have pushed meanwhile is merged. Returns the commit that was pushed.
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
                // It may have been made since the run began.
                if self.repository.commit_of(&self.record_ref()).await.is_none() {
                    self.check_own().await.map_err(stopped)?;
                }
                commit = self.joined(&commit, theirs).await.map_err(stopped)?;
                if commit == *theirs {
                    self.note_pushed(theirs).await?;
                    // An earlier attempt has pushed it, although its end was not heard of.
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

    /// Whether a branch of the server has the commit, so that the context has made none.
    async fn is_of_another_branch(&self, commit: &str) -> bool {
        let mut ask = self.repository.local(&self.repository.git_dir());
        ask.args(["for-each-ref", "--count=1", "--format=%(refname)", "--contains", commit, PUSHED]);
        output(ask, LOCAL_LIMIT).await.is_ok_and(|known| !known.is_empty())
    }
}

/// Whether it is UTF-8, of which the last character may be cut.
fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true)
}
