//! The handlers for tasks: clients create, read, change and cancel them, and workers lease and complete them one at a time. The questions of
//! their runs are here too. Requests that wait for a task, or follow it, are in `live`.

pub(crate) mod bulk;
pub(crate) mod create;
pub(crate) mod dispatch;
pub(crate) mod edit;
pub(crate) mod lifecycle;
pub(crate) mod questions;
pub(crate) mod read;
