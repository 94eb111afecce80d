//! Commits that contexts have not pushed. They take up space in the project's repository on this machine, for all contexts.

use std::fs;

use super::LOCAL;
use super::repository::{LOCAL_LIMIT, Repository};
use super::trouble::Trouble;
use crate::machine::command::output;

/// The number of branches that are measured (those with the newest commits), and how many of them are listed.
const MEASURED: &str = "200";
const SHOWN: usize = 5;

impl Repository {
    /// Adds to an error about the repository's size which contexts have work that exists only on this machine, and takes part of the space.
    pub(super) async fn with_unpushed(&self, trouble: Trouble) -> Trouble {
        let Trouble::Size(why) = trouble else { return trouble };
        let mut list = self.local(&self.git_dir());
        list.args(["for-each-ref", "--sort=-committerdate", "--count", MEASURED, "--format=%(objectname) %(refname:lstrip=2)", LOCAL]);
        let branches = output(list, LOCAL_LIMIT).await.unwrap_or_default();
        let mut unpushed = Vec::new();
        for (tip, branch) in branches.lines().filter_map(|line| line.split_once(' ')) {
            unpushed.push((self.unpushed_bytes(tip).await, branch));
        }
        unpushed.retain(|(bytes, _)| *bytes > 0);
        unpushed.sort_unstable_by(|one, other| other.cmp(one));
        let named = unpushed.iter().take(SHOWN).map(|(bytes, branch)| format!("{branch} ({} MiB)", bytes.div_ceil(1 << 20)));
        let named = named.collect::<Vec<_>>().join(", ");
        Trouble::Size(if named.is_empty() {
            why
        } else {
            format!(
                "{why}; part of it is what contexts have committed and not pushed, largest first: {named}: raise --max-clone-mib of the agent, or \
                 remove branches that nobody needs from {} on the worker, whose files in git-lfs go a day later",
                self.git_dir().display()
            )
        })
    }

    /// The size of the branch's objects and large files that only this machine has, in bytes.
    async fn unpushed_bytes(&self, tip: &str) -> u64 {
        let mut measure = self.local(&self.git_dir());
        measure.args(["rev-list", "--objects", "--disk-usage", tip, "--not", "--remotes"]);
        let of_commits: u64 = output(measure, LOCAL_LIMIT).await.ok().and_then(|bytes| bytes.parse().ok()).unwrap_or_default();
        let pointers = self.pointers(&[tip, "--not", "--remotes"]).await.unwrap_or_default();
        let of_files = pointers.iter().filter_map(|object| fs::metadata(self.large_file(object)).ok()).map(|about| about.len());
        of_commits.saturating_add(of_files.sum())
    }
}
