//! Re-evaluation of parked tasks, after an event that they waited for or when their time has come.

use super::readiness::{Park, Readiness, apply, behind_session, evaluate, known_dependencies, mark_awaited};
use crate::ids::TaskId;
use crate::operation::{Operation, Urgency, Weight};
use crate::reply::Reevaluated;
use crate::row_keys::RowKeys;
use crate::task::{Parked, Status, TaskState};
use crate::wakeup::Progress;
use crate::working_set::{Halt, WorkingSet};

/// Evaluates these queued tasks again.
#[derive(Clone, Debug)]
pub struct Reevaluate {
    /// The tasks to evaluate, at most one page.
    pub tasks: Vec<TaskId>,
    /// The progress of the wake-up, if these tasks are a page of one.
    pub progress: Option<Progress>,
}

impl Operation for Reevaluate {
    type Reply = Reevaluated;

    fn weight(&self) -> Weight {
        Weight { rows: 2 + self.tasks.len() * 2, ..Weight::default() }
    }

    fn urgency(&self) -> Urgency {
        Urgency::FollowUp
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.tasks.extend(self.tasks.iter().copied());
    }

    /// Skips tasks that run or have ended. Ready tasks are skipped too, unless a requeued task now goes before them in their context.
    fn decide(&self, set: &mut WorkingSet) -> Result<Reevaluated, Halt> {
        let (tasks, progress) = (&self.tasks, self.progress.as_ref());
        // More tasks than those of this page wait for the key. The tasks of this page must therefore wake them later, whatever their own
        // state is now.
        let more_want_key = progress.is_some_and(|progress| progress.more_want_key);
        let mut passed_over = Vec::new();
        let mut is_whole = true;
        let mut verdicts = Vec::new();
        let mut missing = RowKeys::default();
        for id in tasks {
            match readiness(set, *id) {
                Ok(Some(readiness)) => verdicts.push(readiness),
                Ok(None) => passed_over.push(*id),
                Err(Halt::Need(keys)) => missing.merge(&keys),
                Err(Halt::Locked) => is_whole = false,
                Err(rejected) => return Err(rejected),
            }
        }
        if missing != RowKeys::default() {
            return Err(Halt::Need(Box::new(missing)));
        }
        for (evaluated, readiness) in verdicts {
            // The verdict on an earlier task of this list may have set its flag.
            let Ok(Some(current)) = set.find_task(evaluated.id) else { continue };
            let mut task = TaskState { has_dependents: current.has_dependents || more_want_key, ..evaluated };
            if let Readiness::Park(Park { parked, wake_at, .. }) = &readiness
                && (task.parked, task.wake_at) == (Some(*parked), *wake_at)
            {
                // Only the tasks that it waits for have changed.
                apply(set, &mut task, readiness);
                continue;
            }
            task.updated_at = set.stamp();
            apply(set, &mut task, readiness);
            set.put_task(task);
        }
        if more_want_key {
            passed_over.into_iter().for_each(|id| mark_awaited(set, id));
        }
        // If another program keeps one of the tasks locked, the wake-up stays in the database.
        set.dirty.progress.extend(progress.cloned().filter(|_| is_whole));
        Ok(Reevaluated { is_whole })
    }
}

/// The task and its verdict. `None` if there is nothing to evaluate, because the task is not queued, or is ready and no other task goes
/// before it.
fn readiness(set: &WorkingSet, id: TaskId) -> Result<Option<(TaskState, Readiness)>, Halt> {
    let Some(task) = set.find_task(id)?.filter(|task| task.status == Status::Queued) else { return Ok(None) };
    let mut task = task.clone();
    let readiness = match task.parked {
        Some(_) => {
            let dependencies = dependencies(set, &task)?;
            Some(evaluate(set, &mut task, &dependencies, id)?)
        }
        None => behind_session(set, &task, id)?,
    };
    Ok(readiness.map(|readiness| (task, readiness)))
}

/// The task's dependencies, if it is parked for them. Dependencies that have once been met stay met.
pub(super) fn dependencies(set: &WorkingSet, task: &TaskState) -> Result<Vec<TaskId>, Halt> {
    if !task.has_dependencies || task.parked != Some(Parked::DependsOn) {
        return Ok(Vec::new());
    }
    known_dependencies(set, task.id)
}
