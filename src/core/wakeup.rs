//! Durable wake-ups: a task has released something that others may wait for.
//!
//! A wake-up commits with the change that caused it. The commit that re-evaluates its last waiter deletes it. The replica that made it
//! processes it at once; if that replica dies, the leader finds it in the database. So no waiter depends on the memory of a replica, and no
//! command ever handles more than one page of waiters.

use uuid::Uuid;

use super::ids::{TaskId, WorkerId};

/// Identifies a wake-up until it is deleted.
pub type WakeupId = Uuid;

/// Which tasks are to be re-evaluated.
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
    /// The tasks that are reserved for this worker, which takes no tasks at present.
    Reservations(WorkerId),
}

/// A wake-up that is not finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Wakeup {
    /// The id under which its progress is written.
    pub id: WakeupId,
    /// Which tasks it re-evaluates.
    pub subject: Subject,
    /// The waiters up to this one have been re-evaluated.
    pub cursor: Option<TaskId>,
}

/// A page of a wake-up's waiters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiters {
    /// The waiters of this page, which are evaluated again.
    pub tasks: Vec<TaskId>,
    /// Where the next page begins; `None` if this is the last page.
    pub next: Option<TaskId>,
    /// More tasks wait for the key than this page contains: the tasks of this page that become ready must wake them later.
    pub more_want_key: bool,
}

/// How far a wake-up is once a re-evaluation has committed; it is written with that commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The wake-up that has advanced.
    pub wakeup: WakeupId,
    /// `None` if the wake-up is finished.
    pub next: Option<TaskId>,
    /// As [`Waiters::more_want_key`] of the page that was re-evaluated.
    pub more_want_key: bool,
}
