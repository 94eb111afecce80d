//! Queues: the tasks of one agent. A queue can be paused, and the number of its tasks that run at a time can be limited.

use std::fmt;

use super::Ms;

/// The name of all queues together. No agent has this name, because no `agent_slug` is empty.
pub const ALL_QUEUES: &str = "";
/// The maximum number of queues that are paused or limited at a time.
pub const MAX_QUEUES: i64 = 1_000;
/// The highest limit of a queue.
pub const MAX_QUEUE_LIMIT: i64 = 10_000;

/// The settings of a queue. A queue without settings has no row, but [`ALL_QUEUES`] always has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentQueue {
    /// The agent whose tasks are in the queue; [`ALL_QUEUES`] stands for all agents.
    pub agent_slug: String,
    /// When the queue was paused, so that it grants no leases; `None` if it is not paused.
    pub paused_at: Option<Ms>,
    /// The maximum number of active leases of the queue; `None` = no limit.
    pub max_concurrency: Option<i64>,
    /// The number of the row's last change. All queues share one numbering, and each change also sets this number on [`ALL_QUEUES`].
    pub revision: i64,
}

impl AgentQueue {
    /// A queue without settings: neither paused nor limited.
    pub fn new(agent_slug: impl Into<String>) -> Self {
        Self { agent_slug: agent_slug.into(), ..Self::default() }
    }

    /// Whether the queue is neither paused nor limited.
    pub fn is_unrestricted(&self) -> bool {
        self.paused_at.is_none() && self.max_concurrency.is_none()
    }

    /// Why the queue grants no further lease while it has this many active ones; `None` if it does.
    pub fn closed(&self, active: i64) -> Option<Closed> {
        if self.paused_at.is_some() {
            return Some(if self.agent_slug == ALL_QUEUES { Closed::AllPaused } else { Closed::Paused(self.agent_slug.clone()) });
        }
        let limit = self.max_concurrency.filter(|limit| active >= *limit)?;
        Some(Closed::Full { agent_slug: self.agent_slug.clone(), limit })
    }
}

/// Why a queue grants no lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// All queues together are paused.
    AllPaused,
    /// The queue of this agent is paused.
    Paused(String),
    /// The queue has reached its limit of active leases.
    Full {
        /// The agent whose queue it is.
        agent_slug: String,
        /// The maximum number of active leases of the queue.
        limit: i64,
    },
}

impl Closed {
    /// The queue that is closed, or [`ALL_QUEUES`] if all are.
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
