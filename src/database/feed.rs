//! The feed: each commit leaves a row with what it changed, for other replicas, and what it added to the counts.

use bloom_core::ids::{TaskId, WorkerId};
use bloom_core::working_set::{Counts, WorkingSet};
use serde::{Deserialize, Serialize};

/// A writer, and the number of one of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub writer: i64,
    pub n: i64,
}

/// What a batch changed, by id. Readers read the current rows themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changed {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed_tasks: Vec<TaskId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerId>,
    /// Each with the revision of its removal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed_workers: Vec<(WorkerId, i64)>,
    /// Tasks with new events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TaskId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub settings: bool,
    /// Queues were paused, resumed or limited.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub queues: bool,
    /// The counts were corrected, so replicas must read them again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recounted: bool,
}

impl Changed {
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
    pub tasks: Counts,
    pub leases: i64,
}

impl CountDeltas {
    pub fn of(set: &WorkingSet) -> Self {
        Self { tasks: set.counts.clone(), leases: set.leases_granted }
    }

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

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The counts of one snapshot, and the last batch of each writer that they contain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountsAt {
    pub counts: CountDeltas,
    pub positions: Vec<Position>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FeedEntry {
    pub at: Position,
    pub counts: CountDeltas,
    pub changes: Changed,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feed {
    /// Ordered by writer and number. The number of entries per writer is limited.
    pub entries: Vec<FeedEntry>,
    /// A writer has more entries after these.
    pub more: bool,
    /// Entries that were not read yet were removed, so the cache must be rebuilt.
    pub gap: bool,
}
