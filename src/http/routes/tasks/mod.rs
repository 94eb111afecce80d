//! The handlers for tasks: clients create, read, change and delete them, workers lease and complete them one at a time.
//! Questions of runs belong to their tasks. What waits for tasks, or follows them, is in `live`.

pub(crate) mod bulk;
pub(crate) mod create;
pub(crate) mod dispatch;
pub(crate) mod edit;
pub(crate) mod lifecycle;
pub(crate) mod questions;
pub(crate) mod read;
