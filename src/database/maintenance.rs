//! Jobs that keep the database small and its counts correct. A writer does each of them in a few small transactions of its own.

use bloom_core::Ms;
use bloom_core::file::FileId;
use bloom_core::ids::TaskId;
use bloom_core::run_result::StoredObject;
use uuid::Uuid;

use super::CountDeltas;

#[derive(Clone, Debug)]
pub enum Maintenance {
    /// Adds the count changes of batches to the base of the counts. The leader does this about once a second.
    CompactCounts,
    /// Removes batches that are older than this and already in the base of the counts, writers that have been silent for long, and the
    /// rows of workers that were removed long ago.
    PruneBatches { older_than_ms: i64 },
    /// Removes audit entries that are older than this; with `only_flushed`, only those that are in the object store.
    PruneAudit { older_than_ms: i64, limit: i64, only_flushed: bool },
    /// Records that the output of this artifact is in the object store, and removes it from the database.
    MoveOutput { artifact: Uuid, object: StoredObject },
    /// Stores a piece of a file that arrives. If the file is not added by `due_at`, its pieces are removed.
    StoreChunk { file: FileId, number: i64, content: Chunk, due_at: Ms },
    /// Has the pieces of a file removed that did not arrive whole, or that nobody needs.
    DropChunks { file: FileId },
    /// Removes uploads that no task used in time, and a part of the pieces that are to be removed.
    RemoveFiles { limit: i64 },
    /// Records that this file is in the object store. Its pieces are removed later, so that whoever reads them comes to the end.
    MoveFile { file: FileId, url: String },
    /// Records how many bytes this submit key stores.
    SetStoredBytes { key: String, bytes: i64 },
    /// Stores a mark of the object store, if it is as the caller knows it; an empty `known` stands for a mark that does not exist.
    SetMark { name: &'static str, known: String, value: String },
    /// Removes tasks that finished longer ago than this (`None`: only those whose own `ttl_after_finished_sec` is over), with all rows
    /// that belong to them, unless a queued task depends on them.
    RemoveTasks { finished_for_ms: Option<Ms>, limit: i64 },
    /// Adds what [`Database::count_errors`](super::Database::count_errors) found to be missing. Done only while this leadership lasts, so
    /// that no two replicas add it.
    CorrectCounts { missing: CountDeltas, epoch: i64 },
}

#[derive(Clone, Debug, Default)]
pub struct Done {
    /// The number of rows or tasks that were processed; 0 means that nothing is left for now.
    pub rows: u64,
    pub removed: Vec<TaskId>,
    pub counts: CountDeltas,
    /// The job committed a batch that is in the feed.
    pub is_batch: bool,
}

/// A piece of a file. Its content is not for logs.
#[derive(Clone)]
pub struct Chunk(pub Vec<u8>);

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}
