//! What a writer changes outside of batches, in small transactions of its own: it removes what is old, records what was moved to the
//! object store, and stores what was measured or reported. The reads that this work needs stand beside it.

pub(crate) mod cleanup;
pub(crate) mod files;
pub(crate) mod key_uses;
pub(crate) mod objects;
pub(crate) mod page_sizes;
pub(crate) mod reconcilers;
pub(crate) mod stored_bytes;
pub(crate) mod task_removal;
