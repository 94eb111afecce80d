//! Calls of the Kubernetes API: each has a time limit, and each write is counted.

use std::time::Duration;

use bloom_telemetry::Metrics;
use kube::Error;
use kube::core::Status;
use tokio::time::timeout;

/// The time limit of one call, as long as a busy API server may need. Watches have no limit.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Counts writes by kind of object and verb.
#[derive(Clone)]
pub(crate) struct Writes {
    metrics: Metrics,
}

impl Writes {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics }
    }

    /// Makes a call that changes an object.
    ///
    /// # Errors
    /// Those of the call. A call that took too long may have been executed anyway.
    pub(crate) async fn make<T>(
        &self,
        kind: &'static str,
        verb: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> kube::Result<T> {
        self.make_within(CALL_LIMIT, kind, verb, call).await
    }

    /// Like `make`, with a time limit that the caller sets.
    ///
    /// # Errors
    /// The same as those of `make`.
    pub(crate) async fn make_within<T>(
        &self,
        limit: Duration,
        kind: &'static str,
        verb: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> kube::Result<T> {
        let outcome = within(limit, call).await;
        self.metrics.kubernetes().write(kind, verb, outcome.is_ok());
        outcome
    }
}

/// Limits the time of a call.
///
/// # Errors
/// Those of the call, and 504 if it took too long.
pub(crate) async fn within_limit<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    within(CALL_LIMIT, call).await
}

/// Like `within_limit`, with a time limit that the caller sets.
///
/// # Errors
/// Those of the call, and 504 if it took too long.
pub(crate) async fn within<T>(limit: Duration, call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    timeout(limit, call).await.unwrap_or_else(|_| {
        let message = format!("no answer within {} s", limit.as_secs());
        Err(Error::Api(Box::new(Status::failure(&message, "Timeout").with_code(504))))
    })
}

/// Whether the API server answered with this status.
pub(crate) fn is_status(error: &Error, code: u16) -> bool {
    matches!(error, Error::Api(status) if status.code == code)
}
