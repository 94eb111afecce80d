//! How the branch of a context here and what the project's server has of it come together. It is looked at before a run, so that no run is paid
//! for whose commits could not be pushed.

use std::process::Stdio;

use super::super::command::{ended, output};
use super::super::context_files::short_file_name;
use super::author::CommitAuthor;
use super::confined::Confined;
use super::repository::{DURABLE, LOCAL_LIMIT};
use super::trouble::Trouble;
use super::{Origin, Prepared, Worktree};

/// The bytes that are read of what a merge tells.
const MOST_TOLD: usize = 64 << 10;
/// Files that a message names.
const SHOWN_FILES: usize = 5;

impl Worktree {
    /// The ref that keeps what the server had last of the branch that is a part of the branch here.
    pub(super) fn record_ref(&self) -> String {
        format!("refs/pushed/{}/{}", self.name(), short_file_name(&self.branch))
    }

    pub(super) async fn note_pushed(&self, commit: &str) -> Result<(), Trouble> {
        self.repository.set_ref(&self.record_ref(), commit).await
    }

    /// Lets the worktree, whose branch is at `head`, go on with what was fetched of it, if that has what this machine does not have.
    pub(super) async fn follow_pushed(&self, confined: &Confined<'_>, head: String) -> Result<Prepared, Trouble> {
        confined.follow_refs().await;
        let Some(there) = self.repository.commit_of(&self.pushed_ref()).await else { return Ok(self.prepared(head, Origin::Kept)) };
        let goal = self.joined(&head, &there).await?;
        if goal == head {
            self.note_pushed(&there).await?;
            return Ok(self.prepared(head, Origin::Kept));
        }
        let origin = if goal == there { Origin::Fetched } else { Origin::Merged };
        let files = self.repository.large_files_of(&goal).await?;
        let followed = self.large_files(confined, self.prepared(goal.clone(), origin), &files).await?;
        if followed.unfetched.is_some() {
            return Ok(Prepared { unfetched: followed.unfetched, ..self.prepared(head, Origin::Kept) });
        }
        if !confined.follow(&head, &goal).await? {
            let why = format!("files that a run left there without a commit are in the way of what {} has on the server now", self.branch);
            return Err(self.state(&why));
        }
        self.repository.set_ref(&self.branch_ref(), &goal).await?;
        self.note_pushed(&there).await?;
        Ok(followed)
    }

    /// The commit at which the branch goes on that is at `here` on this machine and at `there` on the server. What was pushed from here and was
    /// taken back or replaced there does not come back.
    pub(super) async fn joined(&self, here: &str, there: &str) -> Result<String, Trouble> {
        let repository = &self.repository;
        if repository.is_ancestor(here, there).await {
            return Ok(there.to_owned());
        }
        if let Some(pushed) = repository.commit_of(&self.record_ref()).await
            && !repository.is_ancestor(&pushed, there).await
        {
            if repository.is_ancestor(here, &pushed).await {
                return Ok(there.to_owned());
            }
            let why = "commits that were pushed from here were taken back or replaced there, and others were made here since";
            return Err(self.apart(why));
        }
        if repository.is_ancestor(there, here).await {
            return Ok(here.to_owned());
        }
        self.merged(here, there).await
    }

    fn apart(&self, why: &str) -> Trouble {
        let merge = format!("merge origin/{}", self.branch);
        self.state(&format!(
            "its branch {} and that of the server can't go on together: {why} (`{merge}` keeps both, as long as it is pushed)",
            self.branch
        ))
    }

    /// A merge of the two commits, made without a worktree.
    async fn merged(&self, here: &str, there: &str) -> Result<String, Trouble> {
        let failed = |why: String| Trouble::of_git("what others have pushed can't be merged", &why);
        let mut merge = self.repository.local(&self.repository.git_dir());
        merge.args(DURABLE).args(["merge-tree", "--write-tree", "--name-only", "--no-messages", here, there]);
        let ended = ended(merge, Stdio::null(), LOCAL_LIMIT, MOST_TOLD).await.map_err(failed)?;
        let told = String::from_utf8_lossy(&ended.stdout).into_owned();
        let (tree, files) = told.split_once('\n').unwrap_or((&told, ""));
        match ended.status.and_then(|status| status.code()) {
            Some(0) => self.merge_commit(tree, here, there).await.map_err(failed),
            Some(1) | None => {
                let named: Vec<_> = files.lines().take(SHOWN_FILES).map(|name| name.escape_debug().to_string()).collect();
                Err(self.apart(&format!("both have changed {}", named.join(", "))))
            }
            Some(_) => Err(self.apart(String::from_utf8_lossy(&ended.stderr).trim())),
        }
    }

    async fn merge_commit(&self, tree: &str, here: &str, there: &str) -> Result<String, String> {
        let message = format!("Merge what others have pushed to {}\n\n{}", self.branch, self.trailer());
        let mut make = self.repository.local(&self.repository.git_dir());
        make.envs(CommitAuthor::default().env()).args(DURABLE);
        make.args(["commit-tree", "--no-gpg-sign", tree, "-p", here, "-p", there, "-m", &message]);
        output(make, LOCAL_LIMIT).await
    }
}
