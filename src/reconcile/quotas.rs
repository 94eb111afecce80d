//! Measures how many bytes each submit or member key stores, if its quota limits them.

use bloom_core::Ms;
use bloom_database::Maintenance;
use bloom_engine::Error;

use super::{ReconcileContext, unreadable};

const MEASURE_EVERY_MS: Ms = 60_000;

pub(super) async fn measure(context: ReconcileContext) {
    context
        .every("quotas", MEASURE_EVERY_MS, |context| async move {
            let measured = tokio::select! {
                biased;
                () = context.engine.background.stopped() => return Ok(()),
                measured = context.engine.database.stored_bytes() => measured.map_err(unreadable)?,
            };
            for (key, bytes) in measured {
                context.engine.writers.maintain(Maintenance::SetStoredBytes { key, bytes }).await?;
                context.progress.add(1);
            }
            Ok::<_, Error>(())
        })
        .await;
}
