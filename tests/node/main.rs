//! Tests on a whole Kubernetes node: the images run as pods. `tests/run node` builds the programs and the images' parts that they need.
// A failing test should panic right where it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Tools that only the other tests use are not dead.
#[allow(dead_code, unused_imports)]
#[path = "../it/support/mod.rs"]
mod support;

mod cluster;
mod containerfile;
mod images;
mod plain;
mod postgresql;
mod release;
mod sqlite;
