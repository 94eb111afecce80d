//! The handlers for workers: their registration (`registry`), the calls that a worker makes for all its leases (`protocol`), and the calls of
//! this server to agents (`agents`). The paused accounts of workers, and the script that installs an agent, are here too.

pub(crate) mod accounts;
pub(crate) mod agents;
pub(crate) mod install;
pub(crate) mod protocol;
pub(crate) mod registry;
