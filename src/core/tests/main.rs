//! Tests of the core: single commands in every state, properties of arbitrary histories, the model checker, the cache and placement.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cache_fleet;
mod cache_parts;
mod cache_pauses;
mod cache_queue;
mod decide;
mod model;
mod placement;
mod properties;

/// States are made of many small pieces.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
