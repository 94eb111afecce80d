//! What an operation is.

use super::reply::Reply;
use super::row_keys::RowKeys;
use super::working_set::{Halt, WorkingSet};

/// A change of the state model, with its arguments.
pub trait Operation {
    /// What the caller gets once the operation has committed.
    type Reply: Into<Reply> + TryFrom<Reply>;

    /// Whether it places leases or sets up workers. Such operations lock workers, and have a writer of their own.
    fn is_placement(&self) -> bool {
        false
    }

    /// Adds the rows that it always needs. If it needs others too, [`decide`](Self::decide) asks for them.
    fn add_keys(&self, _keys: &mut RowKeys) {}

    /// Applies the operation. `Ok` may have changed the working set, `Err` has not.
    ///
    /// # Errors
    /// The operation is rejected, or it needs rows that are not loaded.
    fn decide(&self, set: &mut WorkingSet) -> Result<Self::Reply, Halt>;
}
