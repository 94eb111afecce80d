//! The last runs of the reconcilers.

use crate::batch::writer::Writer;
use crate::error::Error;
use crate::sql::args::{Args, Bulk};
use crate::sql::dialect::{statement, upsert};
use crate::sql::table::{ReadRow, row};
use crate::{Store, all};
use bloom_core::Ms;
use bloom_core::reconciler::ReconcilerRun;
use bloom_database::Done;

/// How long a reconciler that no replica runs any more stays in the list while others run. It was switched off, or only another version has
/// it.
const KEPT_MS: Ms = 60_000;

row! {
    pub(crate) RECONCILER: reconcilers as reconcilers_row of run: ReconcilerRun {
        name, every_ms, started_at, running_since, duration_ms, items, runs, failures, succeeded_at, failed_at, error, recorded_at
    }
}

statement!(RUNS, |_d| "SELECT {} FROM reconcilers ORDER BY name", RECONCILER.names(""));
statement!(RECORD, |d| "{}", d.insert(&RECONCILER, &upsert(&RECONCILER, "name")));
statement!(REMOVE, "DELETE FROM reconcilers WHERE recorded_at < $1");

impl Store {
    /// The last runs of the reconcilers by name, as the replicas that run them have recorded them.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn reconcilers(&self) -> Result<Vec<ReconcilerRun>, Error> {
        all(&self.pool().fetch(&RUNS, Args::new()).await?, ReadRow::read)
    }
}

impl Writer {
    pub(crate) async fn record_reconcilers(&mut self, runs: &[ReconcilerRun]) -> Result<Done, Error> {
        self.begin_maintenance().await?;
        let conn = self.conn()?;
        let rows = conn.execute(&RECORD, Args::new().bulk(Bulk::of(runs))).await?;
        if let Some(run) = runs.first() {
            conn.execute(&REMOVE, Args::new().int(run.recorded_at - KEPT_MS)).await?;
        }
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }
}
