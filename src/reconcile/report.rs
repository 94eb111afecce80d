//! Records the last runs of this replica's reconcilers in the database, so that all replicas can show them.

use std::time::Duration;

use bloom_database::Maintenance;
use bloom_engine::Engine;

const EVERY: Duration = Duration::from_secs(5);

/// Runs on every replica, because the replica that runs the Kubernetes controllers is not necessarily the leader.
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
