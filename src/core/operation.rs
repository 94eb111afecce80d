//! What an operation is.

use super::reply::Reply;
use super::row_keys::RowKeys;
use super::working_set::{Halt, WorkingSet};

/// How much of a batch an operation takes, roughly.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    /// Rows that it reads or writes.
    pub rows: usize,
    /// The size of its arguments.
    pub bytes: usize,
}

impl Default for Weight {
    fn default() -> Self {
        Self { rows: 2, bytes: 256 }
    }
}

/// How soon an operation is decided while others wait; the first is the most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Signs of life, ends and placement.
    Now,
    /// Re-evaluations: the replies to completions wait for them.
    FollowUp,
    /// New tasks, and changes of tasks that wait.
    New,
    /// Many new tasks at once, and what nobody waits for.
    Bulk,
}

impl Urgency {
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// A change of the state model, with its arguments.
pub trait Operation {
    /// What the caller gets once the operation has committed.
    type Reply: Into<Reply> + TryFrom<Reply>;

    /// Whether it places leases or sets up workers. Such operations lock workers, and have a writer of their own.
    fn is_placement(&self) -> bool {
        false
    }

    /// How much of a batch it takes.
    fn weight(&self) -> Weight {
        Weight::default()
    }

    /// How soon it is decided while others wait.
    fn urgency(&self) -> Urgency {
        Urgency::Now
    }

    /// Adds the rows that it always needs. If it needs others too, [`decide`](Self::decide) asks for them.
    fn add_keys(&self, _keys: &mut RowKeys) {}

    /// Applies the operation. `Ok` may have changed the working set, `Err` has not.
    ///
    /// # Errors
    /// The operation is rejected, or it needs rows that are not loaded.
    fn decide(&self, set: &mut WorkingSet) -> Result<Self::Reply, Halt>;
}
