//! The queues of a working set: their settings, and whether their tasks may be leased.

use super::{Halt, WorkingSet, need};
use crate::agent_queue::{ALL_QUEUES, AgentQueue, Closed};

impl WorkingSet {
    /// The settings of the queue; `None` if it has none.
    pub fn queue(&self, agent_slug: &str) -> Result<Option<&AgentQueue>, Halt> {
        let queue = self.loaded.queues.get(agent_slug).map(Option::as_ref);
        queue.ok_or_else(|| need(|keys| keys.places = true))
    }

    /// Why no task of this queue may be leased; `None` if one may.
    pub fn closed(&self, agent_slug: &str) -> Result<Option<Closed>, Halt> {
        if let Some(closed) = self.queue(ALL_QUEUES)?.and_then(|all| all.closed(0)) {
            return Ok(Some(closed));
        }
        let Some(queue) = self.queue(agent_slug)? else { return Ok(None) };
        if self.loaded.locked_queues.contains(agent_slug) {
            return Err(Halt::Locked);
        }
        // The active leases were counted if the queue has a limit.
        Ok(queue.closed(self.loaded.active_leases.get(agent_slug).copied().unwrap_or_default()))
    }

    /// Writes a queue with the next revision, which [`ALL_QUEUES`] gets too. The row of a queue without settings is removed.
    pub fn put_queue(&mut self, mut queue: AgentQueue) -> AgentQueue {
        let mut all = self.loaded.queues.get(ALL_QUEUES).cloned().flatten().unwrap_or_default();
        queue.revision = all.revision + 1;
        all.revision = queue.revision;
        self.dirty.queues.extend([queue.agent_slug.clone(), ALL_QUEUES.to_owned()]);
        if queue.agent_slug == ALL_QUEUES {
            self.loaded.queues.insert(ALL_QUEUES.to_owned(), Some(queue.clone()));
            return queue;
        }
        self.loaded.queues.insert(ALL_QUEUES.to_owned(), Some(all));
        let after = Some(queue.clone()).filter(|queue| !queue.is_unrestricted());
        let had_row = self.loaded.queues.get(&queue.agent_slug).is_some_and(Option::is_some);
        self.loaded.queue_rows += i64::from(after.is_some()) - i64::from(had_row);
        self.loaded.queues.insert(queue.agent_slug.clone(), after);
        queue
    }
}
