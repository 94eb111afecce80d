//! Runs LLM tasks on a fleet of worker machines, as a reconciling control plane.
//!
//! ARCHITECTURE.md tells how the rooms fit together.

// The tests' own support knows the library by its name, from inside as from outside.
#[cfg(test)]
extern crate self as bloom_runtime;

pub mod core;

#[cfg(feature = "server")]
pub mod agent;
#[cfg(feature = "server")]
pub mod agents;
#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod client;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod engine;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
pub mod membridge;
#[cfg(feature = "server")]
pub mod outbound;
#[cfg(feature = "server")]
pub mod reconcile;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod telemetry;
