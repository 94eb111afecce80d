//! Filters that runs have configured. Git executes them on commits of the agent, for the files that `.gitattributes` names. Filters may
//! remove or encrypt what must not be in a commit, so if one does not work, nothing is committed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Worktree;
use super::confined::Confined;
use super::trouble::{NOT_COMMITTED, Trouble};

impl Worktree {
    /// This file exists while the changes of a run can't be committed because of a filter.
    fn filter_mark(&self) -> PathBuf {
        self.own_git_dir().with_extension("filter")
    }

    /// Fails if the files still can't be committed because of a filter: otherwise the next run would cost money and fail in the same way.
    pub(super) async fn check_filters(&self, confined: &mut Confined<'_>, head: &str, left_out: &BTreeSet<PathBuf>) -> Result<(), Trouble> {
        if !self.filter_mark().exists() {
            return Ok(());
        }
        confined.stage(head, left_out, Path::new("/dev/null")).await?;
        fs::remove_file(self.filter_mark()).map_err(|error| Trouble::of_disk("the worktree can't be prepared", &error))
    }
}

impl Confined<'_> {
    /// Why the files can't be committed: git's message, and the filter that is the reason, if one is.
    pub(crate) fn not_staged(&self, why: &str) -> Trouble {
        let said = |name: &&String| why.contains(&format!("filter '{name}' failed"));
        let is_slow = why.starts_with("it took longer");
        match (Trouble::of_git(NOT_COMMITTED, why), self.filters.iter().find(said).or(self.filters.first().filter(|_| is_slow))) {
            (Trouble::Failed(text), Some(name)) => {
                // If the mark can't be written, the next run fails in the same way.
                let _ = fs::write(self.tree.filter_mark(), "");
                let cause = format!("{text}. A run has set the filter {name}, which does not work");
                self.tree.state(&cause, &[&format!("config --remove-section filter.{name}")])
            }
            (trouble, _) => trouble,
        }
    }
}
