//! For tests: databases of their own, processes that end with the test, SQL past the program, bounded waiting.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod direct;
pub mod janitor;
pub mod postgres;
pub mod waiting;
