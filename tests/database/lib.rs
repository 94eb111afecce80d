//! A database in memory for tests of the engine, the reconcilers and whole control planes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod scripted;
pub mod tables;
mod writer;
