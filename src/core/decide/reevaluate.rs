//! Parked tasks are evaluated again: something that they waited for has happened, or their time has come.

use super::super::ids::TaskId;
use super::super::keys::Keys;
use super::super::operation::Operation;
use super::super::reply::Reevaluated;
use super::super::task::{Parked, Status, TaskState};
use super::super::wakeup::Progress;
use super::super::working_set::{Halt, WorkingSet};
use super::readiness::{Park, Verdict, apply, behind_session, evaluate, known_dependencies, mark_awaited};

/// Evaluates again what keeps queued tasks from running.
#[derive(Clone, Debug)]
pub struct Reevaluate {
    pub tasks: Vec<TaskId>,
    /// The wake-up that these are a page of.
    pub progress: Option<Progress>,
}

impl Operation for Reevaluate {
    type Reply = Reevaluated;

    fn add_keys(&self, keys: &mut Keys) {
        keys.tasks.extend(self.tasks.iter().copied());
    }

    /// Those that run or ended are left alone, and those that are ready, unless one that was queued again goes before them in their context.
    fn decide(&self, set: &mut WorkingSet) -> Result<Reevaluated, Halt> {
        let (tasks, progress) = (&self.tasks, self.progress.as_ref());
        // Somebody else waits for the key as well, who was not looked at: whoever was is to pass the word on, wherever it stands by now.
        let more_want_key = progress.is_some_and(|progress| progress.more_want_key);
        let mut passed_over = Vec::new();
        let mut is_whole = true;
        let mut verdicts = Vec::new();
        let mut missing = Keys::default();
        for id in tasks {
            match verdict(set, *id) {
                Ok(Some(verdict)) => verdicts.push(verdict),
                Ok(None) => passed_over.push(*id),
                Err(Halt::Need(keys)) => missing.merge(&keys),
                Err(Halt::Locked) => is_whole = false,
                Err(rejected) => return Err(rejected),
            }
        }
        if missing != Keys::default() {
            return Err(Halt::Need(Box::new(missing)));
        }
        for (evaluated, verdict) in verdicts {
            // An earlier one of these may have marked it as awaited.
            let Ok(Some(current)) = set.find_task(evaluated.id) else { continue };
            let mut task = TaskState { has_dependents: current.has_dependents || more_want_key, ..evaluated };
            if let Verdict::Park(Park { parked, wake_at, .. }) = &verdict
                && (task.parked, task.wake_at) == (Some(*parked), *wake_at)
            {
                // Nothing changes for it but whom it waits for.
                apply(set, &mut task, verdict);
                continue;
            }
            task.updated_at = set.stamp();
            apply(set, &mut task, verdict);
            set.put_task(task);
        }
        if more_want_key {
            passed_over.into_iter().for_each(|id| mark_awaited(set, id));
        }
        // While another program keeps one of them locked, the wake-up stays where it is.
        set.dirty.progress.extend(progress.cloned().filter(|_| is_whole));
        Ok(Reevaluated { is_whole })
    }
}

/// The task, and what keeps it from running; `None`: that is not asked of it.
fn verdict(set: &WorkingSet, id: TaskId) -> Result<Option<(TaskState, Verdict)>, Halt> {
    let Some(task) = set.find_task(id)?.filter(|task| task.status == Status::Queued) else { return Ok(None) };
    let mut task = task.clone();
    let verdict = match task.parked {
        Some(_) => {
            let dependencies = dependencies(set, &task)?;
            Some(evaluate(set, &mut task, &dependencies, id)?)
        }
        None => behind_session(set, &task, id)?,
    };
    Ok(verdict.map(|verdict| (task, verdict)))
}

/// What the task waits for, while that is why it is parked; dependencies that were met once stay met.
fn dependencies(set: &WorkingSet, task: &TaskState) -> Result<Vec<TaskId>, Halt> {
    if !task.has_dependencies || task.parked != Some(Parked::DependsOn) {
        return Ok(Vec::new());
    }
    known_dependencies(set, task.id)
}
