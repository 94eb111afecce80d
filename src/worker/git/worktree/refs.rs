//! The refs of a project's repository. The meaning of a name is never guessed: git may resolve `refs/heads/x` to the tag
//! `refs/tags/refs/heads/x`, and anybody who may push to the project's server can create such a tag.

use std::fs;

use super::repository::{DURABLE, FETCH_LIMIT, LOCAL_LIMIT, Repository};
use super::trouble::Trouble;
use super::{LOCAL, PUSHED, Worktree};
use crate::machine::command::output;

/// The author of the commit at which [`HEAD`](Repository::set_head) is.
const NOBODY: [(&str, &str); 6] = [
    ("GIT_AUTHOR_NAME", "bloom-runtime"),
    ("GIT_AUTHOR_EMAIL", "bloom-runtime@localhost"),
    ("GIT_AUTHOR_DATE", "@0 +0000"),
    ("GIT_COMMITTER_NAME", "bloom-runtime"),
    ("GIT_COMMITTER_EMAIL", "bloom-runtime@localhost"),
    ("GIT_COMMITTER_DATE", "@0 +0000"),
];

impl Repository {
    /// Sets HEAD to a commit without files, because git-lfs reads `HEAD:.lfsconfig` (see [`lfs`](super::lfs)). If HEAD named a branch that
    /// does not exist, git-lfs would read the file from a tag `HEAD`, or from the branch once somebody creates it.
    pub(crate) async fn set_head(&self) -> Result<(), Trouble> {
        if !fs::read_to_string(self.git_dir().join("HEAD")).is_ok_and(|head| head.starts_with("ref:")) {
            return Ok(());
        }
        let failed = |why: String| Trouble::of_git("the repository can't be used", &why);
        let mut empty = self.local(&self.git_dir());
        empty.args(DURABLE).args(["hash-object", "-t", "tree", "-w", "/dev/null"]);
        let tree = output(empty, LOCAL_LIMIT).await.map_err(failed)?;
        let mut make = self.local(&self.git_dir());
        make.envs(NOBODY).args(DURABLE).args(["commit-tree", "--no-gpg-sign", &tree, "-m", "Nothing"]);
        let commit = output(make, LOCAL_LIMIT).await.map_err(failed)?;
        let mut update = self.local(&self.git_dir());
        update.args(DURABLE).args(["update-ref", "--no-deref", "HEAD", &commit]);
        output(update, LOCAL_LIMIT).await.map(drop).map_err(failed)
    }

    /// Sets a ref to this commit.
    pub(crate) async fn set_ref(&self, name: &str, commit: &str) -> Result<(), Trouble> {
        self.update_ref(&["-m", "bloom-runtime", name, commit]).await
    }

    /// Removes a ref.
    pub(crate) async fn remove_ref(&self, name: &str) -> Result<(), Trouble> {
        self.update_ref(&["-d", name]).await
    }

    async fn update_ref(&self, words: &[&str]) -> Result<(), Trouble> {
        let _lock = self.lock.lock().await;
        let update = || {
            let mut update = self.local(&self.git_dir());
            update.args(DURABLE).arg("update-ref").args(words);
            async move { output(update, LOCAL_LIMIT).await.map(drop) }
        };
        self.despite_locks(update).await.map_err(|why| Trouble::of_git("the branch can't be updated", &why))
    }

    /// The commit of the ref with exactly this name, which begins with `refs/`; `None` if there is no such ref.
    pub(crate) async fn commit_of(&self, name: &str) -> Option<String> {
        let mut show = self.local(&self.git_dir());
        show.args(["show-ref", "--verify", "--hash", "--", name]);
        let id = output(show, LOCAL_LIMIT).await.ok()?;
        self.commit_with(&id).await
    }

    /// The commit with this id, or with an id that begins with it, or to which the tag with this id points; `None` if there is none.
    pub(crate) async fn commit_with(&self, id: &str) -> Option<String> {
        let mut parse = self.local(&self.git_dir());
        parse.args(["rev-parse", "--quiet", "--verify", "--end-of-options", &format!("{id}^{{commit}}")]);
        // Git never takes a full id for a name, but it may take a shorter one for a name.
        output(parse, LOCAL_LIMIT).await.ok().filter(|found| found.len() == id.len() || found.starts_with(&id.to_ascii_lowercase()))
    }

    /// Whether the first commit is the second one, or an ancestor of it.
    pub(crate) async fn is_ancestor(&self, first: &str, second: &str) -> bool {
        let mut ask = self.local(&self.git_dir());
        ask.args(["merge-base", "--is-ancestor", first, second]);
        output(ask, LOCAL_LIMIT).await.is_ok()
    }

