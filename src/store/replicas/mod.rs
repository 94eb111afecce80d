//! What replicas and their reconcilers need to work on one database: leadership, the feed of commits and its notifications, the stored
//! counts, and the pages of tasks that are ready, due or waiting. `database`, at the top of the crate, combines them.

pub(crate) mod counts;
pub(crate) mod feed;
pub(crate) mod leader;
pub(crate) mod listener;
pub(crate) mod queue;
pub(crate) mod wakeup_targets;
