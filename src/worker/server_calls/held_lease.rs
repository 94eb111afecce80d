//! What the agent stores in memory about a lease that it holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::run::task::Task;
use crate::run::verdict::Stop;
use bloom_core::task::Session;

/// A lease that this agent holds.
pub(crate) struct HeldLease {
    pub task: Uuid,
    /// The context in which its run works and converses.
    pub context: Option<String>,
    /// Whether its run and the other runs of its context wait for one another.
    pub follows: bool,
    pub ttl: Duration,
    /// No other worker can have the task before this time, on the [`boot_clock`](crate::machine::boot_clock). The TTL counts from when the
    /// last renewal was sent.
    pub valid_until: u64,
    pub stop: watch::Sender<Option<Stop>>,
    /// Notified when a person has answered a question of its run.
    pub answered: Arc<Notify>,
    /// Whether the server has renewed the lease for this process of the agent.
    pub is_renewed: bool,
    /// Whether its process may be started, or was started.
    pub has_begun: bool,
    /// The run has ended, and only its verdict must still be delivered.
    pub is_over: bool,
    /// The server refuses the agent's key, also for the verdict.
    pub is_key_refused: bool,
}

impl HeldLease {
    /// `in_worktree`: the context has a worktree.
    pub(crate) fn new(task: &Task, ttl: Duration, valid_until: u64, in_worktree: bool, stop: Option<Stop>) -> Self {
        // Two runs in one worktree would commit each other's changes, and write while the agent's git reads.
        let follows = task.session == Session::Context || task.project.is_some() || in_worktree;
        Self {
            context: Some(task.context_id.clone()),
            follows,
            stop: watch::Sender::new(stop),
            is_over: false,
            ..Self::over(task.id, ttl, valid_until)
        }
    }

    /// A lease for which only a verdict is delivered.
    pub(crate) fn over(task: Uuid, ttl: Duration, valid_until: u64) -> Self {
        let stop = watch::Sender::new(None);
        let answered = Arc::default();
        Self {
            task,
            context: None,
            follows: false,
            ttl,
            valid_until,
            stop,
            answered,
            is_renewed: false,
            has_begun: false,
            is_over: true,
            is_key_refused: false,
        }
    }

    /// Whether a stopping agent need not wait for it: its run has ended, and the server takes no verdict from this key. The verdict is on the
    /// disk, and the next agent process delivers it.
    pub(crate) fn is_for_next_start(&self) -> bool {
        self.is_over && self.is_key_refused
    }

    /// Stops the run. If it is stopped more than once, the first reason counts.
    pub(crate) fn end(&self, reason: Stop) {
        self.stop.send_if_modified(|stop| stop.is_none().then(|| *stop = Some(reason)).is_some());
    }
}
