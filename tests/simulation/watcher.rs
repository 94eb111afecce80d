//! A watcher of each replica: it keeps what it is told, as clients of the watch stream do.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bloom_core::ids::{TaskId, WorkerId};
use bloom_engine::Changes;
use bloom_test_world::memory::Memory;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::database::Condition;
use crate::shared::Shared;

/// The newest revisions that were told since the last reset.
#[derive(Debug, Default)]
pub struct Told {
    pub tasks: BTreeMap<TaskId, i64>,
    pub workers: BTreeMap<WorkerId, i64>,
}

/// What is told of a removed object after its removal is older than that.
const REMOVED: i64 = i64::MAX;

impl Told {
    /// Returns a complaint if a change is older than what was told before.
    fn take(&mut self, changes: &Changes) -> Option<String> {
        let mut older = None;
        for task in &changes.tasks {
            let before = self.tasks.insert(task.id, task.revision).filter(|before| *before > task.revision);
            older = older.or(before.map(|before| format!("of task {}, revision {before} before {}", task.id, task.revision)));
        }
        for worker in &changes.workers {
            // The name of a worker may come again, with a higher revision than before.
            let before = self.workers.insert(worker.id.clone(), worker.revision).filter(|before| *before > worker.revision);
            older = older.or(before.map(|before| format!("of worker {}, revision {before} before {}", worker.id, worker.revision)));
        }
        self.tasks.extend(changes.removed_tasks.iter().map(|id| (*id, REMOVED)));
        older
    }

    /// Returns complaints if the last word on a task is not what the database has.
    pub fn compare(&self, memory: &Memory) -> impl Iterator<Item = String> {
        let is_right = |(id, revision): &(&TaskId, &i64)| memory.tasks.get(id).map_or(REMOVED, |task| task.revision) == **revision;
        self.tasks
            .iter()
            .filter(move |told| !is_right(told))
            .map(|(id, revision)| format!("was told revision {revision} of task {id} last"))
    }
}

/// Follows the changes that a replica announces, until its process has died.
pub async fn watch(shared: Shared, mut changes: Receiver<Arc<Changes>>, condition: Arc<Condition>, told: Arc<Mutex<Told>>) {
    while !condition.is_dead.load(Ordering::Relaxed) {
        match changes.recv().await {
            Ok(change) if !change.reset => {
                if let Some(complaint) = told.lock().expect("what was told").take(&change) {
                    shared.lock().checker.violations.push(format!("a watcher was told, {complaint}"));
                }
            }
            Ok(_) | Err(RecvError::Lagged(_)) => *told.lock().expect("what was told") = Told::default(),
            Err(RecvError::Closed) => return,
        }
    }
}
