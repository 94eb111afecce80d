//! The worktree of a context. It has its own branch of a project, and each run continues where the last run of the context left it.
//!
//! ```text
//! repositories/PROJECT/git/                a bare repository with the fetched refs and the branches of all contexts (see [`repository`])
//! repositories/PROJECT/contexts/NAME.git/  the repository of the context, which runs may write (see [`confined`])
//! contexts/NAME/                           its worktree, which runs may write
//! ```
//!
//! The two repositories share the objects of the first one. The agent's own commands on the second one are confined like the runs that
//! write it. The commits of runs reach the first repository in a pack file, which git checks as if a server had sent it.

mod author;
mod branch_owner;
mod commit;
mod confined;
mod filters;
mod lfs;
mod refs;
mod repository;
mod settings;
mod survey;
mod sync;
mod trouble;
mod unchanged;
mod unpushed;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contexts::context_files::short_file_name;
use crate::home::private_dir;
use crate::machine::removal::remove_all;
use crate::sandbox::confinement::Confinement;
pub(crate) use author::{CommitAuthor, commit_author};
pub(crate) use commit::Changes;
use confined::Confined;
use repository::FETCH_LIMIT;
pub(crate) use repository::Repository;
pub(crate) use trouble::Trouble;

/// What a merge, a rebase or a similar operation leaves in a git directory while it waits for a person. Each entry has a description and
/// the git command that aborts the operation.
const UNFINISHED: [(&str, &str, &str); 6] = [
    ("MERGE_HEAD", "a merge", "merge --abort"),
    ("rebase-merge", "a rebase", "rebase --abort"),
    ("rebase-apply", "a rebase", "rebase --abort"),
    ("CHERRY_PICK_HEAD", "a cherry-pick", "cherry-pick --abort"),
    ("REVERT_HEAD", "a revert", "revert --abort"),
    ("BISECT_LOG", "a bisection", "bisect reset"),
];
/// How long a run waits for the newest state of a repository if it can begin without it.
const FOLLOW_LIMIT: Duration = Duration::from_secs(60);
/// The fetched branches of the repository.
const PUSHED: &str = "refs/remotes/origin";
/// The branches of contexts on this machine.
const LOCAL: &str = "refs/heads";
/// The file in a worktree that points to its repository.
const LINK: &str = ".git";
/// Up to this length, the name of a context becomes a part of the branch's name unchanged.
const PLAIN_NAME: usize = 100;

/// The git-lfs objects that the files of a commit need; `None` if the commit does not use git-lfs.
type LargeFiles = Option<Vec<String>>;

/// The worktree of a context, ready for a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Prepared {
    pub branch: String,
    /// The commit that the run begins with.
    pub base: String,
    pub origin: Origin,
    /// Why the run begins with this machine's state: the repository's server could not be reached.
    #[serde(default)]
    pub unfetched: Option<String>,
}

/// The commit at which the branch of a worktree begins.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// At the commit where the last run of the context on this machine left it.
    Kept,
    /// At the commit where a run of the context on another worker left it. That run has pushed the branch.
    Fetched,
    /// At a merge of this machine's state and what others have pushed.
    Merged,
    /// At the ref that the task names.
    Fresh,
}

/// The branch of a context. It is the same on every worker.
pub(crate) fn branch(prefix: &str, context_id: &str) -> String {
    let is_plain = (1..=PLAIN_NAME).contains(&context_id.len())
        && context_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        && !context_id.starts_with('-')
        && !has_digest(context_id);
    format!("{prefix}/{}", if is_plain { context_id.to_owned() } else { short_file_name(context_id) })
}

/// Whether a name ends with a digest, as names do that [`branch`] makes from other names.
fn has_digest(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, digest)| digest.len() == 12 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The worktree of one context in the repository of a project.
#[derive(Clone, Debug)]
pub(crate) struct Worktree {
    pub repository: Repository,
    pub context_id: String,
    /// The name of the project, for messages.
    pub project: String,
    /// The directory of the context.
    pub dir: PathBuf,
    /// Its branch, unless it was pushed under another name.
    pub branch: String,
    /// The branch names that earlier prefixes of the project give it, newest first.
    pub former_branches: Vec<String>,
}

impl Worktree {
    /// The repository of the context.
    pub(crate) fn own_git_dir(&self) -> PathBuf {
        self.repository.contexts_dir().join(self.name()).with_added_extension("git")
    }

    pub(crate) fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The same worktree with another branch.
    pub(crate) fn on(&self, branch: &str) -> Self {
        Self { branch: branch.to_owned(), ..self.clone() }
    }

    fn branch_ref(&self) -> String {
        format!("{LOCAL}/{}", self.branch)
    }

