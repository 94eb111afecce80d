//! Joins the local branch of a context with its state on the project's server. This is checked before a run, so that nobody pays for a run
//! whose commits could not be pushed.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use bloom_core::project::is_commit_id;

use super::author::CommitAuthor;
use super::confined::Confined;
use super::repository::{DURABLE, LOCAL_LIMIT};
use super::trouble::Trouble;
use super::{Origin, Prepared, Worktree};
use crate::contexts::context_files::short_file_name;
use crate::machine::command::{ended, output};
use crate::sandbox::confinement::Confinement;

/// How many bytes of the output of a merge are read.
const MOST_TOLD: usize = 64 << 10;
/// The maximum number of files that a message lists.
const SHOWN_FILES: usize = 5;

impl Worktree {
    /// The ref that records the last known state of the branch on the server that is a part of the local branch.
    pub(super) fn record_ref(&self) -> String {
        format!("refs/pushed/{}/{}", self.name(), short_file_name(&self.branch))
    }

    pub(super) async fn note_pushed(&self, commit: &str) -> Result<(), Trouble> {
        self.repository.set_ref(&self.record_ref(), commit).await
    }

    /// Forgets the records of branches that were removed from the server. They say nothing about a branch that somebody later creates with
    /// the same name.
    pub(super) async fn forget_removed(&self) -> Result<(), Trouble> {
        for name in self.names() {
            let named = self.on(name);
            // Most names have no record, so that the second question is rarely needed.
            if self.repository.commit_of(&named.record_ref()).await.is_some()
                && self.repository.commit_of(&named.pushed_ref()).await.is_none()
            {
                self.repository.remove_ref(&named.record_ref()).await?;
            }
        }
        Ok(())
    }

    /// Moves the worktree, whose branch is at `head`, to the fetched state of the branch if that has commits which this machine does not
    /// have.
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
        if !confined.can_follow(&head, &goal).await {
            let why = format!("files that a run left there without a commit are in the way of what {} has on the server now", self.branch);
            return Err(self.state(&why, &["stash --include-untracked"]));
        }
        let failed = |error| Trouble::of_disk("the worktree can't be prepared", &error);
        fs::write(self.following_mark(), format!("{head} {goal}")).map_err(failed)?;
        confined.follow(&head, &goal).await?;
        fs::remove_file(self.following_mark()).map_err(failed)?;
        self.repository.set_ref(&self.branch_ref(), &goal).await?;
        self.note_pushed(&there).await?;
        Ok(followed)
    }

    /// Shows the server's branches to the repository of the context, as of the last fetch.
    pub(crate) async fn show_refs(&self, confinement: &Confinement) {
        Confined::new(self, confinement).follow_refs().await;
    }

    /// This file exists while the files are moved from one commit to another. It names both commits.
    fn following_mark(&self) -> PathBuf {
        self.own_git_dir().with_extension("following")
    }

    /// Finishes an interrupted move of the files to another commit. Otherwise git would take the files that were already moved for changes
    /// of a run. Files that were not moved stay as they are: an interrupted run may have left its work there.
    pub(super) async fn finish_following(&self, confined: &mut Confined<'_>) -> Result<(), Trouble> {
        let Ok(noted) = fs::read_to_string(self.following_mark()) else { return Ok(()) };
        if let Some((head, goal)) = noted.split_once(' ').filter(|(head, goal)| is_commit_id(head) && is_commit_id(goal)) {
            let changed = self.own_git_dir().with_extension("changed");
            let mut list = self.repository.local(&self.repository.git_dir());
            list.args(["diff-tree", "-r", "-z", "--no-renames", "--name-only"])
                .arg(format!("--output={}", changed.display()))
                .args([head, goal]);
            output(list, LOCAL_LIMIT).await.map_err(|why| Trouble::of_git("the worktree can't be prepared", &why))?;
            confined.finish_following(head, goal, &changed).await?;
            self.repository.set_ref(&self.branch_ref(), goal).await?;
            let _ = fs::remove_file(changed);
        }
        fs::remove_file(self.following_mark()).map_err(|error| Trouble::of_disk("the worktree can't be prepared", &error))
    }

    /// The commit at which the branch continues if it is at `here` on this machine and at `there` on the server. Commits that were pushed
    /// from here, and then taken back or replaced on the server, do not come back.
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
            // This is no conflict if a person has joined both on this machine, without what was taken back.
            if repository.is_ancestor(&pushed, here).await || !repository.is_ancestor(there, here).await {
                let why = "commits that were pushed were taken back or replaced there, and others were made here since";
                return Err(self.apart(why, &format!("rebase --onto origin/{} {pushed}", self.branch)));
            }
        }
        if repository.is_ancestor(there, here).await {
            return Ok(here.to_owned());
        }
        self.merged(here, there).await
    }

    fn apart(&self, why: &str, words: &str) -> Trouble {
        self.state(&format!("its branch {} and that of the server can't go on together: {why}", self.branch), &[words])
    }

    /// A merge of the two commits, made without a worktree.
    async fn merged(&self, here: &str, there: &str) -> Result<String, Trouble> {
        let failed = |why: String| Trouble::of_git("what others have pushed can't be merged", &why);
        let mut merge = self.repository.local(&self.repository.git_dir());
        if let Some(attributes) = self.attributes_of(here).await {
            merge.arg("-c").arg(format!("core.attributesFile={}", attributes.display()));
        }
        merge.args(DURABLE).args(["merge-tree", "--write-tree", "--name-only", "--no-messages", here, there]);
        let ended = ended(merge, Stdio::null(), LOCAL_LIMIT, MOST_TOLD).await.map_err(failed)?;
        let told = String::from_utf8_lossy(&ended.stdout).into_owned();
        let (tree, files) = told.split_once('\n').unwrap_or((&told, ""));
        match ended.status.and_then(|status| status.code()) {
            Some(0) => self.merge_commit(tree, here, there).await.map_err(failed),
            Some(1) | None => {
                let named: Vec<_> = files.lines().take(SHOWN_FILES).map(|name| name.escape_debug().to_string()).collect();
                Err(self.apart(&format!("both have changed {}", named.join(", ")), &format!("merge origin/{}", self.branch)))
            }
            // The commits have no common history, or this git is older than 2.38.
            Some(_) => {
                let words = format!("merge --allow-unrelated-histories origin/{}", self.branch);
                Err(self.apart(String::from_utf8_lossy(&ended.stderr).lines().next().unwrap_or_default(), &words))
            }
        }
    }

    /// A file with the project's merge attributes. Git reads no other attributes in a bare repository.
    async fn attributes_of(&self, commit: &str) -> Option<PathBuf> {
        let mut show = self.repository.local(&self.repository.git_dir());
        show.args(["cat-file", "blob", &format!("{commit}:.gitattributes")]);
        let attributes = output(show, LOCAL_LIMIT).await.ok()?;
        let file = self.own_git_dir().with_extension("attributes");
        fs::write(&file, attributes).ok()?;
        Some(file)
    }

    async fn merge_commit(&self, tree: &str, here: &str, there: &str) -> Result<String, String> {
        let message = format!("Merge what others have pushed to {}\n\n{}", self.branch, self.trailer());
        let mut make = self.repository.local(&self.repository.git_dir());
        make.envs(CommitAuthor::default().env()).args(DURABLE);
        make.args(["commit-tree", "--no-gpg-sign", tree, "-p", here, "-p", there, "-m", &message]);
        output(make, LOCAL_LIMIT).await
    }
}
