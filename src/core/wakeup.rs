//! Durable wake-ups: a task has released something that others may wait for.
//!
//! A wake-up commits with the change that caused it. The commit that re-evaluates its last waiter deletes it. The replica that made it
//! processes it at once; if that replica dies, the leader finds it in the database. So no waiter depends on the memory of a replica, and no
//! command ever handles more than one page of waiters.

use uuid::Uuid;

use super::ids::{TaskId, WorkerId};

pub type WakeupId = Uuid;

/// Which tasks are to be re-evaluated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The tasks that depend on this one, which has finished.
    Dependents(TaskId),
    /// The first unfinished session task of the context, and the one right after `after`, which has ended or was queued again.
    Context { context_id: String, after: Option<TaskId> },
    /// The first task of each agent and project that waits for this exclusive key.
    Key(String),
    /// The tasks that are reserved for this worker, which takes no tasks at present.
    Reservations(WorkerId),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Wakeup {
    pub id: WakeupId,
    pub subject: Subject,
    /// The waiters up to this one have been re-evaluated.
    pub cursor: Option<TaskId>,
}

/// A page of a wake-up's waiters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiters {
    pub tasks: Vec<TaskId>,
    /// Where the next page begins; `None` if this is the last page.
    pub next: Option<TaskId>,
    /// More tasks wait for the key than this page contains: the tasks of this page that become ready must wake them later.
    pub more_want_key: bool,
}

/// How far a wake-up is once a re-evaluation has committed; it is written with that commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub wakeup: WakeupId,
    /// `None` if the wake-up is finished.
    pub next: Option<TaskId>,
    pub more_want_key: bool,
}
