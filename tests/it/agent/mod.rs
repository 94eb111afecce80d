//! The worker agent as a process: what it runs, how runs end, and what remains when a process dies.

mod accounts;
mod asleep;
mod background;
mod branch_prefix;
mod claude;
mod claude_settings;
mod contained;
mod contained_without_agent;
mod context_removal;
mod context_reset;
mod costs;
mod crash;
mod dev;
mod disk_limit;
mod egress;
mod ending;
mod endings;
mod enrollment;
mod events;
mod fallback_sessions;
mod files;
mod fleet;
mod fleet_faults;
mod instances;
mod key_renewal;
mod large_files;
mod odd_files;
mod own_branches;
mod push_limits;
mod push_server;
mod questions;
mod ref_names;
mod repositories;
mod running;
mod sandbox;
mod sandbox_hardening;
mod sandbox_settings;
mod session_moves;
mod sessions_replaced;
mod set_aside;
mod shared_accounts;
mod stale_orders;
mod stopping;
mod worktree_confinement;
mod worktree_removal;
mod worktrees;

use std::path::{Path, PathBuf};

use crate::support::*;

/// A file that a run waits for until the test creates it.
struct Latch(PathBuf);

impl Latch {
    fn new() -> Self {
        Self(janitor::new_path("latch"))
    }

    /// A shell command that waits for the latch, for at most a minute.
    fn wait(&self) -> String {
        format!("for i in $(seq 1200); do [ -e {} ] && break; sleep 0.05; done", self.0.display())
    }

    fn open(&self) {
        std::fs::write(&self.0, "").expect("a file");
    }
}

/// A file to which each run adds a line when it starts.
struct Tally(PathBuf);

impl Tally {
    fn new() -> Self {
        Self(janitor::new_path("tally"))
    }

    fn mark(&self) -> String {
        format!("echo run >> {}", self.0.display())
    }

    fn count(&self) -> usize {
        std::fs::read_to_string(&self.0).map_or(0, |text| text.lines().count())
    }

    async fn reaches(&self, count: usize) {
        eventually("a run has started", || async { (self.count() >= count).then_some(()) }).await;
    }
}

/// The data of a task's events of this kind, in order.
async fn told(task: &Task<'_>, kind: &str) -> Vec<Value> {
    let events = task.api.get(&task.path("/events")).await.ok();
    let events = events.as_array().expect("events").iter().filter(|event| event["kind"] == json!(kind));
    events.map(|event| event["data"].clone()).collect()
}

/// Waits until the run has said something.
async fn has_begun(task: &Task<'_>) {
    eventually("the run says something", || async { (!told(task, "text").await.is_empty()).then_some(()) }).await;
}

async fn result(task: &Task<'_>) -> Value {
    task.api.get(&task.path("/result")).await.ok()
}

/// How many successful results were stored.
async fn answers(task: &Task<'_>) -> usize {
    let artifacts = task.api.get(&format!("artifacts?task_id={}", task.id)).await.ok();
    artifacts.as_array().expect("artifacts").iter().filter(|artifact| artifact["content"].is_string()).count()
}
