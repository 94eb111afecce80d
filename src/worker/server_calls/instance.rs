//! What the agent does when another agent has its name: it takes no more tasks, but completes its runs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use crate::Agent;
use crate::membridge::Membridge;
use bloom_client as client;
use bloom_core::command::OTHER_AGENT;

impl Agent {
    /// Records a refusal if it says that another agent has this one's name now, and not only that it had the name before.
    pub(crate) fn note_if_replaced(&self, error: &client::Error) {
        if self.membridge.as_ref().is_some_and(Membridge::is_new) {
            return;
        }
        if error.status() == Some(409) && error.to_string().starts_with(OTHER_AGENT) {
            self.replaced.send_if_modified(|why| why.is_none().then(|| *why = Some(error.to_string())).is_some());
        }
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.borrow().is_some()
    }

    /// Waits until another agent has this one's name. Returns the server's text about it.
    pub(crate) async fn until_replaced(&self) -> String {
        let mut replaced = self.replaced.subscribe();
        let why = replaced.wait_for(Option::is_some).await;
        why.ok().and_then(|why| why.clone()).unwrap_or_default()
    }

    /// Waits until the runs have ended. Their leases are still this agent's, so nobody else runs their tasks.
    pub(crate) async fn let_runs_end(&self, why: &str, shutdown: &CancellationToken) {
        tracing::error!(runs = self.lock().len(), why, "this agent takes no more tasks, and stops when its runs have ended");
        self.draining.store(true, Ordering::Relaxed);
        self.state_changed.notify_waiters();
        tokio::select! {
            () = self.until_runs(BTreeMap::is_empty) => {}
            () = shutdown.cancelled() => {}
        }
    }
}
