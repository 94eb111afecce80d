//! Records what the reconcilers of this replica did last, so that all replicas can tell it.

use std::time::Duration;

use bloom_database::Maintenance;
use bloom_engine::Engine;

const EVERY: Duration = Duration::from_secs(5);

/// On every replica, because the one that runs the controllers of Kubernetes need not be the leader.
pub(super) async fn record(engine: Engine) {
    loop {
        tokio::select! {
            biased;
            () = engine.background.stopped() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        let runs = engine.reconcilers.runs();
        if !runs.is_empty()
            && let Err(error) = engine.writers.maintain(Maintenance::RecordReconcilers { runs }).await
        {
            tracing::debug!(%error, "what the reconcilers did was not recorded");
        }
    }
}
