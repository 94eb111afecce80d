//! Durable wake-ups: a task has released something that other tasks may wait for.
//!
//! A wake-up commits with the change that caused it, and the commit that re-evaluates its last waiter deletes it. The replica that made it
//! processes it at once; if that replica dies, the leader finds it in the database. No waiter therefore depends on the memory of a replica,
//! and no command ever handles more than one page of waiters.

use uuid::Uuid;

use super::ids::{TaskId, WorkerId};

/// Identifies a wake-up until it is deleted.
pub type WakeupId = Uuid;

/// Which tasks have to be re-evaluated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The tasks that depend on this one, which has finished.
    Dependents(TaskId),
    /// The first unfinished session task of the context, and the one right after `after`, which has ended or was queued again.
    Context {
        /// The context of the tasks.
        context_id: String,
        /// The task that has ended or was queued again; `None`: only the first unfinished task is evaluated.
        after: Option<TaskId>,
    },
    /// The first task of each agent and project that waits for this exclusive key.
    Key(String),
    /// The tasks that are reserved for this worker, which currently takes no tasks.
    Reservations(WorkerId),
}

/// A wake-up that is not finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Wakeup {
    /// The id under which its progress is written.
    pub id: WakeupId,
    /// Which tasks it re-evaluates.
    pub subject: Subject,
    /// The last waiter that has been re-evaluated; `None` at the beginning.
    pub cursor: Option<TaskId>,
}

/// A page of a wake-up's waiters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiters {
    /// The waiters of this page, which are evaluated again.
    pub tasks: Vec<TaskId>,
    /// Where the next page begins; `None` if this is the last page.
    pub next: Option<TaskId>,
    /// Whether more tasks wait for the key than this page contains. If so, the tasks of this page that become ready must wake them later.
    pub more_want_key: bool,
}

/// The state of a wake-up after a re-evaluation. It is written with the commit of the re-evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The wake-up that has advanced.
    pub wakeup: WakeupId,
    /// Where the next page begins; `None` if the wake-up is finished.
    pub next: Option<TaskId>,
    /// The [`Waiters::more_want_key`] of the page that was re-evaluated.
    pub more_want_key: bool,
}
