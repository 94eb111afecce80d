//! The trait of all operations.

use super::reply::Reply;
use super::row_keys::RowKeys;
use super::working_set::{Halt, WorkingSet};

/// The approximate share of a batch that an operation takes.
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

/// How soon an operation is decided while others wait. The first variant is the most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Signs of life, ends of runs, and placement.
    Now,
    /// Re-evaluations. The replies to completions wait for them.
    FollowUp,
    /// New tasks, and changes of waiting tasks.
    New,
    /// Many new tasks at once, and operations that nobody waits for.
    Bulk,
}

impl Urgency {
    /// The number of variants.
    pub const COUNT: usize = 4;
}

/// A change of the state model, with its arguments.
pub trait Operation {
    /// The result that the caller gets once the operation has committed.
    type Reply: Into<Reply> + TryFrom<Reply>;

    /// Whether it places leases or sets up workers. Such operations lock workers, and have a separate writer.
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

    /// Adds the rows that it always needs. If it turns out to need others too, [`decide`](Self::decide) asks for them.
    fn add_keys(&self, _keys: &mut RowKeys) {}

    /// Applies the operation. `Ok` may have changed the working set; `Err` has not.
    ///
    /// # Errors
    /// The operation is rejected, or it needs rows that are not loaded.
    fn decide(&self, set: &mut WorkingSet) -> Result<Self::Reply, Halt>;
}
