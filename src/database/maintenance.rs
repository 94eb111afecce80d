//! Jobs that keep the database small and its counts correct. A writer does each job in a few small transactions of its own.

use bloom_core::Ms;
use bloom_core::file::FileId;
use bloom_core::ids::TaskId;
use bloom_core::reconciler::ReconcilerRun;
use bloom_core::run_result::StoredObject;
use uuid::Uuid;

use super::CountDeltas;

/// A job, with its parameters.
#[derive(Clone, Debug)]
pub enum Maintenance {
    /// Adds the count changes of batches to the base of the counts. The leader does this about once a second.
    CompactCounts,
    /// Removes batches that are older than this and already in the base of the counts. Also removes writers that have been silent for a
    /// long time, and the rows of workers that were removed long ago.
    PruneBatches {
        /// The age from which a batch is removed, in milliseconds.
        older_than_ms: i64,
    },
    /// Removes audit entries that are older than this. With `only_flushed`, removes only those that are already in the object store.
    PruneAudit {
        /// The age from which an entry is removed, in milliseconds.
        older_than_ms: i64,
        /// The maximum number of entries to remove at a time.
        limit: i64,
        /// Whether entries must be in the object store before they are removed.
        only_flushed: bool,
    },
    /// Records that the output of this artifact is in the object store, and removes it from the database.
    MoveOutput {
        /// The artifact whose output was moved.
        artifact: Uuid,
        /// The location of its output, and what the database keeps of it.
        object: StoredObject,
    },
    /// Stores a chunk of a file that is arriving. If the file is not added by `due_at`, its chunks are removed.
    StoreChunk {
        /// The file that is arriving.
        file: FileId,
        /// The position of the chunk in the file, counted from 0.
        number: i64,
        /// The bytes of the chunk.
        content: Chunk,
        /// When the chunks are removed if the file was not added, in milliseconds since the epoch.
        due_at: Ms,
    },
    /// Schedules the removal of the chunks of a file that did not arrive completely, or that nobody needs.
    DropChunks {
        /// The file whose chunks are no longer needed.
        file: FileId,
    },
    /// Removes uploads that no task used in time, and some of the chunks that are due for removal.
    RemoveFiles {
        /// The maximum number of uploads to remove at a time.
        limit: i64,
    },
    /// Records that this file is in the object store. Its chunks are removed later, so that readers of the chunks can finish.
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
        /// The total number of bytes that it stores.
        bytes: i64,
    },
    /// Records when these keys were last used. A later time that is already recorded stays.
    RecordKeyUses {
        /// The names of keys, each with its time.
        uses: Vec<(String, Ms)>,
    },
    /// Records the last runs of the reconcilers that this replica runs.
    RecordReconcilers {
        /// The runs.
        runs: Vec<ReconcilerRun>,
    },
    /// Stores a mark of the object store if its current value is `known`. An empty `known` means that the mark does not exist.
    SetMark {
        /// The name of the mark.
        name: &'static str,
        /// The value that the caller read.
        known: String,
        /// The value to store.
        value: String,
    },
    /// Removes tasks that finished longer ago than this, with all rows that belong to them, unless a queued task depends on them. `None`
    /// removes only tasks whose own `ttl_after_finished_sec` has passed.
    RemoveTasks {
        /// Milliseconds since a task finished.
        finished_for_ms: Option<Ms>,
        /// The maximum number of tasks to remove at a time.
        limit: i64,
    },
    /// Adds the differences that [`Database::count_errors`](super::Database::count_errors) found. This is done only while this leadership
    /// lasts, so that no two replicas add them.
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
    /// Whether the job committed a batch that is in the feed.
    pub is_batch: bool,
}

/// A chunk of a file. Its content must not appear in logs.
#[derive(Clone)]
pub struct Chunk(pub Vec<u8>);

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}
