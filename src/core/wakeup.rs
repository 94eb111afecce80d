//! Durable wake-ups: a task let go of something that others may wait for.
//!
//! A wake-up commits with the change that caused it and is deleted by the commit that has re-evaluated its last waiter. Whoever made it
//! works it off at once; should that replica end, the leader finds it in the database. So no waiter depends on anybody's memory, and
//! no command ever walks more than a page of waiters.

use uuid::Uuid;

use super::ids::{TaskId, WorkerId};

pub type WakeupId = Uuid;

/// Who is to be re-evaluated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The tasks that depend on this one, which is over.
    Dependents(TaskId),
    /// The first unfinished session task of the context, and the one right behind `after`, which has ended or was queued again.
    Context { context_id: String, after: Option<TaskId> },
    /// The first waiter of each agent for this exclusive key.
    Key(String),
    /// The tasks that are reserved for this worker, which takes none at present.
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
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<TaskId>,
    /// More wait for the key than this page shows: those that it frees must pass the word on.
    pub more_want_key: bool,
}

/// How far a wake-up comes with a re-evaluation; it is written with that one's commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub wakeup: WakeupId,
    /// `None`: it is done.
    pub next: Option<TaskId>,
    pub more_want_key: bool,
}
