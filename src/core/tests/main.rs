//! Tests of the core beyond single commands: what holds over any history, and the parts around `decide`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cache_fleet;
mod cache_queue;
mod decide;
mod model;
mod placement;
mod properties;
