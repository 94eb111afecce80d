//! The mark of service: every replica tells the database twice a second that it serves.

use std::time::Duration;

use bloom_engine::Engine;

const EVERY: Duration = Duration::from_millis(500);

/// A gap in the marks of all replicas together is a time in which no lease could be renewed. On SQLite the log of writes is kept short
/// at the same pace.
pub(super) async fn mark(engine: Engine) {
    loop {
        let marked = engine.database().mark_served().await;
        let outcome = match marked {
            Ok(_) => engine.database().checkpoint().await,
            Err(error) => Err(error),
        };
        engine.metrics().database_up(!outcome.as_ref().is_err_and(bloom_database::Error::is_unavailable));
        if let Err(error) = outcome {
            tracing::debug!(%error, "the service mark was not written");
        }
        tokio::select! {
            biased;
            () = engine.stopped() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}
