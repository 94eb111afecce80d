//! A small control plane for tests: a database in memory, a world that runs commands on it, and random histories.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod control_plane;
mod conversations;
pub mod files;
pub mod history;
mod keys;
pub mod memory;
mod projects;
pub mod random;
pub mod samples;
pub mod step;
pub mod world;
