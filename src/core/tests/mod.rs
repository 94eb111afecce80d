//! Tests of the core beyond single commands: what holds over any history, and the parts around `decide`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../tests/support_core/mod.rs"]
#[allow(dead_code, reason = "the integration tests use the rest")]
pub(super) mod support;

mod cache_fleet;
mod cache_queue;
mod model;
mod placement;
mod properties;
