//! The row that each commit leaves: what it changed, for other replicas, and what it added to the counts.

use bloom_core::ids::{TaskId, WorkerId};
use bloom_core::working_set::{Counts, WorkingSet};
use serde::{Deserialize, Serialize};

/// A writer, and the number of one of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub writer: i64,
    pub n: i64,
}

/// What a batch changed, by id; readers look for themselves what it is now.
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
    /// The counts were put right: whoever keeps them reads them anew.
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
            removed_tasks: Vec::new(),
            workers: dirty.workers.difference(&dirty.removed_workers).cloned().collect(),
            removed_workers: dirty.removed_workers.iter().map(|id| (id.clone(), revision(id))).collect(),
            events,
            settings: !dirty.settings.is_empty(),
            recounted: false,
        }
    }
}

/// How a batch changed the numbers of tasks, and how many leases it gave.
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

    /// How many counts they change.
    pub fn len(&self) -> usize {
        self.tasks.values().filter(|n| **n != 0).count() + usize::from(self.leases != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The counts of one snapshot, and up to which batch of each writer they are complete.
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
    /// By writer and number; of each writer a limited number, so there may be more behind them.
    pub entries: Vec<FeedEntry>,
    /// A writer has more behind the last entry.
    pub more: bool,
    /// Rows that were not read yet are gone: read everything anew.
    pub gap: bool,
}
