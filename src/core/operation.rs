//! What an operation is.

use super::keys::Keys;
use super::reply::Reply;
use super::working_set::{Halt, WorkingSet};

/// A change of the state model, with what it is told.
pub trait Operation {
    type Reply: Into<Reply> + TryFrom<Reply>;

    /// It places leases or sets up workers. Such operations lock workers, and have a writer of their own.
    fn is_placement(&self) -> bool {
        false
    }

    /// Adds the rows that it surely needs. What it turns out to need besides, [`decide`](Self::decide) asks for.
    fn add_keys(&self, _keys: &mut Keys) {}

    /// Applies it. `Ok` may have changed the working set, `Err` has not.
    ///
    /// # Errors
    /// It is rejected, or stopped for rows that are not loaded.
    fn decide(&self, set: &mut WorkingSet) -> Result<Self::Reply, Halt>;
}
