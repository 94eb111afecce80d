//! Whose the branches of the project's repository are. A name tells nothing: people have branches, too, that are called like that of a context.
//!
//! A branch that was fetched is the context's own if its name was made of the context's id with a digest, if this agent has pushed it, if it has
//! no commits yet, or if one of its commits says so: the agent's commits name their context in a trailer.

use tokio::sync::OnceCell;

use super::super::command::output;
use super::repository::{LOCAL_LIMIT, Repository, names};
use super::trouble::Trouble;
use super::{PUSHED, Worktree, has_digest};

/// The trailer of a commit's message that names the context.
const TRAILER: &str = "Bloom-Context";

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
    pub fn trailer(&self) -> String {
        format!("{TRAILER}: {}", self.trailer_value())
    }

    /// Whether one of these commits has the trailer of the context.
    async fn names_context(&self, revisions: &[&str]) -> Result<bool, Trouble> {
        let (grep, form) = (format!("--grep={}", self.trailer()), format!("--format=%(trailers:key={TRAILER},valueonly)"));
        let told = self.repository.told(&["log", "--fixed-strings", &grep, &form], revisions).await?;
        Ok(told.lines().any(|value| value.trim() == self.trailer_value().trim()))
    }

    /// Whether other workers would take a branch that ends with this commit for that of the context. Commits that a run has made by itself
    /// do not say whose they are.
    pub(super) async fn is_marked(&self, commit: &str) -> Result<bool, Trouble> {
        if has_digest(&self.branch) {
            return Ok(true);
        }
        let (but, others) = (format!("--exclude={}", self.pushed_ref()), format!("--glob={PUSHED}"));
        self.names_context(&[commit, "--not", &but, &others]).await
    }

    /// The ref that keeps what this agent has pushed last as the branch.
    fn record_ref(&self) -> String {
        format!("refs/pushed/{}/{}", self.name(), self.branch.replace('/', "%"))
    }

    pub(super) async fn note_pushed(&self, commit: &str) -> Result<(), Trouble> {
        self.repository.set_ref(&self.record_ref(), commit).await
    }

    /// Whether what was fetched of the branch is of this context. `bases` are commits that its branch may begin with.
    async fn is_own(&self, bases: impl AsyncFnOnce() -> Result<Vec<String>, Trouble>) -> Result<bool, Trouble> {
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
        let bases = bases().await?;
        let revisions: Vec<&str> = [tip.as_str(), "--not"].into_iter().chain(bases.iter().map(String::as_str)).collect();
        let is_empty = repository.told(&["rev-list", "--max-count=1"], &revisions).await?.is_empty();
        Ok(is_empty || self.names_context(&revisions).await?)
    }

    /// The names that the project gives and gave the branch, newest first.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        [&self.branch].into_iter().chain(&self.former_branches)
    }

    /// The commits of the default branch and of what the task wants, but not of a branch of these names.
    async fn bases(&self, wanted: Option<&str>) -> Result<Vec<String>, Trouble> {
        let is_another = |wanted: &&str| !self.names().any(|own| names(wanted).contains(&format!("{PUSHED}/{own}")));
        let mut bases = Vec::new();
        for start in [None].into_iter().chain(wanted.filter(is_another).map(Some)) {
            match self.repository.wanted_commit(start).await {
                Ok(commit) => bases.push(commit),
                // The branch is there, and need not begin with that.
                Err(Trouble::RefMissing(_) | Trouble::NoDefault(_)) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(bases)
    }

    /// The tree with the branch that it has from now on: a branch of the context that was pushed keeps its name, and others get the project's
    /// prefix.
    pub(super) async fn settled(&self, tree: &Self, wanted: Option<&str>) -> Result<Self, Trouble> {
        let bases = OnceCell::new();
        for name in [&tree.branch].into_iter().chain(self.names()) {
            let named = tree.on(name);
            if named.is_own(async || bases.get_or_try_init(|| self.bases(wanted)).await.cloned()).await? {
                return named.with_free_name().await;
            }
        }
        let named = tree.on(&self.branch);
        if self.repository.commit_of(&named.pushed_ref()).await.is_none() {
            return named.with_free_name().await;
        }
        Err(Trouble::State(format!(
            "the branch {} of the project's repository was not made by runs of this context: submit the task with another context, or give the \
             branches of the project another prefix (bloom-runtime project edit {} --branch-prefix …)",
            self.branch, self.project
        )))
    }
}
