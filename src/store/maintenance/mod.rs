//! What a writer changes outside of batches, in small transactions: it removes old rows, records what was moved to the object store, and
//! stores measured and reported values. The reads that this work needs are here too.

pub(crate) mod cleanup;
pub(crate) mod files;
pub(crate) mod key_uses;
pub(crate) mod objects;
pub(crate) mod page_sizes;
pub(crate) mod reconcilers;
pub(crate) mod stored_bytes;
pub(crate) mod task_removal;
