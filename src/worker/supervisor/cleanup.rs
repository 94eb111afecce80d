//! Ends the remaining processes of a run. Usually there are none, because the supervisor has ended them all.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::machine::cgroup;
use crate::machine::process::{self, KILL_LIMIT, Leader, Marks};
use crate::run::run_dir::RunDir;

const POLL_EVERY: Duration = Duration::from_millis(20);

/// Ends the supervisor and all processes of a run. Returns false if some are still alive.
pub(crate) async fn end(dir: &RunDir, supervisor: Option<Leader>, lease: &str, grace: Duration) -> bool {
    let leaf = dir.cgroup();
    // Without its supervisor, a run gets no time to finish.
    if let Some(leaf) = leaf.as_deref().filter(|_| !supervisor.is_some_and(|leader| leader.is_alive())) {
        end_cgroup(leaf).await;
    }
    let leaders = dir.groups().into_iter().chain(supervisor).collect();
    let left = process::end(&Marks { leaders, lease: lease.to_owned() }, grace).await;
    if let Some(leaf) = &leaf {
        end_cgroup(leaf).await;
    }
    if !left.is_empty() {
        tracing::error!(lease, run = %dir, processes = ?left, "these processes of a run could not be ended");
    }
    left.is_empty()
}

/// Kills what is in the cgroup, and removes it.
async fn end_cgroup(leaf: &Path) {
    let began = Instant::now();
    while !cgroup::members(leaf).is_empty() && began.elapsed() < KILL_LIMIT {
        cgroup::kill(leaf);
        tokio::time::sleep(POLL_EVERY).await;
    }
    cgroup::remove(leaf);
}
