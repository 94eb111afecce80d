//! What the tests of the core stand on: a database in memory, a world that runs commands over it, and random histories.
//!
//! The library's own tests and the integration tests include these files by path; both know the library as `bloom_runtime`.

pub mod history;
pub mod memory;
pub mod world;
