//! The tools of the tests: servers and databases, a JSON client, fixtures, and waiting with a limit.

pub mod agent;
pub mod boot_clock;
pub mod certificates;
pub mod checker;
pub mod claude;
pub mod client;
pub mod collector;
pub mod delays;
pub mod fixtures;
pub mod load;
pub mod minio;
pub mod pieces;
pub mod plane;
pub mod proxy;
pub mod pushed;
pub mod repository;
pub mod server;
pub mod slow;
pub mod sse;
pub mod stub;

pub use bloom_test_support::waiting::{beside, eventually, now_ms, run, unique};
pub use bloom_test_support::{direct, janitor, nginx, pgbouncer, postgres};
pub use boot_clock::BootClock;
pub use client::{Answer, Api};
pub use fixtures::{Crew, Lease, Task, Worker, crew_on_both, lease_ids};
pub use serde_json::{Value, json};
pub use server::{Database, Server, shared};

/// An id that no task or lease has.
pub const NO_ID: &str = "0190a0a0-0000-7000-8000-000000000000";

/// Runs each test on both databases: on servers that tests share, or, if marked `alone`, with a server of its own.
#[macro_export]
macro_rules! on_both {
    ($($(#[$meta:meta])* async fn $name:ident($server:ident) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            async fn check($server: &'static $crate::support::Server) $body
            #[test]
            fn on_sqlite() {
                $crate::support::run(check($crate::support::shared($crate::support::Database::Sqlite)));
            }
            #[test]
            fn on_postgresql() {
                $crate::support::run(check($crate::support::shared($crate::support::Database::Postgres)));
            }
        }
    )*};
    (alone: $($(#[$meta:meta])* async fn $name:ident($database:ident) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            async fn check($database: $crate::support::Database) $body
            #[test]
            fn on_sqlite() {
                $crate::support::run(check($crate::support::Database::Sqlite));
            }
            #[test]
            fn on_postgresql() {
                $crate::support::run(check($crate::support::Database::Postgres));
            }
        }
    )*};
}