    /// A state that only a person can repair, with the git commands that repair it. The commands are shown in full, with `--git-dir` and
    /// `--work-tree`: people must not let git find the repository from the worktree either.
    fn state(&self, why: &str, commands: &[&str]) -> Trouble {
        let (own, dir) = (self.own_git_dir(), self.dir.display());
        let whole = |words: &&str| format!("git --git-dir {} --work-tree {dir} {words}", own.display());
        let command = commands.iter().map(whole).collect::<Vec<_>>().join(" && ");
        Trouble::State(format!(
            "the worktree of this context can't be used: {why}. Mend it on the worker with {command}, or use another context"
        ))
    }

    pub(crate) fn exists(&self) -> bool {
        self.complete_mark().exists() && self.dir.is_dir()
    }

    /// Whether the worktree exists at least in part.
    pub(crate) fn has_begun(&self) -> bool {
        self.own_git_dir().exists()
    }

    /// This file exists once all files of the worktree do. An incomplete worktree would look like one in which a run has deleted files. It
    /// contains the name of the branch.
    fn complete_mark(&self) -> PathBuf {
        self.own_git_dir().with_extension("complete")
    }

    /// The names that the context's branch may have: those that a prefix of the project gives, and the one that the agent has used last.
    /// Deleted projects have no prefixes, but may still have tasks.
    fn own_branches(&self) -> Vec<String> {
        let noted = fs::read_to_string(self.complete_mark()).ok();
        self.names().cloned().chain(noted).collect()
    }

    fn note_branch(&self) -> Result<(), Trouble> {
        fs::write(self.complete_mark(), &self.branch).map_err(|error| Trouble::of_disk("the worktree can't be prepared", &error))
    }

    /// Prepares the worktree for a run that wants this branch, tag or commit; `None` = the default branch of the repository. A context that
    /// already has a branch continues on it, whatever is wanted. A run that will push needs the repository's server from the beginning.
    pub(crate) async fn prepare(&self, confinement: &Confinement, wanted: Option<&str>, is_pushed: bool) -> Result<Prepared, Trouble> {
        let tree = self.on(&self.local_branch().await);
        if tree.exists() { self.go_on(&tree, confinement, wanted, is_pushed).await } else { self.begin(&tree, confinement, wanted).await }
    }

    /// Prepares an existing worktree.
    async fn go_on(&self, tree: &Self, confinement: &Confinement, wanted: Option<&str>, is_pushed: bool) -> Result<Prepared, Trouble> {
        let mut confined = Confined::new(tree, confinement);
        confined.forget_locks().await;
        confined.renew().await?;
        tree.check_unfinished()?;
        tree.finish_following(&mut confined).await?;
        let tree = &tree.on(&confined.branch(&self.own_branches()).await?);
        let begun = tree.repository.commit_of(&tree.branch_ref()).await.ok_or_else(|| Trouble::Failed("the branch is gone".into()))?;
        tree.note_branch()?;
        let filters = confined.filters;
        let mut confined = Confined { filters, ..Confined::new(tree, confinement) };
        // Checked before the run, because a run costs money.
        let left_out = tree.left_out().await?;
        confined.link().await?;
        let head = confined.head(&begun).await?;
        tree.check_filters(&mut confined, &head, &left_out).await?;
        tree.take(&confined, &head, None).await?;
        let files = tree.repository.large_files_of(&head).await?;
        if files.is_some() {
            tree.take_large_files(&confined, &head).await?;
        }
        if let Err(trouble) = tree.repository.fetch(if is_pushed { FETCH_LIMIT } else { FOLLOW_LIMIT }).await {
            if is_pushed {
                return Err(trouble);
            }
            // The worktree exists, so the run does not need the repository's server.
            return Ok(Prepared { unfetched: Some(trouble.to_string()), ..tree.prepared(head, Origin::Kept) });
        }
        let kept = tree.large_files(&confined, tree.prepared(head.clone(), Origin::Kept), &files).await?;
        if kept.unfetched.is_some() {
            return Ok(kept);
        }
        let settled = self.settled(tree, wanted).await?;
        if settled.branch != tree.branch {
            tree.repository.set_ref(&settled.branch_ref(), &head).await?;
            confined.rename_branch(&head, &settled.branch).await?;
            tree.repository.remove_ref(&tree.branch_ref()).await?;
            settled.note_branch()?;
        }
        settled.follow_pushed(&Confined::new(&settled, confinement), head).await
    }

