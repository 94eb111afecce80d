//! Runs LLM tasks on a fleet of worker machines, as a reconciling control plane.
//!
//! ARCHITECTURE.md tells how the rooms fit together.

pub use bloom_core as core;
pub use bloom_database as database;
pub use bloom_engine as engine;
pub use bloom_reconcile as reconcile;
pub use bloom_store as store;
pub use bloom_telemetry as telemetry;

pub mod agent;
pub mod agents;
pub mod api;
pub mod cli;
pub mod client;
pub mod config;
pub mod http;
pub mod membridge;
pub mod outbound;
