//! How a lease was made, and what that implies.

use super::words::words;

words! {
    /// How a lease was made.
    Origin {
        /// By a lease call; the caller runs the task or has it run.
        Call = "call",
        /// By a claim of the worker.
        Claim = "claim",
        /// By a dispatch call, which pushes the task to the worker's agent.
        Dispatch = "dispatch",
        /// By the leader, which pushes the task to the worker's agent.
        Push = "push",
    }
}

impl Origin {
    /// Whether the worker got the task together with the lease, by a claim or a push. The run then starts with the lease, and a lease
    /// without heartbeats may never have arrived.
    pub fn is_delivered(self) -> bool {
        self != Self::Call
    }

    /// Whether the system chose when to run the task. If so, at most one task of a context runs at a time. Other calls are not restricted.
    pub fn is_in_order(self) -> bool {
        matches!(self, Self::Claim | Self::Push)
    }

    /// Whether the server sends the task to the worker's agent, which therefore needs a URL.
    pub fn is_pushed(self) -> bool {
        matches!(self, Self::Dispatch | Self::Push)
    }
}
