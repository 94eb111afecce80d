//! The agent's server, to which servers push tasks and orders.

pub(crate) mod connections;
pub(crate) mod push_server;
pub(crate) mod response;
