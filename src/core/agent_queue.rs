//! Queues: the tasks of one agent, which can be paused, and limited in how many of them run at a time.

use std::fmt;

use super::Ms;

/// The name of all queues together. No agent has it, because no `agent_slug` is empty.
pub const ALL_QUEUES: &str = "";
/// The most queues that are paused or limited at a time.
pub const MAX_QUEUES: i64 = 1_000;
/// The highest limit of a queue.
pub const MAX_QUEUE_LIMIT: i64 = 10_000;

/// What was set for a queue. A queue for which nothing is set has no row; [`ALL_QUEUES`] always has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentQueue {
    /// The agent whose tasks are in the queue; [`ALL_QUEUES`] stands for all agents.
    pub agent_slug: String,
    /// Since when no leases of the queue are made.
    pub paused_at: Option<Ms>,
    /// The most active leases of the queue, if limited.
    pub max_concurrency: Option<i64>,
    /// The number of the row's last change; all queues are numbered together. Each change also gives its number to [`ALL_QUEUES`].
    pub revision: i64,
}

impl AgentQueue {
    /// A queue for which nothing is set: neither paused nor limited.
    pub fn new(agent_slug: impl Into<String>) -> Self {
        Self { agent_slug: agent_slug.into(), ..Self::default() }
    }

    /// Whether the queue is neither paused nor limited.
    pub fn is_unrestricted(&self) -> bool {
        self.paused_at.is_none() && self.max_concurrency.is_none()
    }

    /// Why no further lease of the queue is made while it has this many.
    pub fn closed(&self, active: i64) -> Option<Closed> {
        if self.paused_at.is_some() {
            return Some(if self.agent_slug == ALL_QUEUES { Closed::AllPaused } else { Closed::Paused(self.agent_slug.clone()) });
        }
        let limit = self.max_concurrency.filter(|limit| active >= *limit)?;
        Some(Closed::Full { agent_slug: self.agent_slug.clone(), limit })
    }
}

/// Why no lease of a queue is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// All queues together are paused.
    AllPaused,
    /// The queue of this agent is paused.
    Paused(String),
    /// The queue has as many active leases as it may have.
    Full {
        /// The agent whose queue it is.
        agent_slug: String,
        /// The most active leases of the queue.
        limit: i64,
    },
}

impl Closed {
    /// The queue that is closed; [`ALL_QUEUES`] if all are.
    pub fn agent_slug(&self) -> &str {
        match self {
            Self::AllPaused => ALL_QUEUES,
            Self::Paused(agent_slug) | Self::Full { agent_slug, .. } => agent_slug,
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllPaused => f.write_str("all queues are paused; `bloom-runtime queue resume` resumes them"),
            Self::Paused(agent) => {
                write!(f, "the queue of agent '{agent}' is paused; `bloom-runtime queue resume --agent {agent}` resumes it")
            }
            Self::Full { agent_slug: agent, limit } => write!(
                f,
                "agent '{agent}' has as many active leases as its queue's limit of {limit} allows; \
                 `bloom-runtime queue limit --agent {agent} N` changes the limit"
            ),
        }
    }
}
