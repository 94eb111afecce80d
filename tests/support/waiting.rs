//! Bounded waiting, and other functions that every test needs.

use std::future::Future;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One runtime for all tests, because connections of the shared client outlive a single test.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"));

/// The time limit of a test.
const TEST_LIMIT: Duration = Duration::from_secs(600);

/// Runs the body of a test, and fails the test after the time limit.
pub fn run<F: Future>(body: F) -> F::Output {
    RUNTIME.block_on(async { tokio::time::timeout(TEST_LIMIT, body).await.expect("the test ends within its limit") })
}

/// Runs a part of a test to its end, in a thread that has no runtime.
pub fn finish<F: Future>(part: F) -> F::Output {
    RUNTIME.block_on(part)
}

/// Runs work concurrently with the test.
pub fn beside<F>(work: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    RUNTIME.spawn(work)
}

/// How long a condition may take to become true. It is generous because the machine may be busy; a test that passes does not wait so long.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Calls `ask` until it returns a value, and fails the test if there is none in time.
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

/// A name that no other test uses, so that tests can share a server.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The local clock, in milliseconds since the epoch. The servers run on this machine.
pub fn now_ms() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(elapsed.as_millis()).expect("a sane clock")
}
