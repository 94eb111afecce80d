//! Who calls, and what the caller may do. These files find the client and the key of a request, and refuse hosts and sites that are not allowed.
//! `policy` says what each route requires, and `ownership` limits named keys to what belongs to them.

pub(crate) mod clients;
pub(crate) mod environment_keys;
pub(crate) mod handshake;
pub(crate) mod host;
pub(crate) mod key_ring;
pub(crate) mod ownership;
pub(crate) mod policy;
pub(crate) mod session;
