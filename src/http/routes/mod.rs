//! The handlers of the API, in one file per resource, each with its policy in front of it. A resource that needs several files has a
//! directory, which also contains what only its handlers need. A handler is reachable once `openapi::description::routes` lists it.

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
