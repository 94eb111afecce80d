//! What requests read outside of any batch: lists in pages, single rows and reports. These reads use connections of their own and never
//! wait for a writer. `plans` checks that they use an index.

pub(crate) mod audit;
pub(crate) mod contexts;
pub(crate) mod id_search;
pub(crate) mod lists;
pub(crate) mod lookups;
pub(crate) mod page;
#[cfg(test)]
mod plans;
pub(crate) mod search;
pub(crate) mod teams;
pub(crate) mod usage;
