//! Filters that runs have set: git executes them for the files that `.gitattributes` names when the agent commits. They may strip or encrypt what
//! shall not be in a commit, so without one that does not work, nothing is committed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Worktree;
use super::confined::Confined;
use super::trouble::{NOT_COMMITTED, Trouble};

impl Worktree {
    /// Exists while what a run has changed can't be committed because of a filter.
    fn filter_mark(&self) -> PathBuf {
        self.own_git_dir().with_extension("filter")
    }

    /// Fails if the files still can't be committed because of a filter: the next run would be paid, and meet the same.
    pub(super) async fn check_filters(&self, confined: &mut Confined<'_>, head: &str, left_out: &BTreeSet<PathBuf>) -> Result<(), Trouble> {
        if !self.filter_mark().exists() {
            return Ok(());
        }
        confined.stage(head, left_out, Path::new("/dev/null")).await?;
        fs::remove_file(self.filter_mark()).map_err(|error| Trouble::of_disk("the worktree can't be prepared", &error))
    }
}

impl Confined<'_> {
    /// Why the files can't be committed: git's words, and which filter is the reason, if one is.
    pub(crate) fn not_staged(&self, why: &str) -> Trouble {
        let said = |name: &&String| why.contains(&format!("filter '{name}' failed"));
        let is_slow = why.starts_with("it took longer");
        match (Trouble::of_git(NOT_COMMITTED, why), self.filters.iter().find(said).or(self.filters.first().filter(|_| is_slow))) {
            (Trouble::Failed(text), Some(name)) => {
                // Without it, the next run fails in the same way.
                let _ = fs::write(self.tree.filter_mark(), "");
                let cause = format!("{text}. A run has set the filter {name}, which does not work");
                self.tree.state(&cause, &[&format!("config --remove-section filter.{name}")])
            }
            (trouble, _) => trouble,
        }
    }
}