    /// Prepares a worktree that does not exist yet.
    async fn begin(&self, tree: &Self, confinement: &Confinement, wanted: Option<&str>) -> Result<Prepared, Trouble> {
        tree.repository.fetch(FETCH_LIMIT).await?;
        let settled = self.settled(tree, wanted).await?;
        let of_branch = |name: String| async move { tree.repository.commit_of(&name).await };
        let (origin, base) = if let Some(commit) = of_branch(tree.branch_ref()).await {
            (Origin::Kept, commit)
        } else if let Some(commit) = of_branch(settled.pushed_ref()).await {
            (Origin::Fetched, commit)
        } else {
            (Origin::Fresh, tree.repository.wanted_commit(wanted).await?)
        };
        let files = tree.repository.large_files_of(&base).await?;
        tree.repository.fetch_large_files(&base, &files).await?;
        let mut confined = Confined::new(&settled, confinement);
        settled.add(&mut confined, &base, &files).await?;
        if origin == Origin::Kept {
            if settled.branch != tree.branch {
                tree.repository.remove_ref(&tree.branch_ref()).await?;
            }
            return settled.follow_pushed(&confined, base).await;
        }
        confined.follow_refs().await;
        if origin == Origin::Fetched {
            settled.note_pushed(&base).await?;
        }
        Ok(settled.prepared(base, origin))
    }

    /// The branch of the context on this machine, looked up by the project's current and former branch names.
    async fn local_branch(&self) -> String {
        for name in self.names() {
            if self.repository.commit_of(&format!("{LOCAL}/{name}")).await.is_some() {
                return name.clone();
            }
        }
        self.branch.clone()
    }

    fn prepared(&self, base: String, origin: Origin) -> Prepared {
        Prepared { branch: self.branch.clone(), base, origin, unfetched: None }
    }

    fn pushed_ref(&self) -> String {
        format!("{PUSHED}/{}", self.branch)
    }

    /// Copies a commit of the context into the project's repository, where nothing that a run has written takes effect. `known` is a commit
    /// that the project's repository already has; by default, the head of the branch.
    async fn take(&self, confined: &Confined<'_>, commit: &str, known: Option<&str>) -> Result<(), Trouble> {
        if self.repository.commit_with(commit).await.is_some() {
            return Ok(());
        }
        let of_branch = if known.is_none() { self.repository.commit_of(&self.branch_ref()).await } else { None };
        let known = known.or(of_branch.as_deref());
        let pack = self.own_git_dir().with_extension("pack");
        let _ = fs::remove_file(&pack);
        let made = confined.pack(commit, known, &pack).await.map_err(|why| Trouble::of_git("what the run committed can't be read", &why));
        let taken = match made {
            Ok(()) => self.repository.take(&pack, &self.name(), commit).await,
            Err(trouble) => Err(trouble),
        };
        let _ = fs::remove_file(&pack);
        taken
    }

    /// Checks that a worktree can be made in the directory of the context. Removes the rest of a worktree that was not made completely.
    pub(crate) fn check_free(&self) -> Result<(), Trouble> {
        if self.has_begun() {
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

    async fn add(&self, confined: &mut Confined<'_>, start: &str, files: &LargeFiles) -> Result<(), Trouble> {
        self.check_free()?;
        let made = self.make(confined, start, Some(files)).await;
        if made.is_err() {
            self.discard();
        }
        made
    }

    /// Makes the worktree with these large files; `None` = its files already exist.
    async fn make(&self, confined: &mut Confined<'_>, start: &str, files: Option<&LargeFiles>) -> Result<(), Trouble> {
        let failed = |error| Trouble::of_disk("the worktree can't be made", &error);
        for dir in [&self.dir, &self.own_git_dir()] {
            private_dir(dir).map_err(failed)?;
        }
        // The commit from which the context starts must stay in the project's repository, whatever happens to the branch that it came from.
        self.repository.set_ref(&self.branch_ref(), start).await?;
        confined.make(start, files).await?;
        self.note_branch()
    }

    /// Only checks whether the files exist, and opens none. It does not follow links that runs have made: they would reveal what exists
    /// elsewhere.
    fn check_unfinished(&self) -> Result<(), Trouble> {
        let own = self.own_git_dir();
        match UNFINISHED.iter().find(|(file, ..)| own.join(file).symlink_metadata().is_ok()) {
            Some((_, what, words)) => Err(self.state(&format!("a run has left {what} unfinished"), &[words])),
            None => Ok(()),
        }
    }

    /// Removes a worktree that was not made completely.
    fn discard(&self) {
        if let Err(error) = self.remove() {
            tracing::warn!(dir = %self.dir.display(), %error, "half a worktree could not be removed");
        }
    }

    /// Removes the worktree. The branch stays, so that a later run of the context continues on it.
    ///
    /// # Errors
    /// Some of it could not be removed; its repository stays until its files are gone.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(self.complete_mark()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove_all(&self.dir)?;
        remove_all(&self.own_git_dir())
    }
}

#[cfg(test)]
mod as_it_is_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod join_tests;
#[cfg(test)]
mod lfs_tests;
#[cfg(test)]
mod tests;
