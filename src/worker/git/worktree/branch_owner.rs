//! Whose the branches of the project's repository are. A name tells nothing: people have branches, too, that are called like that of a context.
//!
//! A branch that was fetched is the context's own if its name was made of the context's id with a digest, if this agent has pushed it, if it is
//! where the task would begin anyway, or if one of its commits says so: the agent's commits name their context in a trailer.

use tokio::sync::OnceCell;

use super::repository::{LOCAL_LIMIT, Repository, is_default, names};
use super::trouble::Trouble;
use super::{PUSHED, Worktree, has_digest};
use crate::machine::command::output;

/// The trailer of a commit's message that names the context.
const TRAILER: &str = "Bloom-Context";
/// Commits that seem to have the trailer, of which it is looked whether they have.
const MOST_NAMING: &str = "20";

/// Where a branch of a context may begin.
#[derive(Clone, Debug)]
struct Starts {
    /// The default branch of the project's repository, or the commit that it has in place of one.
    default: Option<String>,
    commits: Vec<String>,
}

impl Starts {
    /// Whether a branch that begins at one of them has this commit.
    async fn have(&self, repository: &Repository, commit: &str) -> bool {
        for start in &self.commits {
            if repository.is_ancestor(commit, start).await {
                return true;
            }
        }
        false
    }
}

/// A basic regular expression that matches this text only.
fn literally(text: &str) -> String {
    text.chars().flat_map(|c| r"\.[*^$".contains(c).then_some('\\').into_iter().chain([c])).collect()
}

impl Repository {
    /// What a git command tells of these revisions, as `git rev-list` takes them.
    async fn told(&self, command: &[&str], revisions: &[&str]) -> Result<String, Trouble> {
        let mut ask = self.local(&self.git_dir());
        ask.args(command).args(revisions).arg("--");
        output(ask, LOCAL_LIMIT).await.map_err(|why| Trouble::of_git("the commits of a branch can't be listed", &why))
    }
}

impl Worktree {
    fn trailer_value(&self) -> String {
        self.context_id.replace(char::is_control, " ")
    }

    /// The last line of the messages of the agent's commits.
    pub(crate) fn trailer(&self) -> String {
        format!("{TRAILER}: {}", self.trailer_value())
    }

