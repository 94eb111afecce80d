//! Decides which context a branch of the project's repository belongs to. The name does not tell, because people may have branches with the
//! name of a context's branch.
//!
//! A fetched branch belongs to the context if its name was made from the context's id with a digest, if this agent has pushed it, if it is
//! at the commit where the task would begin anyway, or if one of its commits names the context: the agent's commits do so in a trailer.

use tokio::sync::OnceCell;

use super::repository::{LOCAL_LIMIT, Repository, is_default, names};
use super::trouble::Trouble;
use super::{PUSHED, Worktree, has_digest};
use crate::machine::command::output;

/// The trailer of a commit's message that names the context.
const TRAILER: &str = "Bloom-Context";
/// The maximum number of commits that seem to have the trailer and are examined closely.
const MOST_NAMING: &str = "20";

/// The commits at which a branch of a context may begin.
#[derive(Clone, Debug)]
struct Starts {
    /// The default branch of the project's repository, or the commit that HEAD has instead of a branch.
    default: Option<String>,
    commits: Vec<String>,
}

impl Starts {
    /// Whether a branch that begins at one of these commits has the given commit.
    async fn have(&self, repository: &Repository, commit: &str) -> bool {
        for start in &self.commits {
            if repository.is_ancestor(commit, start).await {
                return true;
            }
        }
        false
    }
}

/// A basic regular expression that matches only this text.
fn literally(text: &str) -> String {
    text.chars().flat_map(|c| r"\.[*^$".contains(c).then_some('\\').into_iter().chain([c])).collect()
}

impl Repository {
    /// The output of a git command for these revisions, which are arguments of `git rev-list`.
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

    /// The last line in the messages of the agent's commits.
    pub(crate) fn trailer(&self) -> String {
        format!("{TRAILER}: {}", self.trailer_value())
    }

    /// Whether one of these commits has the trailer of the context. Merged commits count for the branch that they came from.
    async fn names_context(&self, revisions: &[&str]) -> Result<bool, Trouble> {
        let line = format!("--grep=^{TRAILER} *: *{}[[:space:]]*$", literally(self.trailer_value().trim()));
        let list = ["log", "--first-parent", "--regexp-ignore-case", &line, "--max-count", MOST_NAMING, "--format=%H"];
        let found = self.repository.told(&list, revisions).await?;
        for commit in found.lines() {
            let form = format!("--format=%(trailers:key={TRAILER},valueonly,unfold)");
            // A commit whose output is longer than the limit names no context.
            let named = self.repository.told(&["log", "--no-walk", &form], &[commit]).await.unwrap_or_default();
            if named.lines().any(|value| value.trim() == self.trailer_value().trim()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether other workers would recognize a branch that ends with this commit as a branch of the context. Commits that a run has made
    /// itself do not name their context.
    pub(super) async fn is_marked(&self, commit: &str) -> Result<bool, Trouble> {
        if has_digest(&self.branch) {
            return Ok(true);
        }
        self.names_context_alone(commit).await
    }

    /// Whether the context is named by a commit that no other branch of the server has.
    async fn names_context_alone(&self, commit: &str) -> Result<bool, Trouble> {
        let (but, others) = (format!("--exclude={}", self.pushed_ref()), format!("--glob={PUSHED}"));
        self.names_context(&[commit, "--not", &but, &others]).await
    }

    /// Whether the fetched branch belongs to this context.
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
        // The run may have pushed commits that it made itself.
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
            // The branch's start is unknown. Only commits that are on no other branch are searched, because otherwise its whole history
            // would count.
            self.names_context_alone(&tip).await?
        } else {
            self.names_context(&[&[tip.as_str(), "--not"], &starts.commits.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat())
                .await?
        };
        // By now the default branch may have all of its commits.
        Ok(is_named || self.names_context(&["--no-walk", &tip]).await?)
    }

    /// Fails if the branch on the server does not belong to this context.
    pub(super) async fn check_own(&self) -> Result<(), Trouble> {
        if self.is_own(|| self.starts(None)).await? { Ok(()) } else { Err(self.is_another().await) }
    }

    /// The current and former names that the project gives the branch, newest first.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        [&self.branch].into_iter().chain(&self.former_branches)
    }

    /// The commits at which a branch of the context may begin: the default branch, and the ref that the task wants unless that is the
    /// branch itself.
    async fn starts(&self, wanted: Option<&str>) -> Result<Starts, Trouble> {
        let default = match self.repository.default_ref().await {
            Ok(default) => Some(default),
            // The context's branch exists, and need not begin at the default branch.
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

    /// The worktree with the branch name that it has from now on. A branch of the context that was already pushed keeps its name; others
    /// get the project's prefix.
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
            // A person may have rewritten the branch, or created a new one with its name.
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
