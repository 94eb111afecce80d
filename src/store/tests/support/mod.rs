//! Support for the tests: a database for each test, bounded waiting, and a macro that runs each test on both databases.

pub use bloom_test_support::waiting::{beside, eventually, finish, now_ms, run};
pub use bloom_test_support::{direct, janitor, postgres};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    Sqlite,
    Postgres,
}

impl Database {
    /// The URL of a new, empty database.
    pub fn new_url(self) -> String {
        match self {
            Self::Sqlite => format!("sqlite:{}", janitor::new_path("store").join("deep").join("bloom.db").display()),
            Self::Postgres => postgres::database(),
        }
    }
}

/// Defines tests that run on both databases.
#[macro_export]
macro_rules! on_both {
    ($($(#[$meta:meta])* async fn $name:ident($database:ident) $body:block)*) => {$(
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
