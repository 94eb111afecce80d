//! Support for tests: separate databases, processes that end with the tests, direct SQL, bounded waiting.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod direct;
pub mod janitor;
pub mod nginx;
pub mod pgbouncer;
pub mod postgres;
pub mod waiting;
