//! Queues: pause, resume and limit.

use crate::agent_queue::{ALL_QUEUES, AgentQueue, MAX_QUEUES};
use crate::arguments::QueueChange;
use crate::audit::{Action, Actor, EntityType};
use crate::operation::Operation;
use crate::rejection::Rejection;
use crate::row_keys::RowKeys;
use crate::working_set::{Halt, WorkingSet, need};

/// The name of all queues together in the audit trail.
const ALL_IN_AUDIT: &str = "*";

/// Pauses, resumes or limits the queue of an agent. [`ALL_QUEUES`] pauses and resumes all of them. Active leases continue.
#[derive(Clone, Debug)]
pub struct ChangeQueue {
    /// The agent whose queue is changed, or [`ALL_QUEUES`].
    pub agent_slug: String,
    /// The change.
    pub change: QueueChange,
}

impl Operation for ChangeQueue {
    type Reply = AgentQueue;

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.queues.insert(self.agent_slug.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<AgentQueue, Halt> {
        let Self { agent_slug, change } = self;
        let known = set.loaded.queues.get(agent_slug).ok_or_else(|| need(|keys| keys.queues.insert(agent_slug.clone())))?;
        let before = known.clone().unwrap_or_else(|| AgentQueue::new(agent_slug.clone()));
        let mut queue = before.clone();
        let (action, detail) = match change {
            QueueChange::Pause => {
                queue.paused_at = queue.paused_at.or(Some(set.now()));
                (Action::QueuePaused, String::new())
            }
            QueueChange::Resume => {
                queue.paused_at = None;
                (Action::QueueResumed, String::new())
            }
            QueueChange::Limit(limit) => {
                queue.max_concurrency = *limit;
                (Action::QueueLimited, limit.map_or_else(|| "no limit".to_owned(), |limit| format!("to {limit}")))
            }
        };
        if queue == before {
            return Ok(queue);
        }
        if known.is_none() && set.loaded.queue_rows >= MAX_QUEUES {
            return Err(Rejection::TooManyQueues.into());
        }
        let name = if agent_slug == ALL_QUEUES { ALL_IN_AUDIT } else { agent_slug };
        set.audit(action, EntityType::Queue, name, &Actor::Admin, detail);
        Ok(set.put_queue(queue))
    }
}
