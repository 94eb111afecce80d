//! Limits on what requests take from the server: their rate, the memory of their bodies, and how many of them wait at a time.
//! `client_shares` divides a limit among the clients, so that no client takes all of it.

pub(crate) mod body_memory;
pub(crate) mod client_shares;
pub(crate) mod rate;
pub(crate) mod waiting_requests;
