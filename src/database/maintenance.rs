//! Jobs that keep the database small and its counts correct. A writer does each of them in a few small transactions of its own.

use bloom_core::Ms;
use bloom_core::file::FileId;
use bloom_core::ids::TaskId;
use bloom_core::reconciler::ReconcilerRun;
use bloom_core::run_result::StoredObject;
use uuid::Uuid;

use super::CountDeltas;

/// A job, with what it needs.
#[derive(Clone, Debug)]
pub enum Maintenance {
    /// Adds the count changes of batches to the base of the counts. The leader does this about once a second.
    CompactCounts,
    /// Removes batches that are older than this and already in the base of the counts, writers that have been silent for long, and the
    /// rows of workers that were removed long ago.
    PruneBatches {
        /// The age from which a batch is removed, in milliseconds.
        older_than_ms: i64,
    },
    /// Removes audit entries that are older than this; with `only_flushed`, only those that are in the object store.
    PruneAudit {
        /// The age from which an entry is removed, in milliseconds.
        older_than_ms: i64,
        /// The most entries to remove at a time.
        limit: i64,
        /// Whether entries must be in the object store before they are removed.
        only_flushed: bool,
    },
    /// Records that the output of this artifact is in the object store, and removes it from the database.
    MoveOutput {
        /// The artifact whose output was moved.
        artifact: Uuid,
        /// Where its output is, and what the database keeps of it.
        object: StoredObject,
    },
    /// Stores a piece of a file that arrives. If the file is not added by `due_at`, its pieces are removed.
    StoreChunk {
        /// The file that arrives.
        file: FileId,
        /// The place of the piece in the file; the first one has the number 0.
        number: i64,
        /// The bytes of the piece.
        content: Chunk,
        /// When the pieces are removed if the file was not added, in milliseconds since the epoch.
        due_at: Ms,
    },
    /// Has the pieces of a file removed that did not arrive whole, or that nobody needs.
    DropChunks {
        /// The file whose pieces are no longer needed.
        file: FileId,
    },
    /// Removes uploads that no task used in time, and a part of the pieces that are to be removed.
    RemoveFiles {
        /// The most uploads to remove at a time.
        limit: i64,
    },
    /// Records that this file is in the object store. Its pieces are removed later, so that whoever reads them comes to the end.
    MoveFile {
        /// The file that was moved.
        file: FileId,
        /// The URL of its object.
        url: String,
    },
    /// Records how many bytes this submit key stores.
    SetStoredBytes {
        /// The name of the key.
        key: String,
        /// What all its tasks store together.
        bytes: i64,
    },
    /// Records when these keys were used last. A later time that is recorded already stays.
    RecordKeyUses {
        /// Names of keys, each with the time.
        uses: Vec<(String, Ms)>,
    },
    /// Records the last runs of the reconcilers that this replica runs.
    RecordReconcilers {
        /// The runs.
        runs: Vec<ReconcilerRun>,
    },
    /// Stores a mark of the object store, if it is as the caller knows it; an empty `known` stands for a mark that does not exist.
    SetMark {
        /// The name of the mark.
        name: &'static str,
        /// The value that the caller has read.
        known: String,
        /// The value to store.
        value: String,
    },
    /// Removes tasks that finished longer ago than this (`None`: only those whose own `ttl_after_finished_sec` is over), with all rows
    /// that belong to them, unless a queued task depends on them.
    RemoveTasks {
        /// Milliseconds since the end of a task.
        finished_for_ms: Option<Ms>,
        /// The most tasks to remove at a time.
        limit: i64,
    },
    /// Adds what [`Database::count_errors`](super::Database::count_errors) found to be missing. Done only while this leadership lasts, so
    /// that no two replicas add it.
    CorrectCounts {
        /// What to add to the counts.
        missing: CountDeltas,
        /// The epoch of the leadership.
        epoch: i64,
    },
}

/// What a job did.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// The number of rows or tasks that were processed; 0 means that nothing is left for now.
    pub rows: u64,
    /// The tasks that were removed.
    pub removed: Vec<TaskId>,
    /// How the job changed the counts.
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
