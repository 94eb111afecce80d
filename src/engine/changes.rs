//! What a commit changed, for watchers.

use std::sync::Arc;

use bloom_core::ids::{TaskId, WorkerId};
use bloom_core::task::TaskState;
use bloom_core::worker::Worker;
use bloom_core::working_set::WorkingSet;

/// The changes of one commit, by this or another replica.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The states of tasks that were created or changed.
    pub tasks: Vec<Arc<TaskState>>,
    /// Tasks that were removed.
    pub removed_tasks: Vec<TaskId>,
    /// Workers that were registered, changed or seen.
    pub workers: Vec<Arc<Worker>>,
    /// Workers that were removed.
    pub removed_workers: Vec<WorkerId>,
    /// Tasks that have new events.
    pub events: Vec<TaskId>,
    /// Whether stored settings or keys changed.
    pub settings: bool,
    /// Whether changes may have been missed, so that watchers that keep a copy must read it again.
    pub reset: bool,
}

impl Changes {
    pub(super) fn of(set: &WorkingSet) -> Self {
        let task = |id: &TaskId| set.loaded.tasks.get(id).and_then(Option::as_ref).cloned().map(Arc::new);
        let worker = |id: &WorkerId| set.loaded.workers.get(id).and_then(Option::as_ref).cloned().map(Arc::new);
        let mut events: Vec<TaskId> = set.dirty.events.iter().map(|event| event.task_id).collect();
        events.dedup();
        Self {
            tasks: set.dirty.tasks.iter().filter_map(task).collect(),
            removed_tasks: set.dirty.removed_tasks.iter().copied().collect(),
            workers: set.dirty.workers.union(&set.dirty.seen).filter_map(worker).collect(),
            removed_workers: set.dirty.removed_workers.iter().cloned().collect(),
            events,
            settings: set.dirty.has_settings(),
            reset: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        // Every field is named here, so that none can be forgotten: watchers would never hear of its changes.
        let Self { tasks, removed_tasks, workers, removed_workers, events, settings, reset } = self;
        tasks.is_empty()
            && removed_tasks.is_empty()
            && workers.is_empty()
            && removed_workers.is_empty()
            && events.is_empty()
            && !settings
            && !reset
    }
}
