//! Tests of the operator and of the chart against a real Kubernetes API server, with the rights of its service account. `tests/run kubernetes` builds the
//! programs that they need.
// A failing test should panic right where it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Tools that only the other tests use are not dead.
#[allow(dead_code, unused_imports)]
#[path = "../it/support/mod.rs"]
mod support;

mod chart;
mod cluster;
mod crds;
mod failures;
mod leader;
mod load;
mod monitoring;
mod objects;
mod owners;
mod plugin;
mod pool_failures;
mod pools;
mod repeated_keys;
mod site;
mod tasks;
mod workers;
