//! The communication between the agent and its server: claims and heartbeats, the events and verdicts of runs, and the registration with
//! its keys.

pub(crate) mod availability;
pub(crate) mod enrollment;
pub(crate) mod events;
pub(crate) mod held_lease;
pub(crate) mod instance;
pub(crate) mod leases;
pub(crate) mod refused_key;
pub(crate) mod renewal;
pub(crate) mod report;
