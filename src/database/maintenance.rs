//! Jobs that keep the database small and its counts right. Each is a few small transactions of a writer's own.

use bloom_core::Ms;
use bloom_core::ids::TaskId;

use super::CountDeltas;

#[derive(Clone, Debug)]
pub enum Maintenance {
    /// Adds what batches changed to the base of the counts; for one replica, about once a second.
    CompactCounts,
    /// Removes batches that are older than this and in the base of the counts, writers that were silent for long, and the rows of
    /// workers that were removed long ago.
    PruneBatches { older_than_ms: i64 },
    /// Removes audit entries that are older than this.
    PruneAudit { older_than_ms: i64, limit: i64 },
    /// Removes tasks that finished longer ago than this (`None`: only those whose own time has come), with all that belongs to them,
    /// unless a queued task depends on them.
    RemoveTasks { finished_for_ms: Option<Ms>, limit: i64 },
    /// Adds what [`Database::count_errors`](super::Database::count_errors) found to be missing; only while this leadership lasts, so
    /// that nobody adds it twice.
    CorrectCounts { missing: CountDeltas, epoch: i64 },
}

#[derive(Clone, Debug, Default)]
pub struct Done {
    /// How many rows, or tasks, it dealt with; fewer than the limit means that nothing is left for now.
    pub rows: u64,
    pub removed: Vec<TaskId>,
    pub counts: CountDeltas,
    /// It committed a batch that is in the feed.
    pub is_batch: bool,
}