    /// One of these refs that prevents a branch with this name: git stores branches like files in directories.
    async fn in_the_way(&self, refs: &str, branch: &str) -> Option<String> {
        for (end, _) in branch.match_indices('/') {
            let above = &branch[..end];
            if self.commit_of(&format!("{refs}/{above}")).await.is_some() {
                return Some(above.to_owned());
            }
        }
        let mut list = self.local(&self.git_dir());
        list.args(["for-each-ref", "--count=1", "--format=%(refname)", &format!("{refs}/{branch}/")]);
        let below = output(list, LOCAL_LIMIT).await.ok()?;
        below.strip_prefix(refs)?.strip_prefix('/').map(str::to_owned)
    }
}

impl Worktree {
    /// Whether runs may push a branch with this name to the project's repository, as of the last fetch.
    pub(crate) async fn check_branch_name(&self, branch: &str) -> Result<(), Trouble> {
        if self.repository.commit_of(&format!("{PUSHED}/{branch}")).await.is_some() {
            let name = format!("{LOCAL}/{branch}");
            let told = self.repository.told_refs(&["HEAD", &name]).await.unwrap_or_default();
            let goal = |name: &str| told.lines().find_map(|line| line.strip_prefix("ref: ")?.strip_suffix(name)?.strip_suffix('\t'));
            if goal("HEAD") == Some(&name) {
                return Err(self.on(branch).is_default());
            }
            if let Some(goal) = goal(&name) {
                return Err(self.on(branch).leads_to(goal));
            }
        }
        let Some(taken) = self.repository.in_the_way(PUSHED, branch).await else { return Ok(()) };
        let otherwise = format!("rename {taken} there, or submit the task without push");
        Err(self.taken(&format!("the project's repository can have no branch {branch}, because it has a branch {taken}"), &otherwise))
    }

    /// The error for a symbolic ref on the server: a push to it would move the branch to which it points.
    fn leads_to(&self, goal: &str) -> Trouble {
        let goal = goal.strip_prefix("refs/heads/").unwrap_or(goal);
        Trouble::State(format!(
            "the branch {0} of the project's repository leads to {goal}, so runs do not push to it: remove it there with git symbolic-ref --delete \
             {LOCAL}/{0}, or submit the task with another context",
            self.branch
        ))
    }

    pub(super) fn is_default(&self) -> Trouble {
        Trouble::State(format!(
            "the branch {} is the default branch of the project's repository, or checked out there, so runs do not push to it: let another branch be \
             that, or submit the task with another context",
            self.branch
        ))
    }

    /// Returns the worktree unchanged if its branch name is free in the project's repository on this machine.
    pub(super) async fn with_free_name(self) -> Result<Self, Trouble> {
        let Some(taken) = self.repository.in_the_way(LOCAL, &self.branch).await else { return Ok(self) };
        let why = format!("this context can have no branch {} on the worker, because a context has the branch {taken} there", self.branch);
        Err(self.taken(&why, "or submit the task with another context"))
    }

    fn taken(&self, why: &str, otherwise: &str) -> Trouble {
        Trouble::State(format!(
            "{why}, and git has no two of which one is like a directory of the other: give the branches of the project another prefix \
             (bloom-runtime project edit {} --branch-prefix …), {otherwise}",
            self.project
        ))
    }

    /// Pushes this commit as the branch, with the user's own credentials, if the branch on the server is still at `known`, on which the
    /// commit builds; `None` = the branch does not exist. Without this condition, a commit that somebody has taken back meanwhile would
    /// come back.
    pub(super) async fn push_once(&self, commit: &str, known: Option<&str>) -> Result<(), String> {
        // The files come first, so that nobody fetches a commit whose files are missing.
        self.repository.push_large_files(commit).await?;
        // A pattern, because git would take a plain name also for a tag of the server that is called `refs/heads/…`. Nothing else is below
        // this name.
        let (above, last) = self.branch.rsplit_once('/').unwrap_or_default();
        let from = format!("refs/push/{}", self.name());
        self.repository.set_ref(&format!("{from}/{last}"), commit).await.map_err(|trouble| trouble.to_string())?;
        let mut push = self.repository.remote();
        push.args(["push", "--quiet", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", "--no-signed"]);
        push.arg(format!("--force-with-lease=refs/heads/{}:{}", self.branch, known.unwrap_or_default())).arg("--");
        push.arg(&self.repository.url).arg(format!("{from}/*:refs/heads/{above}/*"));
        output(push, FETCH_LIMIT).await?;
        self.note_pushed(commit).await.map_err(|trouble| trouble.to_string())
    }
}
