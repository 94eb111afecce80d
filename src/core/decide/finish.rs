//! The end of a task, and the tasks that it wakes.

use crate::task::{Session, Status, TaskState};
use crate::wakeup::Subject;
use crate::working_set::WorkingSet;

/// Wakes the tasks that wait for this one, if there are any. If the task is not over, wakes only those that wait for its context or its
/// key.
pub(super) fn wake_successors(set: &mut WorkingSet, task: &TaskState, is_over: bool) {
    if !task.has_dependents {
        return;
    }
    if is_over {
        set.wake(Subject::Dependents(task.id));
    }
    if task.session == Session::Context {
        set.wake(Subject::Context { context_id: task.context_id.clone(), after: is_over.then_some(task.id) });
    }
    if let Some(key) = &task.exclusive_key {
        set.wake(Subject::Key(key.clone()));
    }
}

/// Sets the task's final status.
pub(super) fn finish(set: &mut WorkingSet, task: &mut TaskState, status: Status) {
    debug_assert!(status.is_final() && task.lease.is_none());
    task.status = status;
    task.parked = None;
    task.wake_at = None;
    task.created_after = None;
    task.updated_at = set.stamp();
    task.finished_at = Some(set.now());
    task.remove_at = task.ttl_after_finished_sec.map(|ttl| set.now() + ttl * 1000);
    wake_successors(set, task, true);
}