    /// Whether one of these commits has the trailer of the context. What was merged counts for the branch that it came from.
    async fn names_context(&self, revisions: &[&str]) -> Result<bool, Trouble> {
        let line = format!("--grep=^{TRAILER} *: *{}[[:space:]]*$", literally(self.trailer_value().trim()));
        let list = ["log", "--first-parent", "--regexp-ignore-case", &line, "--max-count", MOST_NAMING, "--format=%H"];
        let found = self.repository.told(&list, revisions).await?;
        for commit in found.lines() {
            let form = format!("--format=%(trailers:key={TRAILER},valueonly,unfold)");
            // One that says more than is read names no context.
            let named = self.repository.told(&["log", "--no-walk", &form], &[commit]).await.unwrap_or_default();
            if named.lines().any(|value| value.trim() == self.trailer_value().trim()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether other workers would take a branch that ends with this commit for that of the context. Commits that a run has made by itself
    /// do not say whose they are.
    pub(super) async fn is_marked(&self, commit: &str) -> Result<bool, Trouble> {
        if has_digest(&self.branch) {
            return Ok(true);
        }
        self.names_context_alone(commit).await
    }

    /// Whether one of the commits that no other branch of the server has names the context.
    async fn names_context_alone(&self, commit: &str) -> Result<bool, Trouble> {
        let (but, others) = (format!("--exclude={}", self.pushed_ref()), format!("--glob={PUSHED}"));
        self.names_context(&[commit, "--not", &but, &others]).await
    }

    /// Whether what was fetched of the branch is of this context.
    async fn is_own(&self, starts: impl AsyncFnOnce() -> Result<Starts, Trouble>) -> Result<bool, Trouble> {
        let repository = &self.repository;
        let Some(tip) = repository.commit_of(&self.pushed_ref()).await else { return Ok(false) };
        if has_digest(&self.branch) {
            return Ok(true);
        }
        if let Some(pushed) = repository.commit_of(&self.record_ref()).await
            && (repository.is_ancestor(&tip, &pushed).await || repository.is_ancestor(&pushed, &tip).await)
        {
            return Ok(true);
        }
        let starts = starts().await?;
        if starts.default.as_ref() == Some(&self.branch_ref()) {
            return Ok(false);
        }
        // A run may have pushed what it committed by itself.
        if let Some(here) = repository.commit_of(&self.branch_ref()).await
            && repository.is_ancestor(&tip, &here).await
            && !starts.have(repository, &tip).await
        {
            return Ok(true);
        }
        if !starts.commits.is_empty() && starts.commits.iter().all(|commit| *commit == tip) {
            return Ok(true);
        }
        let is_named = if starts.commits.is_empty() {
            // Without a commit that the branch began with, those of no other branch are looked at: its whole history would count.
            self.names_context_alone(&tip).await?
        } else {
            self.names_context(&[&[tip.as_str(), "--not"], &starts.commits.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat())
                .await?
        };
        // The default branch may have all commits by now.
        Ok(is_named || self.names_context(&["--no-walk", &tip]).await?)
    }

    /// Fails if the branch of the server is not of this context.
    pub(super) async fn check_own(&self) -> Result<(), Trouble> {
        if self.is_own(|| self.starts(None)).await? { Ok(()) } else { Err(self.is_another().await) }
    }

    /// The names that the project gives and gave the branch, newest first.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        [&self.branch].into_iter().chain(&self.former_branches)
    }

    /// Where a branch of the context may begin: at the default branch, and at what the task wants unless that is a branch of these names.
    async fn starts(&self, wanted: Option<&str>) -> Result<Starts, Trouble> {
        let default = match self.repository.default_ref().await {
            Ok(default) => Some(default),
            // The branch is there, and need not begin with that.
            Err(Trouble::NoDefault(_)) => None,
            Err(trouble) => return Err(trouble),
        };
        let is_another = |wanted: &&str| !is_default(wanted) && !self.names().any(|own| names(wanted).contains(&format!("{PUSHED}/{own}")));
        let mut commits = Vec::new();
        for start in default.as_deref().into_iter().chain(wanted.filter(is_another)) {
            match self.repository.wanted_commit(Some(start)).await {
                Ok(commit) => commits.push(commit),
                Err(Trouble::RefMissing(_)) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(Starts { default, commits })
    }

    /// The tree with the branch that it has from now on: a branch of the context that was pushed keeps its name, and others get the project's
    /// prefix.
    pub(super) async fn settled(&self, tree: &Self, wanted: Option<&str>) -> Result<Self, Trouble> {
        self.forget_removed().await?;
        let starts = OnceCell::new();
        for name in [&tree.branch].into_iter().chain(self.names()) {
            let named = tree.on(name);
            if named.is_own(async || starts.get_or_try_init(|| self.starts(wanted)).await.cloned()).await? {
                return named.with_free_name().await;
            }
        }
        let named = tree.on(&self.branch);
        if self.repository.commit_of(&named.pushed_ref()).await.is_none() {
            return named.with_free_name().await;
        }
        if starts.get().is_some_and(|starts| starts.default.as_ref() == Some(&named.branch_ref())) {
            return Err(named.is_default());
        }
        Err(self.is_another().await)
    }

    async fn is_another(&self) -> Trouble {
        let why = if self.repository.commit_of(&self.record_ref()).await.is_some() {
            // It may be the same, which a person has rewritten, or one that a person has made anew.
            format!("may be another one now: this worker has pushed it, but no commit of it has the line {} any more", self.trailer())
        } else {
            "was not made by runs of this context".to_owned()
        };
        Trouble::State(format!(
            "the branch {} of the project's repository {why}: submit the task with another context, or give the \
             branches of the project another prefix (bloom-runtime project edit {} --branch-prefix …). If the branch is for this context, add a \
             commit to it whose message ends with the line {}: git commit --allow-empty -m 'For the context' -m '{}'",
            self.branch,
            self.project,
            self.trailer(),
            self.trailer().replace('\'', r"'\''")
        ))
    }
}
