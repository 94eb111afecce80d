//! What the tests stand on: databases of their own, bounded waiting, each test on both databases.

#[path = "../../../../tests/it/support/janitor.rs"]
#[allow(dead_code, reason = "the tests of the program use the rest")]
pub mod janitor;
#[path = "../../../../tests/it/support/postgres.rs"]
#[allow(dead_code, reason = "the tests of the program use the rest")]
pub mod postgres;

use std::future::Future;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    Sqlite,
    Postgres,
}

impl Database {
    /// The URL of an empty one.
    pub fn new_url(self) -> String {
        match self {
            Self::Sqlite => format!("sqlite:{}", janitor::new_path("store").join("deep").join("bloom.db").display()),
            Self::Postgres => postgres::database(),
        }
    }
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"));

/// No test may take longer, whatever it waits for.
const TEST_LIMIT: Duration = Duration::from_secs(180);

/// Runs one test's body to its end, or to the limit.
pub fn run<F: Future>(body: F) -> F::Output {
    RUNTIME.block_on(async { tokio::time::timeout(TEST_LIMIT, body).await.expect("the test ends within its limit") })
}

/// Waits for something that is a part of a test, in a thread that has no runtime.
pub fn finish<F: Future>(part: F) -> F::Output {
    RUNTIME.block_on(part)
}

/// Runs something beside the test.
pub fn beside<F>(work: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    RUNTIME.spawn(work)
}

/// How long a condition may take to come true. Generous: the machine may be busy; a test that passes never waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again until there is an answer, and fails when there is none in time.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
}

pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The machine's clock, in milliseconds since the epoch.
pub fn now_ms() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(elapsed.as_millis()).expect("a sane clock")
}

/// Writes each test once and runs it over both databases.
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
