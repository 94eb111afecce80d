//! The handlers of requests that wait for the end of a task, or follow the events of a run or all changes. `hub` wakes them, and
//! `watch_buffer` keeps the changes for clients that read slowly. `queue_history` records the last hour for the charts of the pages.

pub(crate) mod hub;
pub(crate) mod queue_history;
pub(crate) mod run_events;
pub(crate) mod sse;
pub(crate) mod wait_for_task;
pub(crate) mod watch;
pub(crate) mod watch_buffer;
