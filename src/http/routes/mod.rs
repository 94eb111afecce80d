//! The handlers of the API, one file for each resource, each handler with its policy before it. Resources that take several files have a directory,
//! which also has what only their handlers need. A handler becomes a route in `openapi::description::routes`.

pub(crate) mod audit;
pub(crate) mod config;
pub(crate) mod contexts;
pub(crate) mod files;
pub(crate) mod keys;
pub(crate) mod leases;
pub(crate) mod live;
pub(crate) mod membridge;
pub(crate) mod probes;
pub(crate) mod projects;
pub(crate) mod queues;
pub(crate) mod reconcilers;
pub(crate) mod stats;
pub(crate) mod tasks;
pub(crate) mod usage;
pub(crate) mod workers;
