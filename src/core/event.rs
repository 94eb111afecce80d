//! Events of runs, which agents report while the runs are in progress.

use super::Ms;
use super::ids::{LeaseId, TaskId};
use super::words::words;

words! {
    /// What an event of a run is about.
    EventKind {
        Lifecycle = "lifecycle", Text = "text", ToolUse = "tool_use", ToolResult = "tool_result",
        Usage = "usage", RateLimit = "rate_limit", Log = "log", Stderr = "stderr",
        PermissionDenied = "permission_denied", Question = "question", Answer = "answer",
    }
}

/// One event of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskEvent {
    /// The task whose run sent it.
    pub task_id: TaskId,
    /// Its position in the task's events, counted from 1 across leases.
    pub number: i64,
    /// The lease of this run.
    pub lease_id: LeaseId,
    /// Its position in the lease's events, numbered by the sender.
    pub seq: i64,
    /// What the event is about.
    pub kind: EventKind,
    /// When it happened, by the clock of the agent.
    pub at: Ms,
    /// JSON text, as it was received.
    pub data: String,
}
