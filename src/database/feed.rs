//! The feed. Each commit leaves a row that records what it changed, for other replicas, and how it changed the counts.

use bloom_core::ids::{TaskId, WorkerId};
use bloom_core::working_set::{Counts, WorkingSet};
use serde::{Deserialize, Serialize};

/// A writer, and the number of one of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The id of the writer.
    pub writer: i64,
    /// The number of the batch. Each writer counts its own.
    pub n: i64,
}

/// What a batch changed, by id. Readers of the feed read the current rows themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changed {
    /// Tasks that were created, or whose change other replicas need.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskId>,
    /// Tasks that were removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed_tasks: Vec<TaskId>,
    /// Workers that were registered or changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerId>,
    /// Workers that were removed, each with the revision of its removal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed_workers: Vec<(WorkerId, i64)>,
    /// Tasks with new events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TaskId>,
    /// Whether stored settings or keys were changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub settings: bool,
    /// Whether queues were paused, resumed or limited.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub queues: bool,
    /// Whether the counts were corrected, so that replicas must read them again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recounted: bool,
}

impl Changed {
    /// The changes of a batch, from the rows that its commands changed.
    pub fn of(set: &WorkingSet) -> Self {
        let dirty = &set.dirty;
        let mut events: Vec<TaskId> = dirty.events.iter().map(|event| event.task_id).collect();
        events.dedup();
        let revision = |id: &WorkerId| set.loaded.worker_revisions.get(id).copied().unwrap_or_default();
        Self {
            tasks: dirty.tasks.difference(&dirty.quiet_tasks).copied().collect(),
            removed_tasks: dirty.removed_tasks.iter().copied().collect(),
            workers: dirty.workers.difference(&dirty.removed_workers).cloned().collect(),
            removed_workers: dirty.removed_workers.iter().map(|id| (id.clone(), revision(id))).collect(),
            events,
            settings: dirty.has_settings(),
            queues: !dirty.queues.is_empty(),
            recounted: false,
        }
    }
}

/// How a batch changed the counts of tasks, and how many leases it granted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountDeltas {
    /// The change of the number of tasks, by agent, priority and status.
    pub tasks: Counts,
    /// The number of leases that were granted.
    pub leases: i64,
}

impl CountDeltas {
    /// The counts that the commands of a batch have changed.
    pub fn of(set: &WorkingSet) -> Self {
        Self { tasks: set.counts.clone(), leases: set.leases_granted }
    }

    /// Adds the changes of another batch. Counts whose total change is zero are dropped.
    pub fn add(&mut self, other: &Self) {
        for (key, n) in &other.tasks {
            *self.tasks.entry(key.clone()).or_default() += n;
        }
        self.tasks.retain(|_, n| *n != 0);
        self.leases += other.leases;
    }

    /// The number of counts that change.
    pub fn len(&self) -> usize {
        self.tasks.values().filter(|n| **n != 0).count() + usize::from(self.leases != 0)
    }

    /// Whether no count changes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The counts of one snapshot, and the last batch of each writer that they include.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountsAt {
    /// The sums of all changes up to these positions.
    pub counts: CountDeltas,
    /// The last batch of each writer that the counts include.
    pub positions: Vec<Position>,
}

/// A committed batch, as other replicas read it.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedEntry {
    /// Which batch it is.
    pub at: Position,
    /// How it changed the counts.
    pub counts: CountDeltas,
    /// What it changed.
    pub changes: Changed,
}

/// The batches that a replica has not read yet, or the first of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feed {
    /// Ordered by writer and number. The number of entries per writer is limited.
    pub entries: Vec<FeedEntry>,
    /// Whether a writer has more entries after these.
    pub more: bool,
    /// Whether entries that were not read yet have been removed, so that the cache must be rebuilt.
    pub gap: bool,
}
